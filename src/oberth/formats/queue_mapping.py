"""Queue mappings: how the queues of a static topic lie on the physical queues of brokers.

A static topic has *logical* queues, numbered over all brokers. Each is a list of stretches, oldest
first, and each stretch is a physical queue of some broker:

    logical queue 3   gen  broker    queue  logic_offset  start_offset   takes messages
                        0  broker-a      1             0             0   no
                        1  broker-b      0         10000             0   no
                        2  broker-c      4         30000             0   yes: the last one leads

    logical offset = physical offset - start_offset + logic_offset

What is always true of a list that passed `check_items`: generations and logical offsets grow; only
the last stretch may have a logic_offset of -1, which says that it takes messages already while its
place after the others is not decided. The gaps between stretches hold nothing: consumers are led
over them. RocketMQ: LogicQueueMappingItem, TopicQueueMappingUtils, TopicQueueMappingDetail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import ConfigFormatError

if TYPE_CHECKING:
    from oberth.formats.config_files import LogicQueueMappingItem as Item
    from oberth.formats.config_files import TopicQueueMappingDetail

GLOBAL_SCOPE: Final = "__global__"
LOGICAL_BROKER_PREFIX: Final = "__syslo__"
"""What the broker name of a logical queue begins with."""

NO_BROKER: Final = "__syslo__none__"
"""Stands for the broker of a logical queue that nobody leads."""

LOGICAL_QUEUES_MAX: Final = 65_536
"""Logical queues of one topic."""

STRETCHES_MAX: Final = 1_024
"""Stretches of one logical queue: one more by every remapping, one less by every clean-up."""


def logical_broker_name(scope: str) -> str:
    """The broker name that clients give to logical queues of a scope."""
    # Java cuts two of the underscores of the global scope, and of no other.
    return LOGICAL_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def is_decided(item: Item) -> bool:
    """Whether a stretch has its place in the logical queue."""
    return item.logic_offset >= 0


def is_ended(item: Item) -> bool:
    """Whether the end of a stretch is written down; it seldom is, the broker knows it."""
    return item.end_offset > item.start_offset


def to_logical(item: Item, physical_offset: int) -> int:
    """The logical offset of a message of a decided stretch."""
    return item.logic_offset + max(physical_offset - item.start_offset, 0)


def to_logical_within(item: Item, physical_offset: int) -> int:
    """Like `to_logical`, but not past a known end; -1 while the stretch is undecided."""
    if not is_decided(item):
        return -1
    if is_ended(item):
        physical_offset = min(physical_offset, item.end_offset)
    return to_logical(item, physical_offset)


def to_physical(item: Item, logical_offset: int) -> int:
    """The physical offset of a logical one; negative for one before the stretch."""
    return logical_offset - item.logic_offset + item.start_offset


def known_end(item: Item) -> int:
    """The logical offset up to which a stretch reaches at least, by what is written down."""
    if is_ended(item):
        return item.logic_offset + item.end_offset - item.start_offset
    return item.logic_offset


def find_item(items: Sequence[Item], logical_offset: int) -> Item | None:
    """The decided stretch that an offset belongs to; the first for offsets before it."""
    first = None
    for item in reversed(items):
        if is_decided(item):
            if logical_offset >= item.logic_offset:
                return item
            first = item
    return first


def first_item(items: Sequence[Item]) -> Item | None:
    """The first decided stretch."""
    return next((item for item in items if is_decided(item)), None)


def last_item(items: Sequence[Item]) -> Item | None:
    """The last decided stretch."""
    return next((item for item in reversed(items) if is_decided(item)), None)


def next_item(items: Sequence[Item], current: Item) -> Item | None:
    """The decided stretch after another one."""
    return next((item for item in items if item.gen > current.gen and is_decided(item)), None)


def leads(detail: TopicQueueMappingDetail, items: Sequence[Item]) -> bool:
    """Whether the broker of a detail takes the messages of a logical queue."""
    return bool(items) and items[-1].bname == detail.bname


# Checks


def check_items(items: Sequence[Item], where: str) -> None:
    """Compare a list of stretches with what is always true.

    Raises:
        ConfigFormatError: naming ``where`` and the stretch.
    """
    if len(items) > STRETCHES_MAX:
        raise ConfigFormatError(f"{where}: {len(items)} stretches, at most {STRETCHES_MAX}")
    last: Item | None = None
    for number, item in enumerate(items):
        here = f"{where}[{number}]"
        if not item.bname:
            raise ConfigFormatError(f"{here}: bname is missing")
        for name, value in (
            ("gen", item.gen),
            ("queueId", item.queue_id),
            ("startOffset", item.start_offset),
        ):
            if not 0 <= value < 2**62:
                raise ConfigFormatError(f"{here}: {name} is {value}, allowed 0 and more")
        if item.queue_id >= LOGICAL_QUEUES_MAX:
            raise ConfigFormatError(f"{here}: queueId is {item.queue_id}")
        if item.logic_offset >= 2**62:
            raise ConfigFormatError(f"{here}: logicOffset is {item.logic_offset}")
        if item.logic_offset < 0 and number != len(items) - 1:
            raise ConfigFormatError(
                f"{here}: logicOffset is {item.logic_offset}; only the last may be undecided"
            )
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise ConfigFormatError(
                f"{here}: endOffset {item.end_offset} before startOffset {item.start_offset}"
            )
        if last is not None:
            if item.gen <= last.gen:
                raise ConfigFormatError(f"{here}: gen {item.gen} does not follow {last.gen}")
            if is_decided(item) and known_end(last) >= item.logic_offset:
                raise ConfigFormatError(
                    f"{here}: logicOffset {item.logic_offset} does not follow {known_end(last)}"
                )
        last = item


def check_detail(detail: TopicQueueMappingDetail) -> None:
    """Check a broker's part of a mapping.

    Raises:
        ConfigFormatError: the mapping contradicts itself.
    """
    where = f"mapping of {str(detail.topic)[:130]!r}"
    if not detail.topic or not detail.bname or not detail.scope:
        raise ConfigFormatError(f"{where}: topic, bname or scope is missing")
    if not 0 <= detail.total_queues <= LOGICAL_QUEUES_MAX:
        raise ConfigFormatError(
            f"{where}: totalQueues is {detail.total_queues}, allowed 0…{LOGICAL_QUEUES_MAX}"
        )
    for logical_id, items in detail.hosted_queues.items():
        if not 0 <= logical_id < LOGICAL_QUEUES_MAX:
            raise ConfigFormatError(f"{where}: there is no queue {logical_id}")
        check_items(items, f"{where}, queue {logical_id}")


def check_successor(
    old: Sequence[Item], new: Sequence[Item], where: str, *, is_same_epoch: bool
) -> None:
    """Compare a list with the one that it replaces: a stretch never changes.

    Stretches may have been added at the end and removed at the beginning, and a place that was not
    decided may be now.

    Raises:
        ConfigFormatError: something that clients may rely on would change.
    """
    if not old:
        return
    if not new:
        raise ConfigFormatError(f"{where}: the new list is empty, the old one is not")
    by_gen = {item.gen: item for item in old}
    for item in new:
        known = by_gen.get(item.gen)
        if known is None:
            continue
        if (known.bname, known.queue_id, known.start_offset) != (
            item.bname,
            item.queue_id,
            item.start_offset,
        ) or (is_decided(known) and known.logic_offset != item.logic_offset):
            raise ConfigFormatError(f"{where}: generation {item.gen} would change")
    if is_same_epoch:
        was, now = old[-1], new[-1]
        if (was.gen, was.bname, was.queue_id) != (now.gen, now.bname, now.queue_id):
            raise ConfigFormatError(f"{where}: another leader in the same epoch")


# Registration


def led_queues(detail: TopicQueueMappingDetail) -> dict[int, int]:
    """Logical to physical queue, of those that the detail's broker leads."""
    return {
        logical_id: items[-1].queue_id
        for logical_id, items in sorted(detail.hosted_queues.items())
        if leads(detail, items)
    }


