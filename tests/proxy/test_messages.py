"""The tables of messages, both ways, and bytes as official clients write them."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from oberth.proxy import messages as m
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.handles import parse_transaction_id, transaction_id

_KINDS: dict[int, str] = {int(number): name for name, number in m._SCALARS.items()}


def _field_text(field: FieldDescriptor) -> str:
    """A field as the table writes it."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"].message_type
        kind = "" if value is None else f"<{value.full_name.removeprefix(m.PACKAGE + '.')}>"
        return f"{field.name} map{kind}"
    kind = _KINDS.get(field.type, "")
    if field.message_type is not None:
        kind = field.message_type.full_name.rpartition("v2.")[2].removeprefix("google.protobuf.")
    elif field.enum_type is not None:
        kind = field.enum_type.full_name.removeprefix(m.PACKAGE + ".")
    one = field.containing_oneof
    if field.is_repeated:
        kind += "*"
    elif one is not None and one.name == "_" + field.name:
        kind += "?"
    elif one is not None:
        kind += "|" + one.name
    return f"{field.name} {kind}"


def test_the_descriptors_say_what_the_table_says() -> None:
    for name, words in m.parse_table(m.MESSAGES + m.ADMIN_MESSAGES).items():
        descriptor = m.message_class(name).DESCRIPTOR
        fields = sorted(descriptor.fields, key=lambda field: field.number)
        assert [field.number for field in fields] == list(range(1, len(fields) + 1))
        wanted = [" ".join(field.split()) for field in words.split(",") if field]
        assert [_field_text(field) for field in fields] == wanted, name


def test_enums_count_from_zero() -> None:
    for name, words in m.parse_table(m.ENUMS + m.ADMIN_ENUMS).items():
        assert m.enum_values(name) == {each: n for n, each in enumerate(words.split())}
    assert m.enum_values("Code") == {code.name: int(code) for code in Code}


@pytest.mark.parametrize(
    ("raw", "name", "shown"),
    [
        ("08a09c0112024f4b", "Status", {"code": 20000, "message": "OK"}),
        ("120154", "Resource", {"name": "T"}),
        ("0a0012010a", "ReceiveMessageResponse", None),
        ("0a0412025431120a0a016b120576616c7565", "Message", {"body": b""}),
        ("0806", "Settings", {"client_type": 6}),
    ],
)
def test_bytes(raw: str, name: str, shown: dict[str, object] | None) -> None:
    kind = m.message_class(name)
    if shown is None:
        with pytest.raises(Exception, match="rror"):
            kind.FromString(bytes.fromhex(raw))
        return
    found = kind.FromString(bytes.fromhex(raw))
    assert {field: getattr(found, field) for field in shown} == shown
    assert found.SerializeToString().hex() == raw


def test_fields_are_counted() -> None:
    made = m.SendMessageRequest()
    for n in range(3):
        each = made.messages.add(body=b"x" * 100)
        each.topic.name = "T"
        each.user_properties["a"] = "b"
        each.system_properties.keys.extend(["k"] * n)
        each.system_properties.queue_id = 300
    raw = made.SerializeToString()
    # message, topic and name, property with key and value, system, queue, body; and keys
    assert m.count_fields(m.SendMessageRequest.DESCRIPTOR, raw) == 3 * 9 + 3
    for size in range(len(raw)):
        m.count_fields(m.SendMessageRequest.DESCRIPTOR, raw[:size])
    for many in (b"\x0a\x00", b"\x78\x00", b"\x0a\x02\x2a\x00"):
        with pytest.raises(ValueError, match="more than"):
            m.count_fields(m.SendMessageRequest.DESCRIPTOR, many * (m.FIELDS_MAX + 1))
    with pytest.raises(ValueError, match="wire type 3"):
        m.count_fields(m.SendMessageRequest.DESCRIPTOR, b"\x0b\x00")


@given(st.binary(max_size=200))
def test_whatever_parses_is_counted(raw: bytes) -> None:
    """What the library takes has no more fields than were counted."""
    try:
        found = m.Message.FromString(raw)
    except DecodeError:
        with contextlib.suppress(ValueError):
            m.count_fields(m.Message.DESCRIPTOR, raw)
        return
    try:
        counted = m.count_fields(m.Message.DESCRIPTOR, raw)
    except ValueError:
        return  # a group
    assert len(found.ListFields()) <= counted


def test_all_calls_have_their_messages() -> None:
    for method in (*m.METHODS.values(), *m.ADMIN_METHODS.values()):
        m.message_class(method.request)
        m.message_class(method.response)
    with pytest.raises(AttributeError):
        _ = m.Nothing


@pytest.mark.parametrize("key", ["7F000001", "a key of two words"])
def test_a_transaction_id_gives_back_what_it_joined(key: str) -> None:
    assert parse_transaction_id(transaction_id(key, 7, 2**63 - 1, "b")) == (key, 7, 2**63 - 1, "b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "key",
        "key 1",
        "key 1 b",
        " 1 2 b",
        "key 1  b",
        "key 1 -2 b",
        "key 1 2 ",
        f"key 1 {'9' * 5000} b",
    ],
)
def test_another_transaction_id_is_refused_by_a_status(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_transaction_id(text)
    assert caught.value.code is Code.INVALID_TRANSACTION_ID
