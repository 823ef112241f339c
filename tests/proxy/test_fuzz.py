"""Requests that are nearly right: drawn field by field, and with bytes turned over.

Every call ends with a status, and none of them as a mistake of the server's.
"""

from __future__ import annotations

import logging
import random
from typing import Any, Final

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from tests.proxy.client import GrpcClient, framed
from tests.proxy.conftest import add_group, add_topic

from oberth.proxy import messages as m
from oberth.proxy.call import CallError, GrpcStatus, parse
from oberth.testing.embedded_broker import EmbeddedBroker

SEEDS: Final = (1, 2)
DRAWS: Final = 8
"""Requests of each method for a seed."""

TEXTS: Final = (
    "T", "G", "broker-a", "", " ", "*", "a || b", "a > 5", "x" * 300, "ä\u2028", "\x01", "|",
    "0 0 0 0 0 broker-a 0 0 0", "1 1700000000000 60000 0 0 broker-a 0 5 1000", "9" * 30, "-1",
    "%DLQ%G", "AAAA", "k 1 2", "SCHEDULE_TOPIC_XXXX", "2024", "../../x",
)  # fmt: skip
NUMBERS: Final = (0, 1, -1, 2, 3, 32, 1000, 2**31 - 1, -(2**31))
LONG_NUMBERS: Final = (*NUMBERS, 2**63 - 1, -(2**63), 1_700_000_000_000, 2**53)

ENDS: Final = frozenset(
    {
        GrpcStatus.OK, GrpcStatus.INVALID_ARGUMENT, GrpcStatus.DEADLINE_EXCEEDED,
        GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.INTERNAL,
    }
)  # fmt: skip


def drawn(kind: Any, rng: random.Random, depth: int = 0) -> Any:
    """A message with some of its fields."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if rng.random() < 0.25 + depth * 0.1:
            continue
        fill(made, field, rng, depth)
    return made


def fill(made: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    name = field.name
    target = getattr(made, name)
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            for _ in range(rng.randrange(3)):
                target[rng.choice(TEXTS)] = rng.choice(TEXTS)
        elif field.is_repeated:
            for _ in range(rng.randrange(3) if depth < 4 else 0):
                target.add().CopyFrom(_nested(field.message_type, rng, depth + 1))
        elif depth < 6:
            target.CopyFrom(_nested(field.message_type, rng, depth + 1))
        return
    values = [_value(field, rng) for _ in range(rng.randrange(3) if field.is_repeated else 1)]
    if field.is_repeated:
        target.extend(values)
    else:
        setattr(made, name, values[0])


def _nested(descriptor: Descriptor, rng: random.Random, depth: int) -> Any:
    package, _, name = descriptor.full_name.rpartition(".")
    return drawn(m.message_class(name, package), rng, depth)


def _value(field: FieldDescriptor, rng: random.Random) -> Any:
    if field.enum_type is not None:
        return rng.choice([*(each.number for each in field.enum_type.values), 999])
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 100)))
        return rng.choice(TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.5, float("nan"), float("inf")))
    return rng.choice(NUMBERS if kind == FieldDescriptor.CPPTYPE_INT32 else LONG_NUMBERS)


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Some bits turned, a piece cut out, or bytes put in."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        if not data:
            break
        place = rng.randrange(len(data))
        kind = rng.randrange(3)
        if kind == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[place : place + rng.randrange(1, 8)]
        else:
            data[place:place] = rng.randbytes(rng.randrange(1, 5))
    return bytes(data)


@pytest.mark.parametrize("seed", SEEDS)
async def test_calls(seed: int, mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(seed)
    add_topic(mq, "T")
    add_group(mq, "G")
    caplog.set_level(logging.ERROR)
    paths = {f"/{m.PACKAGE}.MessagingService/{each}": m.METHODS[each] for each in m.METHODS}
    paths |= {f"/{m.PACKAGE}.Admin/{each}": m.ADMIN_METHODS[each] for each in m.ADMIN_METHODS}
    for name, method in paths.items():
        for _ in range(DRAWS):
            raw = drawn(m.message_class(method.request), rng).SerializeToString()
            if rng.random() < 0.3:
                raw = damaged(raw, rng)
            async with GrpcClient(mq.grpc_address, rng.choice(("client", "another"))) as client:
                stream = await client.open(name, framed(raw), deadline="20m")
                answers = await stream.all()
                assert stream.status in ENDS, (name, stream.trailers, raw.hex())
                if stream.status == GrpcStatus.INTERNAL:
                    why = {**stream.headers, **stream.trailers}["grpc-message"]
                    assert why.startswith(f"no {method.request}"), (name, why, raw.hex())
                for each in answers:
                    m.message_class(method.response).FromString(each)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_we_take_is_what_the_library_takes(seed: int) -> None:
    """Beside the bound on fields nothing is refused, and nothing is read otherwise."""
    rng = random.Random(seed)
    for method in (*m.METHODS.values(), *m.ADMIN_METHODS.values()):
        kind = m.message_class(method.request)
        for _ in range(30):
            raw = drawn(kind, rng).SerializeToString()
            if rng.random() < 0.5:
                raw = damaged(raw, rng)
            padded = raw + b"\x82\x7d\x80\x80\x02" + bytes(32768)  # field 2000: it is counted
            for each in (raw, padded):
                try:
                    wanted = kind.FromString(each)
                except DecodeError:
                    with pytest.raises(CallError):
                        parse(kind, each)
                    continue
                try:
                    found = parse(kind, each)
                except CallError:  # groups are refused where fields are counted
                    with pytest.raises(ValueError, match=r"wire type|fields"):
                        m.count_fields(kind.DESCRIPTOR, each)
                    continue
                assert found.SerializeToString() == wanted.SerializeToString()
