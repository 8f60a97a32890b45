"""Every change where it applies and where it does not: each case is a fork of one process that has imported torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

# Applies a change as the recorder of a trial does, runs the lines of a case, and answers with what came of both.
DRIVER = """
import json, os, sys, traceback, warnings
from perfdoctor.capture.inject._perfdoctor_inject.module_calls import ModuleCalls
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange, TrialOptions
from perfdoctor.capture.inject._perfdoctor_inject.trial import TrialProgram
import torch
import torch._dynamo  # the first optimizer would import it, in each fork anew
from torch import nn

cases, answers = json.loads(sys.stdin.read()), []

def run(case):
    options = TrialOptions(0, (TrialChange(case["change"], case["file"], case["class_name"], case["setting"]),))
    program = TrialProgram(options, ModuleCalls(lambda: True))
    os.environ.update(case["environment"])
    program.environment = dict(os.environ)
    program.start()
    border = {"steps": 0}
    def step():
        border["steps"] += 1
        program.begin_step(border["steps"])
    names = {"step": step, "program": program, "torch": torch, "nn": nn, "result": None}
    lines = compile(case["source"], "/case.py", "exec")
    exec(lines, names)
    return {**program.records[case["change"]].to_dict(), "result": names["result"]}

for case in cases:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer = run(case)
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answers.append(json.loads(file.read() or b"{}"))
    os.waitpid(pid, 0)
print("ANSWERS" + json.dumps(answers))
"""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin" / "perfdoctor_example" / "any_order.py"
DATA = """
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
data = TensorDataset(torch.arange(12.0).reshape(12, 1))
"""
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))
"""
MODEL = "model = nn.Linear(4, 2)\nx = torch.ones(3, 4)\n"
CONVOLUTION = "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())\nx = torch.randn(2, 3, 8, 8)\n"
# torch.compile without Inductor: what is compiled, and with which arguments.
SPY_ON_COMPILE = """
calls = []
def spy(function=None, **arguments):
    calls.append(arguments)
    return lambda *args, **kwargs: (calls.append("called"), function(*args, **kwargs))[1]
torch.compile = spy
"""
EVALUATION = """
head, body = nn.Linear(4, 1), nn.Linear(4, 4)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
def train(model, x):
    loss = model(x).sum()
    loss.backward()
    step()
"""
# Parameters of a GPU that is not there: all that the changes of flags ask of them.
FAKE_GPU = """
from types import SimpleNamespace as Fake
class OnGpu(nn.Module):
    def parameters(self, recurse=True):
        return iter([Fake(is_cuda=True, dim=lambda: 4)])
    def forward(self):
        return 1
"""
# How often blocks compute in two steps, and whether gradients are those of a copy that no change has met.
BLOCKS = """
import copy
counts = [0]
class Block(nn.Module):
    def __init__(self, more=None):
        super().__init__()
        self.layer, self.more, self.kept = nn.Linear(4, 4), more or nn.Dropout(0.5), []
    def forward(self, x):
        counts[0] += 1
        return self.more(self.layer(x).relu())
def train(model, x):
    torch.manual_seed(1)
    result = model(x)
    (result if torch.is_tensor(result) else result.value).sum().backward()
    return [each.grad.clone() for each in model.parameters()]
def compare(model, x=None):
    x, found = torch.ones(2, 4) if x is None else x, []
    twin, watched = copy.deepcopy(model), nn.Module.__call__
    nn.Module.__call__ = nn.Module._wrapped_call_impl
    expected = train(twin, x)
    nn.Module.__call__, counts[0] = watched, 0
    grads = train(model, x)
    found.append(counts[0])
    train(model, x)
    return [*found, counts[0] - found[0], all(map(torch.equal, grads, expected))]
"""
# The loss and the gradients with the change and without it, and how large the largest tensors were that ops made.
HEAD = """
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
class Largest(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if torch.is_tensor(result) and result.dim() == 2 and result.shape[1] == 5000 and result.shape[0] != 16:
            self.rows = max(getattr(self, "rows", 0), result.shape[0])
        return result
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 5000)
    def forward(self, x):
        return self.head(self.body(x))
def compare(loss_of, model=None):
    model, x, y = model or Model(), torch.randn(16, 31, 8), torch.randint(5000, (16, 31))
    y[0, :7] = -100
    def train():
        model.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        return [loss.detach(), *(each.grad.clone() for each in model.parameters())]
    wrapped, nn.Module.__call__ = nn.Module.__call__, nn.Module._wrapped_call_impl
    expected = train()
    nn.Module.__call__ = wrapped
    with Largest() as largest:
        found = train()
    return [largest.rows, all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected))]
"""
FOUR_RANKS_OF_ONE = """
import torch.distributed as dist, tempfile
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
from torch.nn.parallel import DistributedDataParallel as DDP
"""


