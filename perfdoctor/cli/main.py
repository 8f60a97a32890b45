"""The entry point: builds the application, runs it, and turns errors into one line on stderr and an exit code.

Exit codes: 0 done; 1 a gate that was asked for failed or could not be judged; 2 usage or unreadable input; 3 a fault
of ours. `run` returns the program's own.
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
from typing import Annotated, cast

import typer

from perfdoctor.cli.light import LightCommand, LightGroup
from perfdoctor.errors import PerfdoctorError
from perfdoctor.reporters.wording import clean

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # what stands behind `run`
# What each does, in a line; the function is called like its module, and its docstring is its --help.
_COMMANDS = {
    "run": "Run a program as it is, record it, and say why it is slow.",
    "analyze": "Say why a recorded step is slow, and what to change.",
    "export": "Annotate a trace for Perfetto and chrome://tracing.",
    "compare": "Compare two recordings (comes in a later version).",
    "rules": "List the rules.",
    "explain": "Tell one rule in full.",
    "check": "Say whether this machine can record and analyse.",
    "calibrate": "Measure this machine's GPU or CPU for later analyses.",
}
_OURS = 3
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as shells report a program that SIGPIPE ended
_YOUNG_OBJECTS = 200_000


def _print_version(wanted: bool) -> None:
    if wanted:
        import perfdoctor

        typer.echo(f"perfdoctor {perfdoctor.__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Why is my PyTorch training step slow, which line do I change, and how much will it give me?"""


def application(only: str = "") -> typer.Typer:
    """The command line as a Typer application.

    Args:
        only: the name of the command that is going to run: importing and building all of them takes 15 ms. They are
            all there where no command is called so.
    """
    app = typer.Typer(
        cls=LightGroup,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help: importing rich takes longer than all the rest
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [only] if only in _COMMANDS else _COMMANDS:
        module = import_module(f"perfdoctor.cli.{name}")
        kind, settings = (module.RunCommand, _PASS_ON) if name == "run" else (LightCommand, None)
        app.command(cls=kind, short_help=_COMMANDS[name], context_settings=settings)(getattr(module, name))
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises.

    Args:
        argv: the arguments behind the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    if argv is None:
        _own_process()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _invoke(args or ["--help"])
        sys.stdout.flush()
    except PerfdoctorError as error:
        return _said(f"perfdoctor: {clean(str(error))}", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        return _quiet_pipe()
    except MemoryError:
        return _said("perfdoctor: there is not enough memory for this; give less, or use a machine with more", 2)
    except Exception as error:
        return _complain(error, args)
    return code


def _own_process() -> None:
    """Look for garbage seldom: a short process makes little, and looking through 600 modules takes a tenth of a second.

    Nor is there any use in looking once more at the end. What was closed before we began (``>&-``) leads nowhere.
    """
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)


def _invoke(args: list[str]) -> int:
    """The exit code of a command; usage errors of the parser become ours."""
    command = typer.main.get_command(application(only=args[0]))
    try:
        result = command.main(args=args, prog_name="perfdoctor", standalone_mode=False)
    except _parser_error() as error:
        words = error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "perfdoctor"
        return _said(f"perfdoctor: {clean(words)}; see {path} --help", 2)
    return result if isinstance(result, int) else 0


def _parser_error() -> type[typer.BadParameter]:
    """The class of all errors of the parser, which Typer has under different roofs in different versions."""
    found = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    return cast("type[typer.BadParameter]", found)


def _complain(error: Exception, args: list[str]) -> int:
    """Say that the fault is ours, and how to report it."""
    # Behind `run` stands the program of the user, whose -v is its own.
    verbose = args[:1] != ["run"] and bool({"-v", "--verbose"} & set(args))
    if verbose or os.environ.get("PERFDOCTOR_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    where = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" ({os.path.basename(where[0].filename)}:{where[0].lineno})" if where else ""
    return _said(
        f"perfdoctor: internal error, which is our fault: {type(error).__name__}: {clean(str(error))}{at}; "
        "run again with PERFDOCTOR_DEBUG=1 and report what it prints",
        _OURS,
    )


def _said(line: str, code: int) -> int:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with suppress(OSError):  # nobody listens
        sys.stderr.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    return code


def _quiet_pipe() -> int:
    """The reader of our output has gone."""
    from perfdoctor.reporters.output import silence

    silence()
    return _BROKEN_PIPE
