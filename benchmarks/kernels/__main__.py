"""`python -m benchmarks.kernels [CSV]`."""

from __future__ import annotations

import sys

from benchmarks.kernels.confusion import main

raise SystemExit(main(sys.argv[1:]))
