"""``oberth cluster dump`` and ``apply``: topics and groups of a cluster as one file.

    {"format": "oberth-cluster", "version": 1,
     "topics": [{"topicName": …, "readQueueNums": …, …, "brokers": null}],
     "groups": [{"groupName": …, "retryMaxTimes": …, …, "brokers": ["broker-a"]}]}

Settings have the names that RocketMQ's topics.json and subscriptionGroup.json give them.
``brokers`` are the masters that have it so; null stands for all of them. What is the brokers' own
is left out, retry topics and dead letters too: they come with their groups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

from oberth.cli.output import OutputFile, say, write_json, write_result_file
from oberth.cli.remote import (
    ask,
    broker_topics,
    cluster_option,
    json_option,
    namesrv_option,
    show,
)
from oberth.client.admin import Admin
from oberth.errors import ConfigFormatError
from oberth.formats import names
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)

FORMAT: Final = "oberth-cluster"
VERSION: Final = 1
FILE_SIZE_MAX: Final = 256 << 20


class Change(NamedTuple):
    """What `apply` does at one broker."""

    action: str
    kind: str
    name: str
    broker: str
    address: str
    wanted: TopicConfig | SubscriptionGroupConfig
    current: TopicConfig | SubscriptionGroupConfig | None

    @property
    def settings(self) -> dict[str, Any]:
        """By name the value of a setting and its new value, where these differ."""
        wanted = _settings(self.wanted)
        current = {} if self.current is None else _settings(self.current)
        return {
            key: {"before": current.get(key), "after": value}
            for key, value in wanted.items()
            if self.current is None or current.get(key) != value
        }


@click.command()
@click.option("--into", "path", metavar="FILE", type=OutputFile(),
              help="Where to; stdout if not given.")  # fmt: skip
@namesrv_option
@cluster_option
@json_option
def dump(path: str | None, namesrv: str, cluster: str | None, as_json: bool) -> None:
    """Write topics and groups with their settings as one file of JSON, for `apply`.

    Neither messages nor offsets, neither users nor brokers' settings. Of a static topic its
    mapping is left out.

    Example: oberth cluster dump --into cluster.json
    """

    async def look(admin: Admin) -> dict[str, Any]:
        masters = await admin.masters(cluster)
        own = await broker_topics(admin)
        topics = {
            broker: {
                name: each
                for name, each in (await admin.all_topic_configs(address)).items()
                if not _is_own_topic(name, own)
            }
            for broker, address in masters.items()
        }
        groups = {
            broker: {
                name: each
                for name, each in (await admin.all_groups(address)).items()
                if not (names.is_system_group(name) or name in names.PREDEFINED_GROUPS)
            }
            for broker, address in masters.items()
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "topics": _entries(topics),
            "groups": _entries(groups),
        }

    made = ask(namesrv, look)
    if path is None:
        write_json(made)
    else:
        text = json.dumps(made, ensure_ascii=False, indent=2) + "\n"
        write_result_file(path, text)
        if as_json:
            write_json({"file": path, "topics": len(made["topics"]), "groups": len(made["groups"])})
    say(
        f"{len(made['topics'])} topics, {len(made['groups'])} groups"
        + (f": {path}" if path else "")
    )


@click.command()
@click.argument(
    "path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@namesrv_option
@cluster_option
@json_option
def apply(path: str, dry_run: bool, namesrv: str, cluster: str | None, as_json: bool) -> None:
    """Make and change topics and groups so that they are as in FILE, which `dump` wrote.

    Topics and groups that are not in FILE stay as they are: nothing is ever deleted. All of FILE is
    checked, and every broker is asked, before anything is changed; each change is one line of
    output. Where it ends in the middle it says how far it came, and the same command does the rest.

    Example: oberth cluster apply cluster.json --dry-run
    """
    topics, groups = read_dump(path)

    async def work(admin: Admin) -> list[Change]:
        masters = await admin.masters(cluster)
        changes: list[Change] = []
        for broker, address in masters.items():
            changes += _changes(
                "topic", topics, broker, address, await admin.all_topic_configs(address)
            )
            changes += _changes("group", groups, broker, address, await admin.all_groups(address))
        missing = {
            broker
            for _, brokers in (*topics.values(), *groups.values())
            for broker in brokers or ()
        } - masters.keys()
        if missing:
            raise ConfigFormatError(
                f"{path}: no broker {', '.join(sorted(missing))} is known; "
                f"there are: {', '.join(masters)}"
            )
        if not dry_run:
            await _make(admin, changes)
        return changes

    changes = ask(namesrv, work)
    if as_json:
        rows = [
            {
                "action": each.action,
                "kind": each.kind,
                "name": each.name,
                "broker": each.broker,
                "settings": each.settings,
            }
            for each in changes
        ]
        write_json({"dryRun": dry_run, "changes": rows})
    else:
        show(
            False,
            ["action", "kind", "name", "broker", "settings"],
            [
                [*each[:4], ", ".join(_setting_text(k, v) for k, v in each.settings.items())
                 if each.action == "change" else ""]
                for each in changes
            ],
        )  # fmt: skip
    done = "would be made or changed" if dry_run else "made or changed"
    say(f"{len(changes)} {done}, of {len(topics)} topics and {len(groups)} groups")


async def _make(admin: Admin, changes: list[Change]) -> None:
    """Makes the changes, each with a line that says so; order topics then get their queues."""
    made = 0
    try:
        for change in changes:
            say(f"{change.action} {change.kind} {change.name} at {change.broker}")
            if isinstance(change.wanted, TopicConfig):
                current = change.current if isinstance(change.current, TopicConfig) else None
                await admin.put_topic_config(change.address, change.wanted, current)
            else:
                await admin.create_group(change.wanted, broker_addr=change.address)
            made += 1
        for change in changes:
            if isinstance(change.wanted, TopicConfig) and change.wanted.order:
                await admin.put_order_config(change.name)
    except BaseException:  # Ctrl-C, too
        say(f"{made} of {len(changes)} were made or changed; the same command does the rest")
        raise


def _settings(config: TopicConfig | SubscriptionGroupConfig) -> dict[str, Any]:
    """The settings that this version knows; what else a broker said of it cannot be set."""
    return {key: value for key, value in config.to_json().items() if key not in config.unknown}


def _setting_text(key: str, change: Mapping[str, Any]) -> str:
    return f"{key} {json.dumps(change['before'])} -> {json.dumps(change['after'])}"


def _is_own_topic(name: str, own: set[str]) -> bool:
    return (
        name in own
        or names.is_system_topic(name)
        or names.is_lmq(name)
        or name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
    )


def _entries(tables: Mapping[str, Mapping[str, C]]) -> list[dict[str, Any]]:
    """One entry for each name and settings, with the brokers that have it so."""
    found = []
    for name in sorted({name for table in tables.values() for name in table}):
        kinds: list[tuple[dict[str, Any], list[str]]] = []
        for broker, table in tables.items():
            if name not in table:
                continue
            settings = _settings(table[name])
            for known, brokers in kinds:
                if known == settings:
                    brokers.append(broker)
                    break
            else:
                kinds.append((settings, [broker]))
        for settings, brokers in kinds:
            everywhere = len(brokers) == len(tables)
            found.append({**settings, "brokers": None if everywhere else brokers})
    return found


Wanted = dict[tuple[str, int], tuple[C, list[str] | None]]
"""By name, and number in the file: settings, and the brokers that get them; None: all."""


def read_dump(path: str) -> tuple[Wanted[TopicConfig], Wanted[SubscriptionGroupConfig]]:
    """The contents of a dump.

    Raises:
        ConfigFormatError: it is no dump; the message names the file and the place in it.
        IllegalNameError: a name that no topic or group may have.
    """
    if path != "-" and os.path.getsize(path) > FILE_SIZE_MAX:
        raise ConfigFormatError(f"{path}: {os.path.getsize(path)} bytes, at most {FILE_SIZE_MAX}")
    with click.open_file(path, encoding="utf-8") as file:
        try:
            document = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ConfigFormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigFormatError(f'{path}: no dump of a cluster, "format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise ConfigFormatError(f"{path}: version {document.get('version')!r}, read is {VERSION}")
    topics = _read(path, document, "topics", TopicConfig)
    groups = _read(path, document, "groups", SubscriptionGroupConfig)
    for name, _ in topics:
        names.check_topic(name)
    for name, _ in groups:
        names.check_group(name)
    return topics, groups


def _read(path: str, document: Mapping[str, Any], key: str, kind: type[C]) -> Wanted[C]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise ConfigFormatError(f"{path}: {key} is no list")
    found: Wanted[C] = {}
    seen: dict[str, set[str | None]] = {}
    for number, each in enumerate(entries):
        place = f"{path}: {key}[{number}]"
        if not isinstance(each, dict):
            raise ConfigFormatError(f"{place} is no object")
        brokers = each.get("brokers")
        if brokers is not None and not (
            isinstance(brokers, list) and all(isinstance(broker, str) for broker in brokers)
        ):
            raise ConfigFormatError(f"{place}.brokers is neither null nor a list of names")
        settings = {name: value for name, value in each.items() if name != "brokers"}
        config = kind.from_json(settings, place)
        if config.unknown:
            unknown = ", ".join(sorted(config.unknown))
            raise ConfigFormatError(f"{place}: {unknown}: no such setting")
        name = settings.get("topicName" if key == "topics" else "groupName")
        if not isinstance(name, str) or not name:
            raise ConfigFormatError(f"{place} has no name")
        places = seen.setdefault(name, set())
        if None in places or places.intersection(brokers or [None]) or (places and not brokers):
            raise ConfigFormatError(f"{place}: {name} is there twice for one broker")
        places.update(brokers or [None])
        found[name, number] = (config, brokers)
    return found


def _changes(
    kind: str,
    wanted: Wanted[C],
    broker: str,
    address: str,
    table: Mapping[str, C],
) -> Iterable[Change]:
    """What one broker lacks or has otherwise."""
    for (name, _), (config, brokers) in wanted.items():
        if brokers is not None and broker not in brokers:
            continue
        current = table.get(name)
        if current is None or _settings(current) != _settings(config):
            action = "create" if current is None else "change"
            yield Change(action, kind, name, broker, address, config, current)
