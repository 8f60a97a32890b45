#!/usr/bin/env bash
# Fetches the wheels that run.sh needs on a machine without a network, and says how large they are:
#
#     benchmarks/gpu/collect_wheels.sh WHEELS [PYTHON] [NAME...]
#
# PYTHON is the version there (3.12). Each NAME is a package that is there already and is left out: numpy is most of the
# size. torch is never fetched: it is too large to carry, and its build belongs to the machine. The C library that traces
# are read with is built into WHEELS by zig (pip install ziglang); without it the machine needs a C compiler of its own.
# For Linux on x86-64; set MACHINE=aarch64 for Arm.
set -eu

if [[ $# -eq 0 || $1 == -* ]]; then
    echo "usage: collect_wheels.sh WHEELS [PYTHON] [NAME...]" >&2
    exit 2
fi
wheels=$1
python_version=${2:-3.12}
there=("${@:3}")
machine=${MACHINE:-x86_64}
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)

platforms=()
for glibc in 17 24 26 27 28 31 34; do # pip matches each name exactly
    platforms+=(--platform "manylinux_2_${glibc}_$machine")
done
platforms+=(--platform "manylinux2014_$machine")

requirements=$(mktemp)
trap 'rm -f -- "$requirements"' EXIT
"${PYTHON:-python3}" - "$root" >"$requirements" <<'PROGRAM'
import sys
import tomllib

sys.path.insert(0, sys.argv[1] + "/benchmarks/gpu")
from make_environment import TEST_PACKAGES

with open(sys.argv[1] + "/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print("\n".join([*project["dependencies"], *TEST_PACKAGES, "pip"]))
PROGRAM

mkdir -p -- "$wheels"
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
    --python-version "$python_version" --implementation cp "${platforms[@]}" \
    --dest "$wheels" --requirement "$requirements"
for name in "${there[@]+"${there[@]}"}"; do
    rm -f -- "$wheels/${name//-/_}"-[0-9]*.whl
done

PYTHONPATH=$root "${PYTHON:-python3}" - "$wheels" "$machine" <<'PROGRAM' || echo "no C library in $wheels: the machine needs a C compiler" >&2
import sys
from pathlib import Path

from build_backend.compilers import CompilerError, zig_compiler
from build_backend.core_library import compile_core
from build_backend.targets import TARGETS

folder, machine = sys.argv[1:]
try:
    compile_core(zig_compiler(TARGETS["glibc", machine]), Path(folder).resolve())
except CompilerError as error:
    sys.exit(str(error))
PROGRAM
du -ch -- "$wheels"/* | sort -h
