"""Settings of a running broker: what differs from the default, with what each does; changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.broker.config_changes import is_secret
from oberth.broker.known_settings import (
    is_same_setting,
    known_defaults,
    known_options,
    shown_setting,
)
from oberth.console import texts
from oberth.console.cluster import BrokerKey, Part
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.pages.overview import broker_key
from oberth.console.security import Form
from oberth.console.writes import Outcome, Plan, required
from oberth.errors import OptionError, RemotingError, UnknownOptionError
from oberth.formats.options import unknown_key_message


def first_choice(
    keys: Sequence[BrokerKey], answers: Mapping[BrokerKey, dict[str, str]]
) -> BrokerKey:
    """The first broker that has answered the console; the first one if none has."""
    return next((each for each in keys if answers[each]), keys[0])


async def settings(console: Console, request: Request) -> Response:
    """The settings of one broker."""
    query = request.query_params
    state = await console.cluster.soon(Part.BROKERS)
    keys = sorted(state.brokers, key=lambda each: (each.name, each.broker_id))
    if not keys:
        raise OptionError("no broker has registered")
    address = query.get("address")
    chosen = broker_key(state, address) if address else first_choice(keys, state.brokers)
    found: dict[str, str] = {}
    problem = ""
    try:
        found = await console.admin_of(request).broker_config(chosen.address)
    except RemotingError as error:
        problem = f"{chosen.name} does not answer: {error}"
    defaults = known_defaults()
    text, shows_all = query.get("q", "").strip(), query.get("all") == "1"
    rows = [_row(key, value) for key, value in sorted(found.items())]
    differing = sum(row["differs"] for row in rows)
    if text:
        lowered = text.lower()
        rows = [row for row in rows if lowered in f"{row['key']} {row['doc']}".lower()]
    elif not shows_all:
        rows = [row for row in rows if row["differs"]]
    return console.render(
        request,
        "settings.html",
        502 if problem else 200,
        problem=problem,
        brokers=keys,
        chosen=chosen,
        rows=rows,
        text=text,
        shows_all=shows_all,
        count=len(found),
        differing=differing,
        unknown=len(found.keys() - defaults.keys()),
    )


def _row(key: str, value: str) -> dict[str, Any]:
    defaults, option = known_defaults(), known_options().get(key)
    default = defaults.get(key)
    return {
        "key": key,
        "value": shown_setting(key, value),
        "default": None if default is None else shown_setting(key, default),
        "differs": default is not None and not is_same_setting(key, value, default),
        "doc": "" if option is None else option.doc,
        "is_secret": is_secret(key),
    }


async def _read(asker: Asker, form: Form) -> tuple[str, str, str, dict[str, str]]:
    """Address, key, wanted text, and the settings as they are."""
    state = await asker.console.cluster.fresh()
    address = broker_key(state, required(form, "address", "the broker")).address
    key = required(form, "key", "the setting's name")
    found = await asker.admin.broker_config(address)
    if key not in found:
        raise UnknownOptionError(unknown_key_message(key, found))
    value = form.fields.get("value", "").strip()
    if is_secret(key):
        raise OptionError(f"{key} holds a secret: change it in the broker's file")
    if (option := known_options().get(key)) is not None:
        option.parse(value)
    return address, key, value, found


async def _plan_set(asker: Asker, form: Form) -> Plan:
    address, key, value, found = await _read(asker, form)
    if is_same_setting(key, found[key], value):
        raise OptionError(f"{key} of {address} is {found[key] or 'empty'} already")
    return Plan(
        f"Change {key} of {address}",
        "Change it",
        [(key, found[key], value)],
        ["A broker keeps it in the file of its -c, and without one until it stops."],
        binding=found[key],
    )


async def _set(asker: Asker, form: Form, plan: Plan) -> Outcome:
    address, key, value, _ = await _read(asker, form)
    await asker.admin.update_broker_config(address, {key: value})
    after = (await asker.admin.broker_config(address)).get(key, "")
    links = [("Settings", texts.href("/settings", address=address))]
    if not is_same_setting(key, after, value):
        return Outcome(f"{address} did not take it: {key} is {after}.", False, links=links)
    return Outcome(f"{key} of {address} is {after} now.", links=links)


ROUTES: Final[dict[str, Page]] = {"/settings": settings}
WRITES: Final = {"setting.set": Write(_plan_set, _set)}
