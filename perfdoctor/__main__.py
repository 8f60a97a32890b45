"""`python -m perfdoctor`: the command line."""

from __future__ import annotations

import sys

from perfdoctor.cli.main import main

sys.exit(main())