def mapping_info(detail: TopicQueueMappingDetail) -> dict[str, Any]:
    """What the name servers are told. RocketMQ: TopicQueueMappingInfo."""
    return {
        "bname": detail.bname,
        "currIdMap": {str(logical): physical for logical, physical in led_queues(detail).items()},
        "dirty": False,
        "epoch": detail.epoch,
        "scope": detail.scope,
        "topic": detail.topic,
        "totalQueues": detail.total_queues,
    }


def wire_json(detail: TopicQueueMappingDetail) -> dict[str, Any]:
    """A broker's part of a mapping, as it stands in answers.

    Unlike in the file, numbers as keys are in quotes: what skips over them wants strict JSON.
    """
    tree = detail.to_json()
    for name in ("currIdMap", "hostedQueues"):
        tree[name] = {str(key): value for key, value in tree[name].items()}
    return tree


def mapping_of_topic_config(body: bytes) -> TopicQueueMappingDetail | None:
    """The mapping in the answer to GET_TOPIC_CONFIG, or None.

    Raises:
        ConfigFormatError: the answer cannot be read.
    """
    # Clients come here for routes alone, and the tables of every configuration file cost 10 ms.
    from oberth.formats.config_files import TopicQueueMappingDetail  # noqa: PLC0415 - 10 ms, and clients need routes alone
    from oberth.formats.config_json import parse_config  # noqa: PLC0415 - 10 ms, and clients need routes alone

    document = parse_config(body, name="TopicConfigAndQueueMapping")
    found = document.get("mappingDetail") if isinstance(document, dict) else None
    if found is None:
        return None
    return TopicQueueMappingDetail.from_json(found, "mappingDetail")


