"""The table of advice: for each situation its rows, the most particular program first, any program last."""

from __future__ import annotations

from perfdoctor.rules.advice.autograd_rows import AUTOGRAD_ROWS
from perfdoctor.rules.advice.data_parallel_rows import RANK_ROWS, WRAPPER_ROWS
from perfdoctor.rules.advice.exposed_collective_rows import EXPOSED_ROWS
from perfdoctor.rules.advice.fusion_rows import FUSION_ROWS
from perfdoctor.rules.advice.host_pause_rows import HOST_PAUSE_ROWS
from perfdoctor.rules.advice.launch_rows import LAUNCH_ROWS
from perfdoctor.rules.advice.loader_rows import LOADER_ROWS
from perfdoctor.rules.advice.matrix_rows import MATRIX_ROWS
from perfdoctor.rules.advice.memory_rows import MEMORY_ROWS
from perfdoctor.rules.advice.pause_rows import PAUSE_ROWS
from perfdoctor.rules.advice.precision_rows import PRECISION_ROWS
from perfdoctor.rules.advice.slow_kernel_rows import SLOW_KERNEL_ROWS
from perfdoctor.rules.advice.small_collective_rows import SMALL_ROWS
from perfdoctor.rules.advice.sync_rows import COPY_ROWS, SYNC_ROWS
from perfdoctor.rules.advice.transfer_rows import TRANSFER_ROWS
from perfdoctor.rules.advice.update_rows import UPDATE_ROWS

TABLE = (
    *LOADER_ROWS,
    *PAUSE_ROWS,
    *SYNC_ROWS,
    *COPY_ROWS,
    *LAUNCH_ROWS,
    *HOST_PAUSE_ROWS,
    *MEMORY_ROWS,
    *PRECISION_ROWS,
    *TRANSFER_ROWS,
    *MATRIX_ROWS,
    *SLOW_KERNEL_ROWS,
    *FUSION_ROWS,
    *UPDATE_ROWS,
    *EXPOSED_ROWS,
    *SMALL_ROWS,
    *WRAPPER_ROWS,
    *RANK_ROWS,
    *AUTOGRAD_ROWS,
)
"""All rows, in the order of the rules that ask for them."""
