"""``oberth cluster config``: the settings of running brokers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from oberth.broker.config_changes import is_secret
from oberth.broker.known_settings import (
    HIDDEN,
    is_same_setting,
    known_defaults,
    known_options,
    shown_setting,
)
from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, broker_address, json_option, namesrv_option, parse_pairs, show
from oberth.errors import OptionError, UnknownOptionError

if TYPE_CHECKING:
    from oberth.client.admin import Admin

EXIT_NOT_TAKEN: Final = 1


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show and change the settings of a running broker, ours or Apache's.

    BROKER is a broker's name, which stands for its master, or its address.

    Example: oberth cluster config diff broker-a
    """


@config.command()
@click.argument("broker")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@namesrv_option
@json_option
def get(broker: str, keys: tuple[str, ...], namesrv: str, as_json: bool) -> None:
    """Show settings of BROKER: all of them, or those that are named.

    Example: oberth cluster config get broker-a fileReservedTime deleteWhen
    """
    _, found = ask(namesrv, lambda admin: _read(admin, broker), names_broker=True)
    for key in keys:
        _check_known(key, found)
    chosen = {key: found[key] for key in sorted(keys or found)}
    if as_json:
        write_json({key: _typed(key, text) for key, text in chosen.items()})
    else:
        show(
            False,
            ["key", "value"],
            [[key, shown_setting(key, text)] for key, text in chosen.items()],
        )


@config.command()
@click.argument("broker")
@namesrv_option
@json_option
def diff(broker: str, namesrv: str, as_json: bool) -> None:
    """Show the settings of BROKER that differ from the default.

    Defaults are those of docs/settings.md. Settings of Apache's brokers that are not in it have no
    known default and are left out; how many those are is said.
    """
    _, found = ask(namesrv, lambda admin: _read(admin, broker), names_broker=True)
    known = known_defaults()
    rows = [
        [key, shown_setting(key, text), shown_setting(key, known[key])]
        for key, text in sorted(found.items())
        if key in known and not is_same_setting(key, text, known[key])
    ]
    if as_json:
        write_json(
            [
                {"key": key, "value": _typed(key, found[key]), "default": _typed(key, known[key])}
                for key, *_ in rows
            ]
        )
    else:
        show(False, ["key", "value", "default"], rows)
    left = len(found.keys() - known.keys())
    say(
        f"{len(rows)} of {len(found)} differ" + (f", of {left} no default is known" if left else "")
    )


@config.command("set")
@click.argument("broker")
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@namesrv_option
@json_option
def set_(
    broker: str, settings: tuple[str, ...], dry_run: bool, namesrv: str, as_json: bool
) -> None:
    """Change settings of BROKER while it runs; what changes is said before it is done.

    The settings are read again afterwards: exit code 1 if the broker did not take one, as Apache's
    brokers do without a word. A broker keeps changes in the file of its -c, and without one until
    it stops.

    Example: oberth cluster config set broker-a fileReservedTime=24 --dry-run
    """
    wanted = parse_pairs(settings, "setting")

    async def change(admin: Admin) -> tuple[str, dict[str, str], dict[str, str]]:
        address, before = await _read(admin, broker)
        for key, text in wanted.items():
            _check_known(key, before)
            if (option := known_options().get(key)) is not None:
                option.parse(text)
        changes = {
            key: text for key, text in wanted.items() if not is_same_setting(key, before[key], text)
        }
        for key, text in wanted.items():
            old, new = shown_setting(key, before[key]), shown_setting(key, text)
            say(f"{address} {key}: " + (f"{old} -> {new}" if key in changes else f"{old} already"))
        if changes and not dry_run:
            await admin.update_broker_config(address, changes)
            _, after = await _read(admin, address)
        else:
            after = before | changes
        return address, before, after

    address, before, after = ask(namesrv, change, names_broker=True)
    # What a broker does not show again, a secret, cannot be compared.
    refused = [
        key
        for key, text in wanted.items()
        if not is_secret(key) and not is_same_setting(key, after.get(key, ""), text)
    ]
    if as_json:
        rows = [
            {
                "key": key,
                "before": _typed(key, before[key]),
                "after": _typed(key, after.get(key, "")),
            }
            for key in wanted
        ]
        write_json({"broker": address, "dryRun": dry_run, "changes": rows})
    if refused:
        say(f"{address} did not take {', '.join(refused)}")
        sys.exit(EXIT_NOT_TAKEN)


async def _read(admin: Admin, broker: str) -> tuple[str, dict[str, str]]:
    address = await broker_address(admin, broker)
    return address, await admin.broker_config(address)


def _check_known(key: str, found: dict[str, str]) -> None:
    from oberth.formats.options import unknown_key_message

    if key not in found:
        raise UnknownOptionError(unknown_key_message(key, found))


def _typed(key: str, text: str) -> Any:
    """A setting as JSON has it: numbers and booleans where the option is one."""
    if is_secret(key):
        return HIDDEN if text else ""
    option = known_options().get(key)
    if option is None or option.kind not in (bool, int, float):
        return text
    try:
        return option.parse(text)
    except OptionError:
        return text  # Apache's may be of another kind, or wider