def logical_queues(mappings: Iterable[Any]) -> dict[tuple[str, int], str]:
    """The logical queues of a route and who leads each.

    Args:
        mappings: what brokers told name servers, see `mapping_info`; what cannot be read is left
            out.

    Returns:
        (logical broker name, queue id) → broker name, `NO_BROKER` for a queue without a leader. Of
        two brokers that both claim one, the newer epoch wins. At most LOGICAL_QUEUES_MAX in all.
        RocketMQ: ClientMetadata.
    """
    queues: dict[tuple[str, int], str] = {}
    for scope, infos in _by_scope(mappings).items():
        leaders: dict[int, tuple[int, str]] = {}
        for info in infos:
            epoch = _number(info.get("epoch"))
            ids = info.get("currIdMap")
            for key in ids if isinstance(ids, Mapping) else ():
                claim = (epoch, str(info["bname"]))
                logical_id = _number(key)
                if claim[0] >= leaders.get(logical_id, (-1, ""))[0]:
                    leaders[logical_id] = claim
        name = logical_broker_name(scope)
        for logical_id in range(min(_total(infos), LOGICAL_QUEUES_MAX - len(queues))):
            queues[name, logical_id] = leaders.get(logical_id, (-1, NO_BROKER))[1]
    return queues


def logical_queue_count(mappings: Iterable[Any]) -> int:
    """How many logical queues mappings name, of which `logical_queues` gives LOGICAL_QUEUES_MAX."""
    return sum(max(_total(infos), 0) for infos in _by_scope(mappings).values())


def _by_scope(mappings: Iterable[Any]) -> dict[str, list[Mapping[str, Any]]]:
    by_scope: dict[str, list[Mapping[str, Any]]] = {}
    for each in mappings:
        if isinstance(each, Mapping) and isinstance(each.get("bname"), str):
            by_scope.setdefault(str(each.get("scope", GLOBAL_SCOPE)), []).append(each)
    return by_scope


def _total(infos: Iterable[Mapping[str, Any]]) -> int:
    """Queues of one scope, as the newest of its mappings say; -1 where none does."""
    total = newest = -1
    for info in infos:
        epoch, count = _number(info.get("epoch")), _number(info.get("totalQueues"))
        if epoch >= newest:
            newest, total = epoch, max(total, count)
    return total


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1
