"""The entry point: runs one command, and turns errors into one line on stderr and an exit code.

Exit codes: 0 done; 1 a gate that was asked for failed or could not be judged; 2 wrong usage or unreadable input; 3 a
fault of ours. `run` returns the exit code of the user's program.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from perfdoctor.errors import PerfdoctorError
from perfdoctor.reporters.clean_text import clean_line

# In the order of --help. Each is a file of this folder, and the command in it is called like the file.
COMMANDS = {
    "run": "Run a program as it is, record it, and say why it is slow.",
    "analyze": "Say why a recorded step is slow, and what to change.",
    "demo": "Show the report on an example that ships with it.",
    "guide": "Answer each advice of the field guide for a recording.",
    "show": "Show the kernels, ops, gemms, ... of a trace as a table.",
    "export": "Annotate a trace for Perfetto and chrome://tracing.",
    "compare": "Say what got faster or slower between two recordings.",
    "expect": "Say what the step should take on another GPU, or on its own.",
    "try": "Try the advice on the program itself, and measure it.",
    "fix": "Make the advised edits in a copy, measure them, write a patch.",
    "watch": "Show how a recorded program is doing while it runs.",
    "record": "Record a window of a running program now.",
    "attach": "Record a window of a program that was not started by us.",
    "rules": "List the rules.",
    "explain": "Explain one rule in full.",
    "new-rule": "Write the files of a new rule.",
    "check": "Say whether this machine can record and analyse.",
    "measure": "Measure cheaper forms of what a capture computes.",
    "calibrate": "Measure this machine's GPU or CPU for later analyses.",
    "mcp": "Serve analyses to coding agents, by the Model Context Protocol.",
    "completion": "Print what a shell needs to complete commands.",
}
# What follows them belongs to the user's program.
_RUN_PROGRAMS = ("run", "try", "fix")
# In which a shell asks what can follow: Typer's completion sets it.
_COMPLETION_REQUEST = "_PERFDOCTOR_COMPLETE"
_INTERNAL_ERROR = 3
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as shells report a program that SIGPIPE ended
_GC_THRESHOLD = 200_000
# The base of what Typer's parser raises, which has no public name of its own.
_ParserError: Any = typer.BadParameter.__mro__[1]


class CommandGroup(TyperGroup):
    """The commands, each imported when it is called: --help, which names them all, needs the lines above."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called, or None where a shell asks about one that does not exist."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load_command(listed.name or ""), rest


def load_command(name: str) -> TyperCommand:
    """Import a command.

    Args:
        name: One of COMMANDS.
    """
    module = module_of(name)
    command: TyperCommand = getattr(import_module(f"perfdoctor.cli.{module}"), module)
    return command


def module_of(command: str) -> str:
    """The file of a command, without its suffix: a keyword of Python gets an underscore."""
    name = command.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _print_version(wanted: bool) -> None:
    if wanted:
        from perfdoctor.installed_packages import find_version

        typer.echo(f"perfdoctor {find_version()}")
        raise typer.Exit


app = typer.Typer(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
Examples:
  perfdoctor demo
  perfdoctor run train.py --epochs 1
  perfdoctor analyze trace.json.gz
  perfdoctor guide trace.json.gz
  perfdoctor show kernels trace.json.gz
  perfdoctor explain PD101
  perfdoctor try train.py --epochs 1
  perfdoctor compare before/ after/""",
)


@app.callback()
def _describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Why is my PyTorch training step slow, which line do I change, and how much will it give me?"""


for _name, _does in COMMANDS.items():
    app.command(_name, help=_does)(lambda: None)
cli = typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises.

    Args:
        argv: The arguments after the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    if argv is None:
        _prepare_process()
        if _COMPLETION_REQUEST in os.environ:
            return _complete()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run_command(args or ["--help"])
        sys.stdout.flush()
    except PerfdoctorError as error:
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return _BROKEN_PIPE
    except MemoryError:
        _print_error("there is not enough memory for this; give less, or use a machine with more")
        return 2
    except Exception as error:
        _print_internal_error(error, args)
        return _INTERNAL_ERROR
    return code


def _prepare_process() -> None:
    """Set up a process that runs nothing but this command line.

    The garbage collector runs rarely and not at the end: a short process makes little garbage, and a collection over
    600 modules takes 0.1 s. A standard stream that was closed before we started (``>&-``) writes to nowhere.
    """
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    gc.set_threshold(_GC_THRESHOLD)
    atexit.register(gc.freeze)


def _complete() -> int:
    """Answer a shell that asks what can follow; nothing but answers may appear in the middle of a typed line."""
    try:
        cli.main([], "perfdoctor")
    except SystemExit as answered:
        return int(answered.code or 0)
    except Exception:
        return 1
    return 0


def _run_command(args: list[str]) -> int:
    """The exit code of a command; a usage error of the parser becomes one line on stderr."""
    try:
        with cli.make_context("perfdoctor", args) as context:
            result = cli.invoke(context)
    except typer.Exit as done:  # --help and --version
        return done.exit_code
    except _ParserError as error:
        command = error.ctx.command_path if error.ctx else " ".join(("perfdoctor", *args[:1]))
        _print_error(f"{error.format_message().rstrip('.')}; see {command} --help")
        return 2
    return result if isinstance(result, int) else 0


def _print_internal_error(error: Exception, args: list[str]) -> None:
    """Say that the fault is ours, and how to report it."""
    # After `run`, `try` and `fix` come the arguments of the user's program, whose -v is its own.
    verbose = args[:1] not in ([name] for name in _RUN_PROGRAMS) and bool({"-v", "--verbose"} & set(args))
    if verbose or os.environ.get("PERFDOCTOR_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    where = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" ({os.path.basename(where[0].filename)}:{where[0].lineno})" if where else ""
    _print_error(
        f"internal error, which is our fault: {type(error).__name__}: {clean_line(str(error))}{at}; "
        f"run again with PERFDOCTOR_DEBUG=1 and report what it prints{_where_to_report()}"
    )


def _where_to_report() -> str:
    """The page for reports, as the installed package names it; empty where that cannot be read."""
    from importlib.metadata import metadata

    with suppress(Exception):  # the fault that is reported matters more
        for line in metadata("perfdoctor").get_all("Project-URL") or ():
            name, _, address = line.partition(", ")
            if name == "Issues":
                return f" at {clean_line(address)}"
    return ""


def _print_error(message: str) -> None:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    line = f"perfdoctor: {clean_line(message)}\n"
    with suppress(OSError):  # stderr is closed
        sys.stderr.write(line.encode(encoding, "replace").decode(encoding))


def _discard_stdout() -> None:
    """Discard what is left to print: the reader of our output has gone."""
    from perfdoctor.reporters.output import discard_stdout

    discard_stdout()