@dataclass
class Case:
    """What a program does, how often the change is met in it, and what `result` is afterwards."""

    name: str
    change: str
    setting: str
    source: str
    met: int = 0
    result: Any = None
    line: str = ""  # a part of the line at which it is met
    environment: tuple[tuple[str, str], ...] = ()
    refused: str = ""  # a part of why it does not fit


CASES = [
    # Loaders
    Case(
        "workers of a subclass, at the line that makes it",
        "workers",
        "2",
        DATA
        + "class Mine(DataLoader):\n    def __init__(self, data):\n        super().__init__(data, batch_size=4)\n"
        + "loader = Mine(data)\n"
        + "result = [loader.num_workers, loader.persistent_workers, sorted(x.sum().item() for x, in loader)]",
        met=1,
        result=[2, True, [6.0, 22.0, 38.0]],
        line="loader = Mine",
    ),
    Case(
        "no workers, with all that needs them",
        "workers",
        "0",
        DATA
        + "loader = DataLoader(data, 4, num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=60,"
        + " multiprocessing_context='fork')\n"
        + "result = [loader.num_workers, len(list(loader)), loader.prefetch_factor]",
        met=1,
        result=[0, 3, None],
        line="DataLoader(",
    ),
    Case(
        "workers for a batch sampler",
        "workers",
        "1",
        DATA
        + "from torch.utils.data import BatchSampler, SequentialSampler\n"
        + "loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 5, True))\n"
        + "result = [loader.num_workers, len(list(loader))]",
        met=1,
        result=[1, 2],
    ),
    Case(
        "a stream without workers would come twice",
        "workers",
        "2",
        DATA + STREAM + "result = len(list(DataLoader(Stream(), batch_size=4)))",
        result=3,
    ),
    Case("as many as before", "workers", "2", DATA + "DataLoader(data, num_workers=2)"),
    Case(
        "arguments that the program gets wrong stay its own fault",
        "workers",
        "2",
        DATA
        + "try:\n    DataLoader(data, no_such=1)\nexcept TypeError as error:\n    result = 'no_such' in str(error)",
        result=True,
    ),
    Case(
        "more batches ahead",
        "prefetch-factor",
        "4",
        DATA + "result = DataLoader(data, num_workers=1).prefetch_factor",
        met=1,
        result=4,
    ),
    Case("nobody loads ahead", "prefetch-factor", "4", DATA + "result = DataLoader(data).prefetch_factor"),
    Case(
        "workers that stay",
        "persistent-workers",
        "on",
        DATA + "result = DataLoader(data, num_workers=1).persistent_workers",
        met=1,
        result=True,
    ),
    Case(
        "no workers to stay", "persistent-workers", "on", DATA + "result = DataLoader(data).persistent_workers or None"
    ),
    Case(
        "pinned batches",
        "pin-memory",
        "non-blocking",
        DATA
        + "torch.cuda.is_available = lambda: True\n"
        + "loader = DataLoader(data)\nseen = []\n"
        + "from _perfdoctor_change_pin_memory import copy_without_blocking\n"
        + "class OnHost:\n    is_cuda = False\n    def is_pinned(self):\n        return True\n"
        + "copy_without_blocking(lambda *args, **kwargs: seen.append(kwargs))(OnHost(), 'cuda')\n"
        + "copy_without_blocking(lambda *args, **kwargs: seen.append(kwargs))(OnHost(), 'cuda', non_blocking=False)\n"
        + "result = [loader.pin_memory, seen]",
        met=1,
        result=[True, [{"non_blocking": True}, {"non_blocking": False}]],
    ),
    Case(
        "nothing to pin without a GPU",
        "pin-memory",
        "on",
        DATA + "torch.cuda.is_available = lambda: False\nresult = DataLoader(data).pin_memory",
        result=False,
    ),
    # A change of somebody else
    Case(
        "the batch that is ready first",
        "any-order",
        "on",
        DATA + "result = DataLoader(data, num_workers=2).in_order",
        met=1,
        result=False,
    ),
    Case(
        "the order that is asked for",
        "any-order",
        "on",
        DATA + "result = [DataLoader(data).in_order, DataLoader(data, num_workers=2, in_order=True).in_order]",
        result=[True, True],
    ),
    # Threads
    Case(
        "threads, also after the program's own",
        "threads",
        "1",
        "torch.set_num_threads(3)\nresult = torch.get_num_threads()",
        met=2,
        result=1,
        line="set_num_threads(3)",
    ),
    Case("as many threads as before", "threads", "2", "result = torch.get_num_threads()", result=2),
    Case(
        "workers of loaders keep their one thread",
        "threads",
        "2",
        DATA
        + "class Threads(Dataset):\n    def __len__(self):\n        return 4\n"
        + "    def __getitem__(self, index):\n        return torch.get_num_threads()\n"
        + "result = [x.item() for x in DataLoader(Threads(), num_workers=1)]",
        result=[1, 1, 1, 1],
    ),
    # Optimizers
    Case(
        "fused, by a subclass and a generator",
        "fused",
        "fused",
        MODEL
        + "class Mine(torch.optim.Adam):\n    def __init__(self, params):\n        super().__init__(params, lr=0.1)\n"
        + "optimizer = Mine(each for each in model.parameters())\n"
        + "model(x).sum().backward()\noptimizer.step()\n"
        + "result = [optimizer.defaults['fused'], len(optimizer.param_groups[0]['params'])]",
        met=1,
        result=[True, 2],
        line="optimizer = Mine",
    ),
    Case(
        "foreach for groups with names",
        "fused",
        "foreach",
        MODEL
        + "groups = [{'params': [model.weight]}, {'params': [model.bias], 'lr': 0.1}]\n"
        + "optimizer = torch.optim.RMSprop(groups)\n"
        + "named = torch.optim.SGD(model.named_parameters(), lr=0.1)\n"
        + "result = [optimizer.defaults['foreach'], named.defaults['foreach']]",
        met=2,
        result=[True, True],
    ),
    Case(
        "a loop over tensors is still open to be fused",
        "fused",
        "fused",
        MODEL + "result = torch.optim.AdamW(model.parameters(), foreach=False).defaults['fused']",
        met=1,
        result=True,
    ),
    Case(
        "what the program says stays",
        "fused",
        "fused",
        MODEL
        + "said = [torch.optim.Adam(model.parameters(), **each) for each in (dict(fused=False), dict(foreach=True))]\n"
        + "result = [each.defaults['fused'] for each in said]",
        result=[False, None],
    ),
    Case(
        "no fused form",
        "fused",
        "fused",
        MODEL
        + "optimizer = torch.optim.LBFGS(model.parameters())\ntorch.optim.SGD([torch.ones(2, dtype=torch.cfloat)])",
    ),
    Case(
        "gradients are dropped",
        "zero-grad",
        "set-to-none",
        MODEL
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        + "for _ in range(2):\n    model(x).sum().backward()\n    optimizer.zero_grad(set_to_none=False)\n"
        + "result = [model.weight.grad]",
        met=1,
        result=[None],
        line="set_to_none=False",
    ),
    Case(
        "gradients are dropped already",
        "zero-grad",
        "set-to-none",
        MODEL + "torch.optim.SGD(model.parameters()).zero_grad()\nmodel.zero_grad(set_to_none=True)",
    ),
    # Models
    Case(
        "weights and inputs in the layout of convolutions",
        "channels-last",
        "on",
        CONVOLUTION
        + "seen = []\n"
        + "model[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride()[1]))\n"
        + "y = model(x)\nmodel(x)\n"
        + "import copy\nresult = [seen, model[0].weight.stride()[1], y.stride()[1], copy.deepcopy(model)(x).shape[1]]",
        met=1,
        result=[[1, 1, 64], 1, 1, 8],
        line="y = model(x)",
    ),
    Case("no convolution", "channels-last", "on", MODEL + "result = model(x).shape[0]", result=3),
    Case(
        "compiled in place",
        "compile",
        "reduce-overhead",
        SPY_ON_COMPILE
        + MODEL
        + "model.train()\nmodel(x)\nmodel(x)\nnn.ReLU()(x)\n"
        + "result = [type(model).__name__, calls]",
        met=1,
        result=["Linear", [{"mode": "reduce-overhead"}, "called", "called"]],
        line="model(x)",
    ),
    Case(
        "compiled by the program",
        "compile",
        "default",
        MODEL + "torch.compile(model, backend='eager')(x)\nmodel.compile(backend='eager')\nmodel(x)",
    ),
    Case(
        "a step of Lightning is compiled by its models",
        "compile",
        "dynamic",
        SPY_ON_COMPILE
        + "class Module(nn.Module):\n"
        + "    def __init__(self):\n        super().__init__()\n        self.net = nn.Linear(4, 2)\n"
        + "    def forward(self, x):\n        return self.training_step(x)\n"
        + "    def training_step(self, x):\n        return self.net(x)\n"
        + "class Wrapper(nn.Module):\n"
        + "    def __init__(self):\n        super().__init__()\n        self.module = Module()\n"
        + "    def forward(self, x):\n        return self.module(x)\n"
        + "Wrapper()(torch.ones(3, 4))\nresult = calls",
        met=1,
        result=[{"dynamic": True}, "called"],
    ),
    Case(
        "autocast around forward and loss, not around backward",
        "autocast-bf16",
        "on",
        MODEL
        + "y = model(x)\nloss = (model(x) @ torch.ones(2, 1)).sum()\nstates = [torch.is_autocast_enabled('cpu')]\n"
        + "loss.float().backward()\nstates.append(torch.is_autocast_enabled('cpu'))\n"
        + "with torch.no_grad():\n    model(x)\nstates.append(torch.is_autocast_enabled('cpu'))\n"
        + "model(x)\nstep()\nstates.append(torch.is_autocast_enabled('cpu'))\n"
        + "result = [str(y.dtype), str(model.weight.grad.dtype), states]",
        met=1,
        result=["torch.bfloat16", "torch.float32", [True, False, False, False]],
    ),
    Case(
        "the program's own autocast",
        "autocast-bf16",
        "on",
        MODEL + "with torch.autocast('cpu', dtype=torch.float16):\n    result = str(model(x).dtype)",
        result="torch.float16",
    ),
    Case(
        "attention by one implementation",
        "sdpa-backend",
        "flash",
        "q = torch.randn(1, 1, 4, 8)\nfor _ in range(2):\n"
        + "    nn.functional.scaled_dot_product_attention(q, q, q)\n"
        + "b = torch.backends.cuda\n"
        + "result = [b.flash_sdp_enabled(), b.mem_efficient_sdp_enabled(), b.math_sdp_enabled()]",
        met=1,
        result=[True, False, True],
        line="scaled_dot_product_attention",
    ),
    Case("no attention", "sdpa-backend", "flash", MODEL + "model(x)"),
    # Flags
    Case(
        "TF32 after the program's own setting",
        "tf32",
        "on",
        FAKE_GPU
        + "torch.backends.cuda.matmul.allow_tf32 = False\nOnGpu()()\nresult = torch.backends.cuda.matmul.allow_tf32",
        met=1,
        result=True,
        line="OnGpu()()",
    ),
    Case(
        "no TF32 on a CPU",
        "tf32",
        "on",
        MODEL + "model(x)\nresult = torch.backends.cuda.matmul.allow_tf32",
        result=False,
    ),
    Case(
        "cuDNN measures",
        "cudnn-benchmark",
        "on",
        FAKE_GPU + "OnGpu()()\nresult = torch.backends.cudnn.benchmark",
        met=1,
        result=True,
    ),
    Case(
        "cuDNN is deterministic for a reason",
        "cudnn-benchmark",
        "on",
        FAKE_GPU + "torch.backends.cudnn.deterministic = True\nOnGpu()()\nresult = torch.backends.cudnn.benchmark",
        result=False,
    ),
    Case(
        "deterministic algorithms",
        "deterministic-off",
        "on",
        FAKE_GPU
        + "torch.use_deterministic_algorithms(True, warn_only=True)\n"
        + "torch.backends.cudnn.deterministic = True\nOnGpu()()\n"
        + "result = [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic]",
        met=2,
        result=[False, False],
        line="use_deterministic_algorithms(True",
    ),
    Case("no deterministic algorithms", "deterministic-off", "on", "torch.use_deterministic_algorithms(False)"),
    Case(
        "anomaly detection, nvtx and profilers",
        "debug-off",
        "on",
        "seen = []\n"
        + "with torch.autograd.detect_anomaly():\n    seen.append(torch.is_anomaly_enabled())\n"
        + "torch.autograd.set_detect_anomaly(True)\nseen.append(torch.is_anomaly_enabled())\n"
        + "with torch.autograd.profiler.emit_nvtx():\n    seen.append('nvtx')\n"
        + "with torch.profiler.profile(on_trace_ready=seen.append) as profiler:\n"
        + "    torch.ones(2).sum()\n    profiler.step()\n"
        + "seen.append(profiler.key_averages().table())\nprofiler.export_chrome_trace('/no/such/folder')\n"
        + "with torch.autograd.profiler.profile() as old:\n    torch.ones(2).sum()\n"
        + "seen.append(len(old.key_averages()) + len(old.table()))\nresult = seen",
        met=5,
        result=[False, False, "nvtx", "", 0],
        line="detect_anomaly()",
    ),
    Case(
        "nothing to turn off, nor what torch itself turns on",
        "debug-off",
        "on",
        "torch.autograd.set_detect_anomaly(False)\n"
        + "exec('import torch\\ntorch.autograd.set_detect_anomaly(True)', {'__name__': 'torch._functorch.aot'})\n"
        + "result = torch.is_anomaly_enabled()",
        result=True,
    ),
    # Jobs
    Case(
        "an argument of DDP that is not set",
        "ddp",
        "gradient_as_bucket_view=True",
        FOUR_RANKS_OF_ONE + "ddp = DDP(nn.Linear(2, 2))\nresult = ddp.gradient_as_bucket_view",
        met=1,
        result=True,
        line="DDP(nn.Linear",
    ),
    Case(
        "an argument of DDP that is set",
        "ddp",
        "find_unused_parameters=False",
        FOUR_RANKS_OF_ONE
        + "ddp = DDP(nn.Linear(2, 2), find_unused_parameters=True)\nresult = ddp.find_unused_parameters",
        met=1,
        result=False,
    ),
    Case(
        "buckets of another size",
        "ddp",
        "bucket_cap_mb=25",
        FOUR_RANKS_OF_ONE + "result = DDP(nn.Linear(2, 2), bucket_cap_mb=1).bucket_bytes_cap",
        met=1,
        result=25 * 2**20,
    ),
    Case(
        "no broadcasts of buffers",
        "ddp",
        "broadcast_buffers=False",
        FOUR_RANKS_OF_ONE
        + "import warnings\nwarnings.simplefilter('ignore')  # 2.13 has another name for the argument\n"
        + "result = [DDP(nn.BatchNorm1d(2)).broadcast_buffers,"
        + " DDP(nn.BatchNorm1d(2), broadcast_buffers=False).broadcast_buffers]",
        met=1,
        result=[False, False],
    ),
    Case(
        "buckets of the usual size",
        "ddp",
        "bucket_cap_mb=25",
        FOUR_RANKS_OF_ONE + "DDP(nn.Linear(2, 2)); DDP(nn.Linear(2, 2), bucket_cap_mb=25)",
    ),
    # The process
    Case(
        "a variable that anything may read",
        "environment",
        "OMP_WAIT_POLICY=passive",
        "import os\nresult = os.environ['OMP_WAIT_POLICY']",
        met=1,
        result="passive",
        environment=(("OMP_WAIT_POLICY", "passive"),),
    ),
    Case(
        "a variable of NCCL without NCCL",
        "environment",
        "NCCL_NTHREADS=512",
        MODEL + "model(x)",
        environment=(("NCCL_NTHREADS", "512"),),
    ),
    Case(
        "segments that grow, on a GPU",
        "allocator",
        "expandable_segments",
        FAKE_GPU + "OnGpu()()",
        met=1,
        environment=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    ),
    Case("a malloc that is not loaded", "allocator", "jemalloc", MODEL + "model(x)"),
    Case(
        "garbage at the borders of steps",
        "gc",
        "step-borders",
        "import gc\ngc.collect()\nstep()\nseen = [gc.isenabled(), gc.get_freeze_count() > 1000]\n"
        + "cycle = []\ncycle.append(cycle)\ndel cycle\nseen.append(gc.collect())\nstep()\nresult = seen",
        met=2,
        result=[False, True, 0],
        line="seen.append(gc.collect())",
    ),
    Case("the program does without the collector", "gc", "step-borders", "import gc\ngc.disable()\nstep()"),
    Case(
        "evaluation with gradients that nobody needs",
        "no-grad-evaluation",
        "on",
        EVALUATION
        + "grads = []\nfor _ in range(3):\n    body.train()\n    train(body, torch.ones(2, 4))\n"
        + "    body.eval()\n    y = body(torch.ones(2, 4))\n    grads.append(y.requires_grad)\nstep()\n"
        + "y = body(torch.ones(2, 4))\nresult = [*grads, y.requires_grad]",
        met=3,
        result=[True, False, False, False],
        line="y = body",
    ),
    Case(
        "training in evaluation mode, and a loss through a fixed model",
        "no-grad-evaluation",
        "on",
        EVALUATION
        + "body.eval()\nhead.eval()\nfor _ in range(3):\n    train(body, torch.ones(2, 4))\n"
        + "    train(lambda x: head(body(x)), torch.ones(2, 4))\n"
        + "result = [body.weight.grad is not None, head(body(torch.ones(2, 4))).requires_grad]",
        result=[True, True],
    ),
    Case(
        "evaluation without gradients already",
        "no-grad-evaluation",
        "on",
        EVALUATION + "for _ in range(3):\n    train(body, torch.ones(2, 4))\n"
        "    with torch.no_grad():\n        body.eval()(torch.ones(2, 4))",
    ),
    Case(
        "values are read once at each line",
        "what-if-item",
        "on",
        "class Gpu:\n    type = 'cuda'\n"
        + "class Value(torch.Tensor):\n    device = Gpu()\n"
        + "value = torch.ones(()).as_subclass(Value)\nseen = []\n"
        + "for number in (1.0, 2.0):\n    value.copy_(number)\n    seen.append(value.item())\n"
        + "result = seen",
        met=1,
        result=[1.0, 1.0],
        line="value.item()",
    ),
    Case(
        "values on the CPU are read as ever",
        "what-if-item",
        "on",
        "result = [torch.tensor(number).item() for number in (1, 2)] + [float(torch.tensor(3.0))]",
        result=[1, 2, 3.0],
    ),
    # Memory
    Case(
        "blocks with dropout, all but the first call of the first",
        "checkpoint",
        "Block",
        BLOCKS + "model = nn.Sequential(*(Block() for _ in range(4)))\nresult = compare(model)",
        met=1,
        result=[7, 8, True],
        line="result = model(x)",
    ),
    Case(
        "blocks within blocks are not computed three times",
        "checkpoint",
        "Block",
        BLOCKS + "model = nn.Sequential(Block(), Block(Block()))\nresult = compare(model)",
        met=1,
        result=[5, 6, True],
    ),
    Case(
        "copies and files of a model are as they were",
        "checkpoint",
        "Block",
        BLOCKS
        + "import io, pickle\nmodel = nn.Sequential(Block(), Block())\ncompare(model)\ncounts[0] = 0\n"
        + "train(copy.deepcopy(model), torch.ones(2, 4))\nresult = [counts[0], 'call' in repr(model.state_dict())]",
        met=2,  # the copy is a model of its own
        result=[4, False],
    ),
    *(
        Case(name, "checkpoint", "Block", BLOCKS + source, met=met, result=[count, count, True], refused=refused)
        for name, source, met, count, refused in (
            (
                "running statistics would be updated twice",
                "result = compare(nn.Sequential(*(Block(nn.BatchNorm1d(4)) for _ in range(2))))",
                *(1, 2, "changes the buffer more."),
            ),
            (
                "a block that keeps its result",
                "class Keeping(nn.Module):\n    def forward(self, x):\n        self.loss = x.sum()\n        return x\n"
                "result = compare(nn.Sequential(*(Block(Keeping()) for _ in range(2))))",
                *(1, 2, "sets the attribute more.loss"),
            ),
            (
                "a list that grows with each call",
                "class Listing(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.seen = []\n"
                "    def forward(self, x):\n        self.seen.append(1)\n        return x\n"
                "result = compare(nn.Sequential(*(Block(Listing()) for _ in range(2))))",
                *(1, 2, "sets the attribute more.seen"),
            ),
            (
                "a result that is more than tensors",
                "class Result:\n    def __init__(self, value):\n        self.value = value\n"
                "class Wrap(nn.Module):\n    def forward(self, x):\n        return Result(x)\n"
                "result = compare(Block(Wrap()))",
                *(1, 1, "returns a Result"),
            ),
            (
                "hooks in a block",
                "model = nn.Sequential(Block(), Block())\nmodel[1].layer.register_forward_hook(lambda *_: None)\n"
                "result = compare(model)",
                *(0, 2, "a Linear has hooks"),
            ),
            (
                "a model that checkpoints already",
                "model = nn.Sequential(Block(), Block())\nmodel[0].gradient_checkpointing = True\n"
                "result = compare(model)",
                *(0, 2, "checkpoints already"),
            ),
            (
                "no block of that class",
                "class Block(Block): pass\nBlock.__name__ = 'Layer'\nresult = compare(Block())",
                0,
                1,
                "",
            ),
        )
    ),
    *(
        Case(name, "chunked-loss", "4", HEAD + f"result = compare(lambda logits, y: {loss})", met=1, result=[124, True])
        for name, loss in (
            ("a loss over all rows", "F.cross_entropy(logits.view(-1, 5000), y.view(-1))"),
            ("its module, a sum", "nn.CrossEntropyLoss(reduction='sum')(logits.reshape(496, 5000), y.flatten())"),
            ("smoothed", "F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)"),
        )
    ),
    Case(
        "shifted rows in float32",
        "chunked-loss",
        "4",
        HEAD + "result = compare(lambda logits, y: F.cross_entropy(\n"
        "    logits[..., :-1, :].contiguous().float().flatten(0, 1), y[:, 1:].flatten()))",
        met=1,
        result=[120, True],
    ),
    *(
        Case(name, "chunked-loss", "4", HEAD + source, result=[496, True], refused=refused)
        for name, source, refused in (
            (
                "logits that are read besides",
                "def loss_of(logits, y):\n    hits = (logits.argmax(-1) == y).sum()\n"
                "    return F.cross_entropy(logits.view(-1, 5000), y.view(-1)) + 0 * hits\nresult = compare(loss_of)",
                "besides the loss (argmax)",
            ),
            (
                "classes with weights",
                "result = compare(lambda logits, y: F.cross_entropy("
                "logits.view(-1, 5000), y.view(-1), weight=torch.ones(5000)))",
                "weighs its classes",
            ),
            (
                "losses of single rows",
                "result = compare(lambda logits, y: F.cross_entropy("
                "logits.view(-1, 5000), y.view(-1), reduction='none').max())",
                "not added up over the rows (reduction='none')",
            ),
            (
                "a loss by hand",
                "result = compare(lambda logits, y: -logits.view(-1, 5000).log_softmax(-1)[:, 0].mean())",
                "besides the loss (log_softmax)",
            ),
            (
                "a layer with hooks",
                "model = Model()\nmodel.head.register_forward_hook(lambda *_: None)\n"
                "result = compare(lambda logits, y: F.cross_entropy(logits.view(-1, 5000), y.view(-1)), model)",
                "has hooks",
            ),
        )
    ),
    Case(
        "sums in bfloat16",
        "chunked-loss",
        "4",
        HEAD + "def loss_of(logits, y):\n    return F.cross_entropy(logits.view(-1, 5000), y.view(-1))\n"
        "loss_of(Model().bfloat16()(torch.randn(4, 31, 8).bfloat16()), torch.randint(5000, (4, 31))).backward()",
        refused="the loss of torch.bfloat16 logits",
    ),
    Case(
        "few classes",
        "chunked-loss",
        "4",
        HEAD + "model = nn.Linear(8, 10)\nF.cross_entropy(model(torch.ones(4, 8)), torch.ones(4).long()).backward()",
    ),
]


