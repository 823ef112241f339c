"""``oberth completion``: a script for the shell, with which Tab completes commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what completes commands and options in a shell.

    bash: add eval "$(oberth completion bash)" to ~/.bashrc; zsh: the same with zsh to ~/.zshrc;
    fish: oberth completion fish > ~/.config/fish/completions/oberth.fish

    Example: oberth completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click brings all three
    root = context.find_root().command
    click.echo(kind(root, {}, "oberth", "_OBERTH_COMPLETE").source())
