#!/usr/bin/env bash
# Everything that needs a GPU, in one go and in under 9 minutes:
#
#     benchmarks/gpu/run.sh OUT [WHEELS] [--deadline SECONDS] [--only STAGE,STAGE] [--device cpu] [--dry]
#
# WHEELS is a folder of wheels for a machine without a network (collect_wheels.sh fills one). OUT gets summary.json,
# README.md and results.tar.gz. `--device cpu --dry` tries every stage with small sizes on a machine without a GPU.
# PYTHON names the Python to use; otherwise one that has torch is preferred. The exit code is 0 unless nothing ran.
set -u

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd) || exit 2
if [[ $# -eq 0 || $1 == -* ]]; then
    echo "usage: run.sh OUT [WHEELS] [--deadline SECONDS] [--only STAGE,STAGE] [--device cpu] [--dry]" >&2
    exit 2
fi

# The first Python that fulfils a condition; a condition is an expression over `sys` and `find_spec`.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10 python; do
        if [[ -n $candidate ]] && timeout 20 "$candidate" -c "
import sys
from importlib.util import find_spec
sys.exit(not ($1))" 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

python=$(find_python 'sys.version_info >= (3, 11) and find_spec("torch")') ||
    python=$(find_python 'sys.version_info >= (3, 11)') ||
    python=$(find_python 'sys.version_info >= (3, 10)') || {
    echo "run.sh needs Python 3.10 or later (3.11 for perfdoctor itself), and none was found; set PYTHON" >&2
    exit 2
}

exec "$python" "$here/run_stages.py" "$@"
