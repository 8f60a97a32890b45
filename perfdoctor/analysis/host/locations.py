"""The line of the user's code that was executing at an instant of a trace.

Exact where `perfdoctor run` recorded lines, else that of the innermost Python frame that belongs to no library.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from perfdoctor.facts.part import CapturedLine
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.model import Trace

# Packages whose names no folder of a user's project has, wherever they lie: from wheels, or built from their sources.
_PACKAGES = (
    "torch|torchvision|torchaudio|torchtext|torchdata|torchcodec|torchao|torchtune|torchtitan|torchrec|"
    "torchmetrics|torch_geometric|torch_scatter|torch_sparse|torch_tensorrt|torch_xla|functorch|triton|"
    "triton_kernels|tensorrt|tensorrt_llm|onnxruntime|jax|flax|tensorflow|lightning|pytorch_lightning|"
    "lightning_fabric|lightning_utilities|fastai|accelerate|transformers|diffusers|peft|trl|optimum|"
    "tokenizers|safetensors|timm|open_clip|huggingface_hub|sentence_transformers|sentencepiece|tiktoken|"
    "bitsandbytes|xformers|einops|deepspeed|fairscale|fairseq|colossalai|transformer_engine|flash_attn|"
    "flash_attn_interface|flashinfer|liger_kernel|vllm|sglang|sgl_kernel|lmdeploy|fbgemm_gpu|dgl|"
    "detectron2|ultralytics|mmdet|mmcv|mmengine|llmfoundry|omegaconf|numpy|scipy|pandas|sklearn|skimage|"
    "cv2|PIL|imageio|albumentations|kornia|decord|librosa|soundfile|webdataset|pyarrow|h5py|zarr|fsspec|"
    "s3fs|gcsfs|boto3|botocore|wandb|mlflow|tensorboard|tensorboardX|tqdm|loguru|pydantic|fastapi|"
    "stable_baselines3|sb3_contrib|gymnasium|pettingzoo|"
    "uvicorn|starlette|uvloop|zmq|grpc|requests|urllib3|aiohttp|cupy|numba|sympy|networkx|pynvml"
)
# Packages whose names are words: only where the profiler has cut the path to it off, as it does for installed ones.
_PACKAGES_AT_THE_TOP = (
    "apex|attr|av|click|composer|dask|datasets|evaluate|horovod|hydra|ignite|joblib|monai|nemo|ray|rich|"
    "typing_extensions|yaml"
)
# The profiler writes the standard library without its path, too: "json/decoder.py(344): decode", "enum.py(726): ...".
# Users have files and folders with the names that are left out.
_STANDARD_LIBRARY = sys.stdlib_module_names - {"code", "profile", "test", "trace", "types"}
_LIBRARY_FOLDERS = frozenset(_PACKAGES.split("|"))
_LIBRARIES_AT_THE_TOP = frozenset(_PACKAGES_AT_THE_TOP.split("|")) | _STANDARD_LIBRARY
_LIBRARY = re.compile(
    r"(^|/)megatron/(core|training|legacy|model)/|site-packages|dist-packages|/lib/python\d"
    r"|(^|/)(threading|runpy|contextlib|functools|multiprocessing/\w+)\.py\("
    rf"|perfdoctor/capture|{vocabulary.RECORDER_FRAME}|torchinductor_|^nn\.Module: "
)
_NOT_PARSED = -2


@frozen_dataclass
class SourceLocation:
    """A line of the user's code; `line` and `function` are None where they are not known."""

    file: str
    line: int | None = None
    function: str | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def file_name(self) -> str:
        """The name of the file without its folders."""
        return self.file.replace("\\", "/").rpartition("/")[2]

    @property
    def is_in_library(self) -> bool:
        """Whether the file belongs to an installed package or the standard library: not to be changed by its user."""
        return _is_in_library(f"{self.file}(")

    @property
    def short(self) -> str:
        """File name and line without folders, for titles."""
        return str(SourceLocation(self.file_name, self.line))


