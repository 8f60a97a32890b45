"""`python -m benchmarks.profiles [NAME...]`: record each script with its own torch.profiler, and read the report.

The first line of a script says what is true of it, as written before a report was read, and `# says:` what a report
that is right about it says, as a pattern: one that is not found is a wrong report, or one that says it in other words.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import perfdoctor
from benchmarks.run_python import ProgramFailedError, run_python
from perfdoctor.reporters.verdict import verdict_of

SCRIPTS = Path(__file__).parent / "scripts"


def check_script(script: Path) -> bool:
    """Record a script and print what its report says; returns whether that is right."""
    text = script.read_text()
    words = re.findall(r"^# says: (.*)$", text, re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as folder:
        ranks = "import torch.distributed" in text
        start = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if ranks else []
        run_python([*start, str(script), folder], SCRIPTS)
        report = perfdoctor.analyze(folder)
    said = " ".join((verdict_of(report), *(each.title for each in report.findings)))
    is_right = re.search(words, said, re.IGNORECASE)
    print(f"{'right' if is_right else 'WRONG'} {script.stem}: {verdict_of(report)}", flush=True)
    return bool(is_right)


def main() -> int:
    """Check the scripts that are named, else all."""
    scripts = [each for each in sorted(SCRIPTS.glob("*.py")) if each.stem != "models"]
    chosen = [each for each in scripts if not sys.argv[1:] or each.stem in sys.argv[1:]]
    right = 0
    for script in chosen:
        try:
            right += check_script(script)
        except ProgramFailedError as error:
            print(f"FAILED {script.stem}: {str(error).splitlines()[-1]}")
    print(f"{right} of {len(chosen)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
