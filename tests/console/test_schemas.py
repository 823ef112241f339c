"""Bodies decoded by schemas, of a directory and pasted: Avro, Protobuf, and what does not fit."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from tests.console.conftest import a_console

from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console.schemas import (
    PASTED_EACH_MAX,
    PASTED_MAX,
    PASTED_SESSIONS_MAX,
    UNFOLDED_MAX,
    PastedSchemas,
    Schemas,
)
from oberth.errors import OptionError
from oberth.testing.embedded_broker import EmbeddedBroker

ORDER = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "note", "type": "string"},
        {"name": "raw", "type": "bytes"},
    ],
}  # fmt: skip


def avro(**value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), value)
    return out.getvalue()


def descriptors(*names: str) -> bytes:
    """Of messages with one field, number 1, a text."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    for name in names:
        file.message_type.add(name=name).field.add(name="text", number=1, type=9, label=1)
    return files.SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Orders.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "one.desc").write_bytes(descriptors("Note"))
    (tmp_path / "two.pb").write_bytes(descriptors("A", "B"))
    (tmp_path / "broken.avsc").write_text("{")
    (tmp_path / "readme.txt").write_text("no schema")
    return tmp_path


def test_choices_and_values(folder: Path) -> None:
    schemas = Schemas(str(folder))
    assert schemas.names() == [
        "Orders.avsc", "broken.avsc", "one.desc", "two.pb#shop.A", "two.pb#shop.B",
    ]  # fmt: skip
    body = avro(id=7, note="<b>", raw=b"\xff")
    found = schemas.decode(gzip.compress(body), "Orders.avsc")
    assert (found.kind, found.layers) == ("avro", ("gzip",))
    assert json.loads(found.text) == {"id": 7, "note": "<b>", "raw": "ff"}
    framed = schemas.decode(b"\0\0\0\0\x01" + body, "Orders.avsc")
    assert json.loads(framed.text)["id"] == 7
    note = schemas.decode(b"\x0a\x02hi", "one.desc")
    assert (note.kind, json.loads(note.text)) == ("protobuf", {"text": "hi"})
    assert json.loads(schemas.decode(b"\x0a\x02hi", "two.pb#shop.B").text) == {"text": "hi"}


def test_what_does_not_fit_is_shown_as_it_is(folder: Path) -> None:
    schemas = Schemas(str(folder))
    found = schemas.decode(b"plain text", "Orders.avsc")
    assert found.text == "plain text"
    assert found.problem.startswith("Orders.avsc: ")
    large = schemas.decode(b"x" * (2 << 20), "one.desc")
    assert "at most" in large.problem
    for name in ("../Orders.avsc", "/etc/passwd", "none.avsc", "two.pb", "readme.txt"):
        with pytest.raises(OptionError, match="no schema"):
            schemas.decode(b"x", name)
    with pytest.raises(OptionError, match="not JSON"):
        schemas.decode(b"x", "broken.avsc")
    assert Schemas("").names() == []


def test_a_schema_that_changes_is_read_again(folder: Path) -> None:
    schemas = Schemas(str(folder))
    schemas.decode(avro(id=7, note="", raw=b""), "Orders.avsc")
    changed = {**ORDER, "fields": [{"name": "number", "type": "long"}]}
    (folder / "Orders.avsc").write_text(json.dumps(changed))
    os.utime(folder / "Orders.avsc", (1, 1))
    assert json.loads(schemas.decode(b"\x0e", "Orders.avsc").text) == {"number": 7}


async def test_the_page_of_a_message(broker: EmbeddedBroker, folder: Path) -> None:
    async with (
        a_console(broker, schemas=str(folder)) as browser,
        Producer("shop", config=broker.client_config) as producer,
    ):
        result = await producer.send(Message("Orders", avro(id=7, note="<b>", raw=b"")))
        queue = result.message_queue
        assert queue is not None
        place: dict[str, Any] = {
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "offset": result.queue_offset,
        }
        page = await browser.get("/message", topic="Orders", **place)
        assert "&#34;note&#34;: &#34;&lt;b&gt;&#34;" in page
        assert '<option value="Orders.avsc" selected>' in page
        other = await browser.get("/message", topic="Orders", schema="one.desc", **place)
        assert "one.desc: no Protobuf message" in other
        text = await browser.get("/message", topic="Orders", view="hex", **place)
        assert "00000000" in text
        await browser.get("/message", 400, topic="Orders", schema="../x.avsc", **place)