def captured_location(captured: CapturedLine) -> SourceLocation | None:
    """A captured line as a location; None where nothing was captured."""
    return SourceLocation(captured.file, captured.line, captured.function) if captured.file else None


def name_files_alike(locations: Sequence[SourceLocation | None]) -> list[SourceLocation | None]:
    """The locations with one name for each file: frames name it from a folder of sys.path on, lines in full."""
    files = {location.file for location in locations if location is not None}
    full = {file: next((other for other in files if other.endswith(f"/{file}")), file) for file in files}
    renamed = {each: replace(each, file=full[each.file]) for each in set(locations) if each is not None}
    return [None if each is None else renamed[each] for each in locations]


def most_common_location(found: Iterable[SourceLocation | None]) -> SourceLocation | None:
    """The location named most often; None when none is."""
    counts = Counter(location for location in found if location is not None)
    return counts.most_common(1)[0][0] if counts else None


def find_locations(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> list[SourceLocation | None]:
    """For each instant and thread the user's location that was executing, or None."""
    locations, code = code_locations(trace, thread, at_ns)
    found: list[SourceLocation | None] = [*locations, None]  # code NONE finds the last
    return [found[each] for each in code.tolist()]


def code_locations(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> tuple[list[SourceLocation], Int32Array]:
    """The user's locations that were executing at some instants of threads, and for each instant the number of its own.

    Each location stands once; the number is NONE where it is not known.
    """
    code_of: dict[SourceLocation, int] = {}
    code, mark_ns = _recorded_lines(trace, thread, at_ns, code_of)
    # A line in a library says little, and that of the user's function around it more; so does one inside of the line.
    says_little = np.array([*(location.is_in_library for location in code_of), True], bool)[code]
    if len(trace.frames):
        rows = np.arange(len(at_ns)) if len(code_of) else np.flatnonzero(says_little)
        of_frames, frame_ns = _frame_locations(trace, thread[rows], at_ns[rows], code_of)
        better = (of_frames >= 0) & (says_little[rows] | (frame_ns > mark_ns[rows]))
        code[rows[better]] = of_frames[better]
    return list(code_of), code


@lru_cache(maxsize=1024)
def _is_in_library(frame: str) -> bool:
    """Whether a frame, as in "json/decoder.py(344): decode", belongs to a package or the standard library."""
    *folders, file = frame.split("/")
    top = folders[0] if folders else file.partition(".py(")[0]
    return top in _LIBRARIES_AT_THE_TOP or not _LIBRARY_FOLDERS.isdisjoint(folders) or bool(_LIBRARY.search(frame))


def _recorded_lines(
    trace: Trace, thread: Int32Array, at_ns: Int64Array, code_of: dict[SourceLocation, int]
) -> tuple[Int32Array, Int64Array]:
    """For each instant and thread the line that `perfdoctor run` recorded, and since when it ran; NONE without.

    Lines are numbers in `code_of`.
    """
    marks = trace.match_rows(trace.ranges, vocabulary.SOURCE_MARK)
    if not marks.any():
        return np.full(len(at_ns), NONE, np.int32), np.full(len(at_ns), NONE, np.int64)
    ranges = trace.ranges
    rows = nesting.innermost(ranges.start_ns[marks], ranges.end_ns[marks], ranges.thread[marks], at_ns, thread)
    name = np.append(ranges.name[marks], np.int32(NONE))[rows]
    code = np.full(len(trace.strings) + 1, NONE, np.int32)
    for each in occurring(name).tolist():
        line = vocabulary.parse_source_mark(trace.strings[each])
        if line is not None:
            code[each] = code_of.setdefault(SourceLocation(*line), len(code_of))
    return code[name], np.append(ranges.start_ns[marks], NONE)[rows]


def _frame_locations(
    trace: Trace, thread: Int32Array, at_ns: Int64Array, code_of: dict[SourceLocation, int]
) -> tuple[Int32Array, Int64Array]:
    """For each instant and thread the innermost frame of the user's code, and when it began; NONE without.

    Frames are numbers in `code_of`.
    """
    frames = trace.frames
    row = innermost_frame(trace, thread, at_ns)
    code = np.full(len(trace.strings) + 1, _NOT_PARSED, np.int32)
    code[NONE] = NONE

    def is_user(name: Int32Array) -> BoolArray:
        for each in occurring(name).tolist():
            if code[each] == _NOT_PARSED:
                location = parse_user_frame(trace.strings[each])
                code[each] = NONE if location is None else code_of.setdefault(location, len(code_of))
        result: BoolArray = code[name] != NONE
        return result

    row = _climb(trace, row, is_user)
    return code[np.append(frames.name, np.int32(NONE))[row]], np.append(frames.start_ns, NONE)[row]


def innermost_frame(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> Int32Array:
    """For each instant and thread the innermost Python frame, a row of `trace.frames`; NONE without."""
    frames, numbers = trace.frames, distinct(thread)
    of_frames = np.array([frame_thread_of(trace, number) for number in numbers.tolist()], np.int32)
    of_frames = of_frames[np.searchsorted(numbers, thread)]
    return nesting.innermost(frames.start_ns, frames.end_ns, frames.thread, at_ns, of_frames)


def _climb(trace: Trace, row: Int32Array, decides: Callable[[Int32Array], BoolArray]) -> Int32Array:
    """For each frame the first outwards whose name decides; NONE where there is none. Changes `row`."""
    frames = trace.frames
    climbing = np.flatnonzero(row >= 0)
    while len(climbing):
        climbing = climbing[~decides(frames.name[row[climbing]])]
        row[climbing] = frames.parent[row[climbing]]
        climbing = climbing[row[climbing] >= 0]
    return row


def is_in_library_code(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> BoolArray:
    """For each instant and thread whether the function that calls PyTorch then is of another library.

    What a model of transformers runs is written there, and not at the line of the program that calls the model.
    """
    frames = trace.frames
    decides = np.zeros(len(trace.strings) + 1, bool)
    is_other = np.zeros(len(trace.strings) + 1, bool)
    for each in trace.name_ids(frames):
        name = trace.strings[each]
        line = vocabulary.parse_frame(name)
        file = "" if line is None else line[0].rpartition("site-packages/")[2]
        is_other[each] = file.partition("/")[0] in _LIBRARY_FOLDERS - {"torch"}
        decides[each] = is_other[each] or parse_user_frame(name) is not None
    row = _climb(trace, innermost_frame(trace, thread, at_ns), lambda name: decides[name])
    return is_other[np.append(frames.name, np.int32(NONE))[row]]


def has_locations(trace: Trace) -> bool:
    """Whether stacks or lines were recorded."""
    return bool(len(trace.frames)) or bool(trace.match_rows(trace.ranges, vocabulary.SOURCE_MARK).any())


def loop_thread_of(trace: Trace) -> int:
    """The thread that marks the steps, else the one with the most ops."""
    marks = trace.ranges.thread[trace.match_rows(trace.ranges, vocabulary.PROFILER_STEP)]
    threads = marks if len(marks) else trace.ops.thread
    return int(np.bincount(threads).argmax()) if len(threads) else 0


def frame_thread_of(trace: Trace, thread: int) -> int:
    """The thread that has the Python frames of a thread: itself, or the one that has those of all in old files (0/0).

    The threads of the autograd engine have none either: theirs are those of `backward()`.
    """
    frames = trace.frames
    return thread if not len(frames) or (frames.thread == thread).any() else int(frames.thread.min())


def user_frame(trace: Trace, row: int) -> SourceLocation | None:
    """The location of the first frame from `row` outwards that belongs to no library."""
    while row >= 0:
        location = parse_user_frame(trace.strings[trace.frames.name[row]])
        if location is not None:
            return location
        row = int(trace.frames.parent[row])
    return None


@lru_cache(maxsize=4096)  # a step calls everything from the same few frames
def parse_user_frame(frame: str) -> SourceLocation | None:
    """The location in a frame's name; None for a frame of a library."""
    line = vocabulary.parse_frame(frame)
    return None if line is None or _is_in_library(frame) else SourceLocation(*line)
