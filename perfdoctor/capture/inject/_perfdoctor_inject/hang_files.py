"""The files by which a process and its parent speak of a hang; without torch, for both of them."""

from __future__ import annotations

import os
import signal
import struct

HANG_FOLDER, REQUEST_FILE = "hang", "request"
# torch's own name, so that its analyzer reads the folder, too.
DUMP_NAME, ANSWER_NAME = "nccl_trace_rank_{}", "rank_{}.json"
# Unused by Python, torch and schedulers; a process without our handler is never sent it.
STACK_SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
# Rank, pid, whether it has ended, steps, the slowest step in s, and when the last one ended, in s since the epoch.
BEAT = struct.Struct("<QQQQdd")
# Between two looks at what moves: a thread that works is seen to run in it.
SAMPLE_S = 1.0


def write_whole(path: str, data: bytes) -> None:
    """Write a file that no reader sees in parts."""
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    os.replace(f"{path}.part", path)
