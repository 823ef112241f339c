"""Messages in the browser: browsed, searched, decoded, sent; hostile ones too."""

from __future__ import annotations

import gzip
import html
import json
import re
import shlex
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from tests.console.conftest import Browser

from oberth.client import messages as client_messages
from oberth.client.admin import Admin
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console import decoding, texts
from oberth.console.browse import browse, cursor_text, matcher, parse_cursor
from oberth.console.decoding import decode, hex_dump, snippet, unpack
from oberth.console.traces import steps_of
from oberth.errors import FormatError, OptionError, RemotingConnectError
from oberth.formats import compression, names
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

COUNT = 100


@pytest.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    """Of a broker whose topic Orders has COUNT messages in 4 queues."""
    async with Admin(config=broker.client_config) as made:
        await made.create_topic("Orders", queue_nums=4)
        async with Producer("makers", config=broker.client_config) as producer:
            for number in range(COUNT):
                await producer.send(
                    Message(
                        "Orders",
                        json.dumps({"order": number}).encode(),
                        tags="paid" if number % 2 else "new",
                        keys=f"order-{number}",
                        properties={"number": str(number)},
                    )
                )
        yield made


def bodies(page: str) -> list[int]:
    return [int(each) for each in re.findall(r"&#34;order&#34;: (\d+)}", page)]


async def test_pages_of_messages_have_each_once_newest_first(reader: Browser, admin: Admin) -> None:
    page = await reader.get("/messages", topic="Orders")
    seen = bodies(page)
    while (more := re.search(r'class="button" href="(/messages[^"]*)"', page)) is not None:
        page = await reader.get(html.unescape(more[1]))
        seen += bodies(page)
    assert seen == list(range(COUNT))[::-1]
    oldest = bodies(await reader.get("/messages", topic="Orders", order="oldest"))
    assert oldest == list(range(32))


async def test_messages_are_found(reader: Browser, admin: Admin) -> None:
    async def found(**parameters: Any) -> list[int]:
        return bodies(await reader.get("/messages", topic="Orders", **parameters))

    assert await found(tag="paid") == list(range(99, 35, -2))
    assert await found(sql="number BETWEEN 10 AND 12") == [12, 11, 10]
    assert await found(sql="TAGS = 'new' AND number > 95") == [98, 96]
    assert await found(body='"ORDER": 77') == [77]
    assert await found(key="order-5") == [5]
    assert await found(at="2100-01-01T00:00") == []
    assert await found(at="0") == list(range(32))
    one_queue = await found(queue="broker-a:1", offset="20")
    assert len(one_queue) == 5
    assert one_queue == sorted(one_queue)
    message = (await admin.query_message("Orders", "order-7"))[0]
    for identifier in (message.msg_id, message.offset_msg_id):
        answer = await reader.http.get("/messages", params={"topic": "Orders", "id": identifier})
        assert answer.status_code == 303
        assert "order-7" in await reader.get(answer.headers["location"])
    wrongs: list[dict[str, str]] = [
        {"sql": "number >"},
        {"queue": "x"},
        {"queue": "b:99"},
        {"offset": "1"},
        {"at": "soon"},
        {"cursor": "a:b:c"},
        {"offset": "-1", "queue": "broker-a:1"},
    ]
    for wrong in wrongs:
        answer = await reader.http.get("/messages", params={"topic": "Orders", **wrong})
        assert answer.status_code in (200, 400)
        assert 'role="alert"' in answer.text, wrong
    await reader.get("/message", 404, topic="Orders", queue="broker-a:1", offset="9999")
    await reader.get("/message", 400, topic="Orders", queue="broker-a", offset="1")


async def test_a_group_without_members_consumes_nothing(writer: Browser, admin: Admin) -> None:
    await admin.create_group("nobody")
    form = {"topic": "Orders", "queue": "broker-a:1", "offset": "0", "group": "nobody"}
    page = await writer.post("/write/message.consume", form, 404)
    assert "There is no such thing" in page


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"at": "0"}, 'value="1970-01-01T00:00:00"'),
        ({"at": "2026-11-23T08:30+01:00"}, 'value="2026-11-23T07:30:00"'),
        ({"at": "soon"}, 'name="at" type="datetime-local" step="1" value=""'),
        ({"at": "9" * 15}, 'name="at" type="datetime-local" step="1" value=""'),
        ({"queue": "broker-a:1", "offset": "7"}, 'type="number" min="0" value="7"'),
        ({"offset": "-1"}, 'type="number" min="0" value=""'),
    ],
)
async def test_fields_have_what_a_browser_takes(
    reader: Browser, admin: Admin, asked: dict[str, Any], shown: str
) -> None:
    assert shown in await reader.get("/messages", topic="Orders", **asked)