def test_a_pasted_schema_is_one_sessions() -> None:
    pasted = PastedSchemas()
    assert pasted.add("a", "avro", json.dumps(ORDER)) == ["pasted: Order"]
    found = pasted.decode("a", avro(id=7, note="", raw=b""), "pasted: Order")
    assert (found.kind, json.loads(found.text)["id"]) == ("avro", 7)
    text = base64.encodebytes(descriptors("A", "B")).decode()
    assert pasted.add("a", "protobuf", text) == ["pasted: shop.A", "pasted: shop.B"]
    assert json.loads(pasted.decode("a", b"\x0a\x02hi", "pasted: shop.B").text) == {"text": "hi"}
    assert pasted.names("b") == []
    with pytest.raises(OptionError, match="paste it again"):
        pasted.decode("b", b"", "pasted: Order")
    for number in range(PASTED_EACH_MAX):
        pasted.add("a", "avro", json.dumps({**ORDER, "name": f"N{number}"}))
    assert len(pasted.names("a")) == PASTED_EACH_MAX
    pasted.forget("a")
    assert pasted.names("a") == []
    for number in range(PASTED_SESSIONS_MAX + 1):
        pasted.add(str(number), "avro", json.dumps(ORDER))
    assert pasted.names("0") == []
    assert pasted.names("1") == ["pasted: Order"]


def doubling(depth: int) -> str:
    """An Avro schema of few bytes whose types double so many times."""
    inner: Any = "null"
    for number in range(depth):
        record = {"type": "record", "name": f"R{number}"}
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{number - 1}"}]
        inner = {**record, "fields": fields if number else fields[:1]}
    return json.dumps(inner)


def doubling_messages(depth: int) -> str:
    """The same as a Protobuf descriptor set."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="m.proto", syntax="proto3")
    for number in range(depth):
        message = file.message_type.add(name=f"M{number}")
        for at in (1, 2):
            if number:
                message.field.add(
                    name=f"f{at}", number=at, label=1, type=11, type_name=f".M{number - 1}"
                )
            else:
                message.field.add(name=f"f{at}", number=at, label=1, type=5)
    return base64.b64encode(files.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("avro", "{", "not JSON"),
        ("avro", "[" * 60_000, "nested too deep|not JSON"),
        ("avro", "1", "none|records"),
        ("avro", " " * (PASTED_MAX + 1), "directory of --schemas"),
        ("avro", doubling(40), "unfolds"),
        ("protobuf", "%%%", "no base64"),
        ("protobuf", "AAAA", "descriptor set"),
        ("protobuf", doubling_messages(40), "unfolds"),
        ("xml", "<a/>", "allowed avro and protobuf"),
    ],
)
def test_pasted_schemas_that_are_refused(kind: str, text: str, says: str) -> None:
    pasted = PastedSchemas()
    with pytest.raises(OptionError, match=says):
        pasted.add("a", kind, text)
    assert pasted.names("a") == []


def test_a_pasted_schema_with_many_fields_decodes_shorter_bodies_only() -> None:
    pasted = PastedSchemas()
    fields = [{"name": f"f{number}", "type": "null"} for number in range(UNFOLDED_MAX // 2)]
    pasted.add("a", "avro", json.dumps({"type": "record", "name": "Wide", "fields": fields}))
    problem = pasted.decode("a", b"x" * 10_000, "pasted: Wide").problem
    assert "10000 bytes, at most" in problem


async def test_a_schema_is_pasted_on_the_page_of_a_message(broker: EmbeddedBroker) -> None:
    async with (
        a_console(broker) as browser,
        Producer("shop", config=broker.client_config) as producer,
    ):
        result = await producer.send(Message("Orders", avro(id=7, note="<b>", raw=b"")))
        queue = result.message_queue
        place: dict[str, Any] = {
            "topic": "Orders",
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "offset": result.queue_offset,
        }
        form = {**place, "kind": "avro", "schema": json.dumps(ORDER)}
        await browser.post("/message/schema", form, 303)
        page = await browser.get("/message", schema="pasted: Order", **place)
        assert "&#34;note&#34;: &#34;&lt;b&gt;&#34;" in page
        assert '<option value="pasted: Order" selected>' in page
        await browser.post("/message/schema", {**form, "schema": "{"}, 400)
        await browser.post("/message/schema", {**form, "csrf": "guessed"}, 403)
        browser.http.cookies.clear()
        await browser.get("/message", 400, schema="pasted: Order", **place)
