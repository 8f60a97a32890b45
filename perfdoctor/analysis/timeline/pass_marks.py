"""Where the passes of a program begin: of serving engines, of loops that generate text, and of diffusion pipelines."""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs, UnusableInputsError
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Frames, Trace
from perfdoctor.trace.tables.step_marks import keep_outermost, select_busiest_thread
from perfdoctor.trace.vocabulary import EnginePass


@frozen_dataclass(eq=False)
class PassMarks:
    """Where passes begin on the CPU.

    Attributes:
        passes: What each one is; None where the name of its range is of no known form.
        began_ns: When each begins, in order.
        ended_ns: When the loop ends that makes the pass: what the GPU idles after that is no part of it.
        model: When the CPU runs the model.
        thread: Their thread, an index into `Trace.threads`.
        of_engine: Whether a serving engine makes them.
    """

    passes: tuple[EnginePass | None, ...]
    began_ns: Int64Array
    ended_ns: Int64Array
    model: Intervals
    thread: int
    of_engine: bool = False


def find_pass_marks(trace: Trace) -> PassMarks | None:
    """The passes by the ranges of a serving engine, else by the frames of a library's loop; None without either."""
    return _find_engine_marks(trace) or _find_generation_marks(trace) or _find_denoising_marks(trace)


def _find_engine_marks(trace: Trace) -> PassMarks | None:
    ranges = trace.ranges
    rows = keep_outermost(ranges, select_busiest_thread(ranges, trace.match_rows(ranges, vocabulary.ENGINE_PASS)))
    if not len(rows):
        return None
    return PassMarks(
        tuple(vocabulary.parse_engine_pass(trace.strings[code]) for code in ranges.name[rows].tolist()),
        ranges.start_ns[rows],
        np.full(len(rows), np.iinfo(np.int64).max),
        iv.union(ranges.start_ns[rows], ranges.end_ns[rows]),
        int(ranges.thread[rows[0]]),
        of_engine=True,
    )


def _find_generation_marks(trace: Trace) -> PassMarks | None:
    """The passes of `generate` of transformers: the first of each call reads the prompts, the others decode.

    Each begins where the loop prepares the inputs of the model. The passes of a draft model, within `get_candidates`,
    are one::

        generate [ prepare model | get_candidates[ prepare model prepare model ] prepare model | ... ]
                 |prefill         |draft                                        |decode
    """
    frames = trace.frames
    loops = keep_outermost(frames, select_busiest_thread(frames, trace.match_rows(frames, vocabulary.DECODE_FRAME)))
    if not len(loops):
        return None
    thread = int(frames.thread[loops[0]])
    drafts = _outermost_on(trace, vocabulary.DRAFT_FRAME, thread)
    prepared = _outermost_on(trace, vocabulary.PREPARE_GENERATION_FRAME, thread)
    prepared = prepared[~_lie_in(frames, prepared, drafts)]
    rows = np.sort(np.concatenate((drafts, prepared)))
    loop = np.searchsorted(frames.start_ns[loops], frames.start_ns[rows], side="right") - 1
    rows, loop = rows[loop >= 0], loop[loop >= 0]
    if not len(rows):
        return None
    is_draft, is_first = np.isin(rows, drafts), np.append(True, np.diff(loop) > 0)
    own = np.flatnonzero(~is_draft)
    reads_prompt = _lie_in(frames, rows, _outermost_on(trace, vocabulary.PREFILL_FRAME, thread))
    reads_prompt[own[np.unique(loop[own], return_index=True)[1]]] = True
    began_ns = np.where(is_first, frames.start_ns[loops[loop]], frames.start_ns[rows])  # an encoder reads the prompt
    batch = _find_batches(trace, thread, began_ns)
    passes = (
        EnginePass("draft") if draft else EnginePass("prefill" if prompt else "decode", *sizes)
        for draft, prompt, sizes in zip(is_draft.tolist(), reads_prompt.tolist(), batch, strict=True)
    )
    return PassMarks(tuple(passes), began_ns, frames.end_ns[loops[loop]], _find_model_calls(trace, thread), thread)


