"""Start the ranks of a program and wait for all, as launchers do that end no rank because another one has failed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main() -> int:
    """The exit code of the first rank that has failed, else 0."""
    size, command = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, *command], env={**os.environ, **values, "RANK": str(rank)})
        for rank in range(size)
    ]
    # In this order: the second is the one that ends early, and nobody has waited for it then.
    codes = [children[rank].wait() for rank in (0, *range(2, size), 1)]
    return next((1 for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