async def test_messages_of_the_brokers_that_answer_are_shown(
    reader: Browser, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters_of = Admin._masters_of

    async def with_a_dead_one(self: Admin, topic: str) -> dict[str, str]:
        return {"a-broker": "127.0.0.1:1", **await masters_of(self, topic)}

    monkeypatch.setattr(Admin, "_masters_of", with_a_dead_one)
    page = await reader.get("/messages", topic="Orders")
    assert "<b>a-broker does not answer.</b>" in page
    assert "no connection to " in page
    assert f"{COUNT} messages are kept" in page
    with pytest.raises(RemotingConnectError):
        await admin.topic_stats("Orders")

    async def only_a_dead_one(self: Admin, topic: str) -> dict[str, str]:
        return {"a-broker": "127.0.0.1:1"}

    monkeypatch.setattr(Admin, "_masters_of", only_a_dead_one)
    assert "did not answer as it should" in await reader.get("/messages", 502, topic="Orders")


async def test_large_messages_are_read_backward(broker: EmbeddedBroker) -> None:
    async with (
        Admin(config=broker.client_config) as admin,
        Producer("makers", config=broker.client_config) as producer,
    ):
        await admin.create_topic("Large", queue_nums=1)
        for number in range(12):
            await producer.send(Message("Large", b"%02d" % number * 150_000))
        (queue,) = await admin.topic_queues("Large")
        ends = (await admin.topic_stats("Large")).offset_table[queue]
        place = ("broker-a", 0)
        found = await browse(
            admin, "Large", {place: ends}, is_newest_first=True, cursor=None, limit=5
        )
        assert [each.queue_offset for each in found.messages] == [11, 10, 9, 8, 7]
        assert found.cursor == {place: 7}
        rest = await browse(
            admin, "Large", {place: ends}, is_newest_first=True, cursor=found.cursor, limit=50
        )
        assert [each.queue_offset for each in rest.messages] == [6, 5, 4, 3, 2, 1, 0]
        assert rest.cursor == {}


async def test_a_hostile_message_is_shown_harmlessly(
    writer: Browser, broker: EmbeddedBroker
) -> None:
    evil = "<script>alert(1)</script>"
    quote = "\"'><img src=x onerror=alert(2)>"
    turned = "\u202egnp.exe \u061c \x1b[2J \x00 \u0634\u0643\u0631\u0627"
    async with (
        Admin(config=broker.client_config) as admin,
        Producer("makers", config=broker.client_config) as producer,
    ):
        await admin.create_topic("Evil", queue_nums=1)
        sent = [
            await producer.send(
                Message(
                    "Evil", body.encode(), tags=quote, keys=[evil, quote],
                    properties={evil: quote, "turned": turned.replace("\x00", "")},
                )
            )
            for body in (evil, quote, turned, "{{ 7*7 }}{% raw %}", json.dumps({evil: quote}))
        ]  # fmt: skip
        (queue,) = await admin.topic_queues("Evil")
        await admin.update_consume_offset("group-a", queue, 0)
    pages = [await writer.get("/messages", topic="Evil"), await writer.get("/")]
    pages += [
        await writer.get(
            "/message", topic="Evil", queue="broker-a:0", offset=each.queue_offset, view=view
        )
        for each in sent
        for view in ("auto", "text", "json", "hex")
    ]
    place = {"topic": "Evil", "queue": "broker-a:0", "offset": "1"}
    pages.append(await writer.post("/write/message.again", {**place, "to": "Evil"}))
    pages.append(await writer.get("/messages", topic="Evil", key=evil, tag=quote, body=evil))
    pages.append(await writer.get("/messages", topic="Evil", sql=evil))
    pages.append(await writer.get("/topics", q=quote))
    pages.append(await writer.get("/topic", 400, name=evil))
    pages.append(await writer.post("/write/message.again", {**place, "to": evil}, 400))
    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert "49{%" not in page
    assert "\\u202e" in "".join(pages)
    answer = await writer.http.get("/body", params=place)
    assert answer.content == quote.encode()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


async def test_four_mebibytes_are_shown_by_their_beginning(
    reader: Browser, broker: EmbeddedBroker
) -> None:
    body = b"<b>" * (4 * 1024 * 1024 // 3 - 1000)
    async with Producer("makers", config=broker.client_config) as producer:
        sent = await producer.send(Message("Big", body))
    place: dict[str, Any] = {
        "topic": "Big",
        "queue": f"broker-a:{sent.message_queue.queue_id}",
        "offset": sent.queue_offset,
    }
    for view in ("auto", "text", "json", "hex"):
        page = await reader.get("/message", **place, view=view)
        assert len(page) < 1_000_000
        assert "This is its beginning" in page
    assert len((await reader.http.get("/body", params=place)).content) == len(body)
    assert "&lt;b&gt;" in await reader.get("/messages", topic="Big")


async def test_a_message_is_sent_and_sent_again(writer: Browser, broker: EmbeddedBroker) -> None:
    async with Admin(config=broker.client_config) as admin:
        await admin.create_topic("Orders", queue_nums=1)
        await admin.create_topic("Copies", queue_nums=1)
        page = await writer.write(
            "message.send",
            {
                "topic": "Orders", "body": "line one\r\nline two", "tags": "T", "keys": "a b",
                "properties": "region=eu\r\nname=a=b",
            },
        )  # fmt: skip
        assert "SEND_OK" in page
        (stored,) = broker.messages("Orders")
        assert stored.body == b"line one\nline two"
        assert (stored.tags, stored.keys) == ("T", "a b")
        assert (stored.properties["region"], stored.properties["name"]) == ("eu", "a=b")
        await writer.write("message.send", {"topic": "Orders", "body": "00 ff", "kind": "hex"})
        assert broker.bodies("Orders")[1] == b"\x00\xff"
        await writer.write(
            "message.again",
            {"topic": "Orders", "queue": "broker-a:0", "offset": "1", "to": "Copies"},
        )
        assert broker.bodies("Copies") == [b"\x00\xff"]
        assert "00 ff" in await writer.get("/messages", topic="Copies")
    for fields, said in (
        ({"topic": "Orders", "body": ""}, "empty"),
        ({"topic": "Orders", "body": "zz", "kind": "hex"}, "hexadecimal"),
        ({"topic": "Orders", "body": "x", "properties": "novalue"}, "is not NAME=VALUE"),
        ({"topic": "Orders", "body": "x", "delay_ms": "-5"}, "outside"),
    ):
        assert said in await writer.post("/write/message.send", fields, 400)


async def test_a_message_as_a_command_and_as_python(
    reader: Browser, broker: EmbeddedBroker
) -> None:
    async with Producer("makers", config=broker.client_config) as producer:
        sent = await producer.send(
            Message("T", b"it's $HOME", tags="A", keys=["k1", "k2"], properties={"p": "v w"})
        )
    place = f"broker-a:{sent.message_queue.queue_id}"
    page = await reader.get("/message", topic="T", queue=place, offset=sent.queue_offset)
    found = re.search(r'<pre id="as-command" tabindex="0">(.*?)</pre>', page, re.DOTALL)
    assert found is not None
    assert shlex.split(html.unescape(found[1])) == [
        "oberth", "message", "send", "--tag", "A", "--key", "k1", "--key", "k2",
        "--property", "p=v w", "T", "it's $HOME",
    ]  # fmt: skip
    program = re.search(r'<pre id="as-python" tabindex="0">(.*?)</pre>', page, re.DOTALL)
    assert program is not None
    compile(html.unescape(program[1]), "program", "exec")


PLAIN = b'{"a": [1, 2]}' * 40


def test_bodies_that_producers_compressed() -> None:
    for packed, layers in (
        (gzip.compress(PLAIN), ("gzip",)),
        (zlib.compress(PLAIN), ("zlib",)),
        (lz4.frame.compress(PLAIN), ("LZ4",)),
        (zstandard.compress(PLAIN), ("Zstandard",)),
        (gzip.compress(zstandard.compress(PLAIN)), ("gzip", "Zstandard")),
        (PLAIN, ()),
    ):
        assert unpack(packed) == (PLAIN, layers)
    for body in (b"\x1f\x8b\x08nonsense", b"\x28\xb5\x2f\xfdnonsense", b"x\x9cnonsense"):
        assert unpack(body) == (body, ())


def test_a_body_that_claims_to_become_gigabytes_is_cut() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    plain, _ = unpack(bomb)
    assert len(plain) <= 8 << 20
    assert unpack(zstandard.compress(b"\0" * (64 << 20)))[1] == ()


def test_views_of_bodies() -> None:
    assert decode(b'{"b":1,"a":[]}').text == '{\n  "b": 1,\n  "a": []\n}'
    assert decode(b'{"b":1').kind == "text"
    assert decode(b"\xff\xfe\x00").kind == "hex"
    assert decode(b"").kind == "empty"
    assert decode("Grüße".encode()).text == "Grüße"
    assert decode(b"abc", "json").problem
    assert decode(b"abc", "hex").text == "00000000  61 62 63" + " " * 41 + "abc"
    assert decode(b"[" * 100_000).kind == "text"
    assert decode(b"1" * 10_000, "json").kind in ("json", "text")
    assert decode(("ü" * 200_000).encode()).is_cut
    assert hex_dump(bytes(range(20))).count("\n") == 1
    assert snippet(gzip.compress(b"hello " * 100)).startswith("hello hello")
    assert snippet(b"\xff" * 100).endswith("100 bytes")


def test_cursors() -> None:
    cursor = {("broker-a", 1): 5, ("b,c:d", 0): 2**40}
    assert parse_cursor(cursor_text(cursor)) == cursor
    for text in ("", "a", "a:1", "a:1:x", "a:1:-1", "a:1:²", "a:1:" + "9" * 30, "x" * 100_000):
        with pytest.raises(OptionError):
            parse_cursor(text)


def test_filters() -> None:
    assert matcher() is None
    assert matcher(tag="*") is None
    with pytest.raises(FormatError):
        matcher(sql="a >")


def test_traces_are_read_back() -> None:
    pub = "Pub 1000 R makers T ID1 - k h:1 3 7 0 OFF true c".replace(" ", "\x01")
    before = "\x01".join(("SubBefore", "2000", "R", "eaters", "REQ", "ID1", "1", "k"))
    after = "\x01".join(("SubAfter", "REQ", "ID1", "12", "false", "k", "2", "2012", "eaters"))
    steps = steps_of([f"{after}\x02{before}\x02", f"{pub}\x02odd\x01ID1\x02"], "ID1")
    assert [(each.kind, each.group, each.outcome, each.cost_ms) for each in steps] == [
        ("sent", "makers", "success", 7),
        ("given", "eaters", "", None),
        ("consumed", "eaters", "exception", 12),
    ]
    assert steps[1].detail == "attempt 2"


async def test_browse_stops_where_its_bounds_are(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oberth.console.browse.LOOKED_MAX", 10)
    ends = {
        (queue.broker_name, queue.queue_id): end
        for queue, end in (await admin.topic_stats("Orders")).offset_table.items()
    }
    looked, cursor, found = 0, None, []
    while cursor is None or cursor:
        page = await browse(
            admin, "Orders", ends, is_newest_first=True, cursor=cursor, limit=5,
            match=matcher(text='"order": 3}'),
        )  # fmt: skip
        cursor, looked = page.cursor, looked + page.looked
        assert page.looked <= 10
        found += page.messages
    assert looked == COUNT
    assert [each.body for each in found] == [b'{"order": 3}']


async def compressed(broker: EmbeddedBroker, topic: str, stored: bytes, **properties: str) -> None:
    """A message with the flag of compressed bodies, as any producer can send it."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "1", "g": "0"}
    fields |= {"h": "0", "j": "0", "i": "".join(f"{k}\x01{v}\x02" for k, v in properties.items())}
    request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=stored)
    client = RemotingClient()
    assert (await client.invoke(broker.address, request, 60.0)).code == 0
    await client.aclose()


async def test_bodies_that_become_large_are_not_unpacked_on_the_loop(
    broker: EmbeddedBroker, writer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page of them would hold up all the others: 64 KiB may become 64 MiB."""
    on_loop: list[tuple[str, int]] = []
    here = threading.get_ident()

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made = function(*arguments)
            if threading.get_ident() == here:
                on_loop.append((function.__name__, len(made)))
            return made

        return call

    for module, name in (
        (client_messages, "decompress_body"),
        (decoding, "decompress"),
        (decoding, "decompress_head"),
    ):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    large = b"tall order ".ljust(8 << 20)
    stored = zlib.compress(large)
    topic = names.dlq_topic("g")
    await compressed(broker, topic, stored, KEYS="k", UNIQ_KEY="U")
    await compressed(broker, names.TRACE_TOPIC, stored, KEYS="U")
    await compressed(broker, "Timed", stored, TIMER_DELAY_SEC="900")
    pages: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/messages", {"topic": topic}),
        ("/messages", {"topic": topic, "body": "TALL"}),
        ("/messages", {"topic": topic, "key": "k", "body": "TALL"}),
        ("/letters", {"group": "g"}),
        ("/waiting", {}),
    )
    for path, fields in pages:
        assert "tall order" in await writer.get(path, **fields), path
    place: dict[str, Any] = {"topic": topic, "queue": "broker-a:0", "offset": 0}
    assert texts.number(len(large)) in await writer.get("/message", **place)
    assert len(await writer.get("/body", **place)) == len(large)
    refused = await writer.post("/write/message.again", {**place, "to": "Timed"}, 400)
    assert "at most 4194304 can be sent" in refused
    assert on_loop == []


@pytest.mark.parametrize("kind", list(compression.Compression))
def test_the_beginning_of_what_becomes_large(kind: compression.Compression) -> None:
    large = b"tall order ".ljust(64 << 20)
    packed = compression.compress(large, kind)
    assert compression.decompress_head(packed, kind, 100) == large[:100]
    assert snippet(packed) == snippet(large[:2048])
    with pytest.raises(FormatError):
        compression.decompress_head(b"no such body", kind, 100)