def _find_denoising_marks(trace: Trace) -> PassMarks | None:
    """The passes of a diffusion pipeline: the calls of its model before each step of its scheduler; and other models.

    What is called again from step to step denoises; encoders and decoders are called once a picture. Guidance that
    calls the model twice a step makes one pass of them.
    """
    frames = trace.frames
    loops = keep_outermost(frames, select_busiest_thread(frames, trace.match_rows(frames, vocabulary.PIPELINE_FRAME)))
    if not len(loops):
        return None
    thread = int(frames.thread[loops[0]])
    calls = _outermost_on(trace, vocabulary.MODULE_FRAME, thread)
    steps_ns = frames.start_ns[_outermost_on(trace, vocabulary.DENOISING_STEP_FRAME, thread)]
    loop = np.searchsorted(frames.start_ns[loops], frames.start_ns[calls], side="right") - 1
    calls, loop = calls[loop >= 0], loop[loop >= 0]
    step = np.searchsorted(steps_ns, frames.start_ns[calls])
    in_loop = step - np.searchsorted(steps_ns, frames.start_ns[loops])[loop]  # how many steps the picture has had
    names = frames.name[calls]
    often = [name for name in set(names.tolist()) if len(set(in_loop[names == name].tolist())) > 1]
    denoises = np.isin(names, often)
    begins = ~denoises
    begins[np.flatnonzero(denoises)[np.unique(step[denoises], return_index=True)[1]]] = True
    if not denoises.any():
        return None
    return PassMarks(
        tuple(EnginePass("denoise" if each else "other") for each in denoises[begins].tolist()),
        frames.start_ns[calls[begins]],
        frames.end_ns[loops[loop[begins]]],
        _find_model_calls(trace, thread),
        thread,
    )


def _outermost_on(trace: Trace, pattern: str, thread: int) -> Int64Array:
    """Rows of the frames of a thread that a pattern fits, without those within others of them."""
    frames = trace.frames
    return keep_outermost(frames, np.flatnonzero(trace.match_rows(frames, pattern) & (frames.thread == thread)))


def _lie_in(frames: Frames, rows: Int64Array, outer: Int64Array) -> BoolArray:
    """For each frame whether it begins in one of some outermost frames, or is one of them."""
    at = np.searchsorted(frames.start_ns[outer], frames.start_ns[rows], side="right") - 1
    ends_ns = np.append(frames.end_ns[outer], 0)  # the last one for those before all
    found: BoolArray = frames.start_ns[rows] < ends_ns[at]
    return found


def _find_model_calls(trace: Trace, thread: int) -> Intervals:
    rows = _outermost_on(trace, f"{vocabulary.MODULE_FRAME}|{vocabulary.COMPILED_CALL_FRAME}", thread)
    return iv.union(trace.frames.start_ns[rows], trace.frames.end_ns[rows])


def _find_batches(trace: Trace, thread: int, began_ns: Int64Array) -> list[tuple[int | None, int | None]]:
    """Requests and tokens of each pass, by the first look-up of embeddings in it: [vocabulary, width] by [B, T]."""
    ops = trace.ops
    looked_up = np.flatnonzero(trace.match_rows(ops, r"^aten::embedding$") & (ops.thread == thread))
    first = np.searchsorted(ops.start_ns[looked_up], began_ns)
    found: list[tuple[int | None, int | None]] = []
    for at, end_ns in zip(first.tolist(), [*began_ns[1:].tolist(), np.iinfo(np.int64).max], strict=True):
        is_in_pass = at < len(looked_up) and ops.start_ns[looked_up[at]] < end_ns
        found.append(_read_batch(trace, int(looked_up[at])) if is_in_pass else (None, None))
    return found


def _read_batch(trace: Trace, op: int) -> tuple[int | None, int | None]:
    dims, types = (None if code == NONE else trace.strings[code] for code in (trace.ops.dims[op], trace.ops.types[op]))
    try:
        rows, columns = RecordedInputs.parse(dims or "", types or "", None, None).tensor(1, ndim=2).sizes
    except UnusableInputsError:
        return None, None
    return rows, rows * columns
