"""`perfdoctor completion`: what a shell needs to complete our commands."""

from __future__ import annotations

import click

from perfdoctor.cli import parameters
from perfdoctor.cli.shell_values import COMPLETION_REQUEST
from perfdoctor.reporters.output import write_stdout


@click.command(
    short_help="Print what a shell needs to complete commands.",
    epilog=parameters.format_examples(
        "perfdoctor completion bash > ~/.perfdoctor-completion.bash",
        "perfdoctor completion zsh > ~/.zfunc/_perfdoctor",
        "perfdoctor completion fish > ~/.config/fish/completions/perfdoctor.fish",
    ),
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the function with which a shell completes commands, options, rules and paths.

    Bash: source the file in ~/.bashrc. Zsh: write it to a folder of $fpath before compinit runs. Fish: nothing more.
    """
    from click.shell_completion import get_completion_class

    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    write_stdout(shell_class(ctx.find_root().command, {}, "perfdoctor", COMPLETION_REQUEST).source())
