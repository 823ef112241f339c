"""Click groups: one suggests the command that was meant, one imports commands when called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class SuggestingGroup(click.Group):
    """A word that is no command is answered with those it may have been meant for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names."""
        name = args[0]
        if name[:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            import difflib  # only wanted when something is wrong

            near = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
    """``commands_by_name`` maps a name to ("module:attribute", one line of help)."""

    def __init__(
        self, *arguments: Any, commands_by_name: Mapping[str, tuple[str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.commands_by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the table."""
        return [*self.commands_by_name, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command."""
        entry = self.commands_by_name.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = entry[0].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry[0]} is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing any."""
        rows = [(name, help_text) for name, (_, help_text) in self.commands_by_name.items()]
        rows += [
            (name, command.get_short_help_str())
            for name, command in sorted(self.commands.items())
            if not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
