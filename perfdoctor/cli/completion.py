"""`perfdoctor completion`: what a shell needs to complete our commands."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from perfdoctor.cli import parameters


@parameters.command(
    "perfdoctor completion bash > ~/.perfdoctor-completion.bash",
    "perfdoctor completion zsh > ~/.zfunc/_perfdoctor",
    "perfdoctor completion fish > ~/.config/fish/completions/perfdoctor.fish",
)
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"],
        typer.Argument(metavar="SHELL", show_default=False, help="bash, zsh, fish or powershell."),
    ],
) -> None:
    """Print the function with which a shell completes commands, options, rules and paths.

    Bash: source the file in ~/.bashrc. Zsh: write it to a folder of $fpath before compinit runs. Fish: nothing more.
    `perfdoctor --install-completion` does all that for the shell it is typed in.
    """
    typer.echo(get_completion_script(prog_name="perfdoctor", complete_var="_PERFDOCTOR_COMPLETE", shell=shell))
