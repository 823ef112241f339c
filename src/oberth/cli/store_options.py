"""What all `oberth store` commands have in common: the directory, Apache's options, --json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from oberth.errors import OptionError
from oberth.formats.broker_conf import parse_assignments
from oberth.store.offline.layout import parse_broker_conf

F = TypeVar("F", bound=Callable[..., Any])

directory_argument = click.argument("directory", metavar="DIR", type=click.Path())

config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="broker.conf with the store's options; without one, sizes are taken from the files.",
)
set_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting by Apache's name; overrides that of -c; {root} stands for DIR. Repeatable.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


def store_options(command: F) -> F:
    """DIR, -c, --set and --json."""
    for decorate in (json_option, set_option, config_option, directory_argument):
        command = decorate(command)
    return command


def read_entries(config: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    """The options that -c and --set give.

    Raises:
        click.UsageError: a --set that is not key=value.
        StoreError: the file cannot be read.
    """
    try:
        overrides = parse_assignments(settings)
    except OptionError as error:
        raise click.UsageError(f"--set {error}") from None
    return parse_broker_conf(config, overrides)