def run_cases(cases: list[Case], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The answer to each case, by its name."""
    points = {each.name: each for each in entry_points(group="perfdoctor.changes")}
    questions = []
    for case in cases:
        file, class_name = str(EXAMPLE), "AnyOrder"
        if case.change != "any-order":
            module, _, class_name = points[case.change].value.partition(":")
            spec = find_spec(module)
            assert spec is not None
            file = str(spec.origin)
        place = {"file": file, "class_name": class_name, "environment": dict(case.environment)}
        questions.append({**asdict(case), **place})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(questions),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ANSWERS" in done.stdout, done.stderr
    answers = json.loads(done.stdout.partition("ANSWERS")[2])
    return {case.name: answer for case, answer in zip(cases, answers, strict=True)}


def describe_difference(case: Case, answer: dict[str, Any]) -> str:
    """What an answer has that the case does not expect; empty where all is as expected."""
    if "failed" in answer or answer["error"]:
        return str(answer.get("failed") or answer["error"])
    if case.refused not in answer["refused"] or bool(case.refused) != bool(answer["refused"]):
        return f"refused because {answer['refused']!r}"
    if (answer["met"], answer["result"]) != (case.met, case.result):
        return f"met {answer['met']} with {answer['result']}, not {case.met} with {case.result}"
    lines = case.source.splitlines()
    places = [place for place in answer["locations"] if Path(place["file"]).name == "case.py"]
    is_at_line = any(case.line in lines[place["line"] - 1] for place in places)
    return "" if is_at_line or not case.line else f"met at {places}, not at {case.line}"


# One test: workers of pytest that share the cases would each import torch and run all of them.
@pytest.mark.skipif(not hasattr(os, "fork"), reason="cases are forks of one process")
def test_changes_apply_where_they_fit_and_nowhere_else() -> None:
    pytest.importorskip("torch")
    # MKL heeds its own variable first, which a command that ran in this process may have left.
    answers = run_cases(CASES, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    found = [(case.change, case.name, describe_difference(case, answers[case.name])) for case in CASES]
    assert not [each for each in found if each[2]]


def test_each_change_has_cases_that_fire_and_cases_that_stay_quiet() -> None:
    own = {each.name for each in entry_points(group="perfdoctor.changes") if each.value.startswith("perfdoctor.")}
    assert {case.change for case in CASES if case.met} == own | {"any-order"}
    assert {case.change for case in CASES if not case.met} == own | {"any-order"}
