"""What a fix could save at most.

A kernel that gets faster shortens the step only as far as the CPU waits for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.diagnosis.idle import blocking_calls
from perfdoctor.trace import intervals as iv

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

_LAUNCH_CALL = r"Launch(Kernel|CooperativeKernel|KernelExC|KernelEx|GraphExec)?|GraphLaunch"
# A launch takes 3 to 10 us; one that takes this long stood before a full launch queue (1,024 entries on CUDA), which
# is waiting too.
_FULL_QUEUE_NS = 100_000


def cpu_wait_ns(run: RankRun) -> int | None:
    """How long the CPU waited for the GPU in the window, in ns: the ceiling of all kernel-side savings together.

    Blocked time in synchronize and copy calls and before a full launch queue, plus the tail that the GPU worked on
    after the last CPU event of the window. With the CPU's own work unchanged no faster kernel can save more
    (Daydream, USENIX ATC'20, argues the same on a dependency graph). None when the trace has no calls: then nothing
    is known about the CPU.
    """
    trace, calls = run.trace, run.trace.calls
    if not len(calls) or not len(run.window):
        return None
    waits = blocking_calls(trace) | (trace.named(calls, _LAUNCH_CALL) & (calls.dur_ns > _FULL_QUEUE_NS))
    blocked = iv.intersect(iv.union(calls.start_ns[waits], calls.end_ns[waits]), run.window)
    return iv.total(blocked) + _tail_ns(run)


def _tail_ns(run: RankRun) -> int:
    """From the end of the last CPU event of the window to the end of the last GPU item in it."""
    end = int(run.window[-1, 1])
    last = max((_last_end(t.start_ns, t.end_ns, end) for t in (run.trace.ops, run.trace.calls)), default=end)
    gpu_end = _last_end(run.trace.gpu.start_ns, run.trace.gpu.end_ns, end)
    return max(0, gpu_end - last)


def _last_end(start: iv.Int64Array, end: iv.Int64Array, limit: int) -> int:
    inside = end[start < limit]
    return min(int(inside.max()), limit) if len(inside) else int(np.iinfo(np.int64).min)
