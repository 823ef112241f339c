"""Records whose damaged properties are put right: what they say of light queues and of batches.

Each function takes the record as it is stored and returns the one that takes its place, of the same
size. Whether it is damaged, and what its place is, the caller knows from the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from operator import eq
from typing import Final

from oberth.errors import FormatError
from oberth.formats.batch_body import decode_batch
from oberth.formats.compression import decompress_body
from oberth.formats.message import MessageExt
from oberth.formats.properties import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    encode_properties,
    find_property,
    without_places,
)

LOST_NAMES: Final = "LOST__MULTI_DISPATCH"
"""The property that holds the names of a record's light queues once it is in none of them."""
assert len(LOST_NAMES) == len(INNER_MULTI_DISPATCH)
_LIGHT_QUEUES_TRIED: Final = 6
"""The order of a record's light queues is found by trial for so many."""
_NAME_DAMAGE_MAX: Final = 3
"""So many bytes of a property's name may be other ones for it to be known again."""


def placed_in_light_queues(message: MessageExt, places: Mapping[str, int]) -> MessageExt | None:
    """A record with the light queues, or the numbers in them, that queues say it had.

    Args:
        message: one of the properties that name them is damaged.
        places: its number in each queue beside its own that leads to it.

    Returns:
        None where the places do not fit into its properties.
    """
    raw = with_light_names(message.properties_raw)
    names, numbers = (
        find_property(raw, name.encode()) or b""
        for name in (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET)
    )
    texts = {name.encode(): str(number).encode() for name, number in places.items()}
    right_names, right_numbers = names, numbers
    if set(names.split(b",")) == texts.keys():
        right_numbers = b",".join(texts[name] for name in names.split(b","))
    elif len(texts) <= _LIGHT_QUEUES_TRIED:
        orders = [
            b",".join(order)
            for order in permutations(sorted(texts))
            if b",".join(texts[name] for name in order) == numbers
        ]
        # The one that differs in the fewest characters.
        right_names = max(orders, default=b"", key=lambda each: sum(map(eq, each, names)))
    for name, damaged, right in (
        (INNER_MULTI_DISPATCH, names, right_names),
        (INNER_MULTI_QUEUE_OFFSET, numbers, right_numbers),
    ):
        head = name.encode() + b"\1"
        at = raw.find(head + damaged) + len(head)
        if at < len(head) or not 0 < len(right) <= len(damaged):
            return None
        # The separator behind it may be what was damaged.
        rest = raw[at + len(right) :]
        raw = raw[:at] + right + (b"\2" + rest[1:] if rest else b"")
    return replace(message, properties_raw=raw)


def with_light_names(raw: bytes) -> bytes:
    """Properties in which those that name light queues, and the numbers there, have their names.

    Where a name is missing, the entry that differs from it in the fewest bytes gets it, with the
    separators around it.
    """
    for name in (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET):
        if find_property(raw, name.encode()) is not None:
            continue
        head = name.encode() + b"\1"
        size = len(head)
        alike, at = max(
            ((sum(map(eq, head, raw[at : at + size])), -at) for at in range(len(raw) - size)),
            default=(0, 0),
        )
        at = -at
        if alike >= size - _NAME_DAMAGE_MAX:
            raw = (raw[: at - 1] + b"\2" if at else b"") + head + raw[at + size :]
    return raw


def in_no_light_queue(message: MessageExt) -> MessageExt:
    """A record that is in its own queue alone; their names stay in another property."""
    raw = message.properties_raw.replace(INNER_MULTI_DISPATCH.encode(), LOST_NAMES.encode())
    return replace(message, properties_raw=raw)


def numbered_batch(message: MessageExt) -> MessageExt | None:
    """An inner batch with INNER_BASE and INNER_NUM as its number and its body have them.

    They take the place of damaged properties; whole ones follow as far as there is room, and then
    separators, which mean nothing.

    Returns:
        None if the body is no batch, or the properties have no room.
    """
    try:
        count = len(decode_batch(decompress_body(message.body, message.sys_flag)))
    except FormatError:
        return None
    if not count or message.queue_offset < 0:
        return None
    raw = message.properties_raw
    room = len(raw)
    text = encode_properties({INNER_BASE: str(message.queue_offset), INNER_NUM: str(count)})
    for entry in without_places(raw).split(b"\2"):
        name, _, value = entry.partition(b"\1")
        if name and value and b"\0" not in entry and len(text) + len(entry) < room:
            text += entry + b"\2"
    if len(text) > room:
        return None
    return replace(message, properties_raw=text.ljust(room, b"\2"))
