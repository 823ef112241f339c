"""Every code with nothing, with rubbish and with wrong types: an answer, and the broker goes on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from oberth.errors import RemotingError
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand, encode_frame_bytes
from oberth.remoting.headers.table import HEADERS

RUBBISH_BODIES = (b"", b"{}", b"[]", b"null", b"\xff" * 40, b'{"a":' * 100, b"7", b'{"topic":3}')


def rubbish_fields(code: int) -> list[dict[str, str] | None]:
    """Header fields of a code with values that cannot be meant."""
    header_type = HEADERS.get(code, (None, None))[0]  # type: ignore[call-overload]
    if header_type is None:
        return [None, {"x": "y"}]
    names = header_type.__struct_encode_fields__
    return [
        None,
        {},
        dict.fromkeys(names, ""),
        dict.fromkeys(names, "-1"),
        dict.fromkeys(names, str(2**63 - 1)),
        dict.fromkeys(names, "9" * 300),
        dict.fromkeys(names, "../../../etc/passwd"),
        dict.fromkeys(names, "a\x00b\x01c\x02%s{}"),
        dict.fromkeys(names, "true"),
    ]


async def test_every_code_is_answered_and_nothing_breaks(live: Any, tmp_path: Any) -> None:
    await live.peer.send("T", b"before")
    live.peer.client.processors.sync([40], lambda channel, request: None)
    channel = await live.peer.channel()
    for code in sorted(live.broker.services.processors.codes):
        futures = []
        for fields in rubbish_fields(code):
            for body in (b"", random.Random(code).choice(RUBBISH_BODIES)):
                request = RemotingCommand(code=code, ext_fields=fields, body=body)
                futures.append(channel.invoke_nowait(request, 8.0))
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert not channel.is_closed, code
        silent = [each for each in answers if isinstance(each, RemotingError)]
        assert len(silent) <= 2, (code, silent[:1])
    assert (await live.peer.send("T", b"after")).code == 0
    messages = [message.body for message in await live.peer.read("T")]
    assert messages[0] == b"before"
    assert messages[-1] == b"after"
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside == {"store-0"}


async def test_a_place_inside_a_body_is_no_message(live: Any) -> None:
    """A producer knows where its body will lie, and can put a record there that says so."""
    store = live.broker.parts.store
    topic = b"payments"
    size = 88 + 3 + len(topic)
    assert (await live.peer.send("T", bytes(size))).code == 0
    first = store.look_message_by_offset(0)
    assert first is not None
    inside = first.record_size + 88

    def forged(at: int) -> bytes:
        record: bytes = replace(
            first, topic=topic.decode(), commit_log_offset=at, record_size=size, body=b"",
            properties_raw=b"", queue_offset=7,
        ).encode()  # fmt: skip
        return record

    assert (await live.peer.send("T", forged(inside))).code == 0
    assert store.look_message_by_offset(inside).topic == "payments"
    for reached in (store.reput.offset, 0, first.record_size):
        store.reput.offset, before = reached, store.reput.offset
        assert store.find_message(inside) is None
        assert store.find_message(first.record_size) is not None
        store.reput.offset = before
    for at, found in ((inside, False), (first.record_size, True)):
        answer = await live.peer.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at)})
        assert (answer.code == 0) is found
    back = {"offset": str(inside), "group": "g", "delayLevel": "0", "originMsgId": "x",
            "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "3"}  # fmt: skip
    assert (await live.peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code != 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff" + b"x" * 100,
        b"\x7f\xff\xff\xff\x00\x00\x00\x10",
        b"\x00\x00\x00\x05\x02\x00\x00\x01x",
        b"\x00\x00\x00\x0e\x00\x00\x00\x0anot a json",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
    ],
)
async def test_a_broken_connection_is_closed_and_the_others_live(live: Any, data: bytes) -> None:
    await live.peer.send("T")
    reader, writer = await asyncio.open_connection(*live.broker.address)
    writer.write(data)
    async with asyncio.timeout(100):
        while await reader.read(4096):
            pass
    writer.close()
    assert (await live.peer.send("T")).code == 0


async def test_a_peer_that_does_not_read_holds_up_nobody(live: Any) -> None:
    body = b"x" * 60_000
    for _ in range(16):
        await live.peer.send("T", body)
    reader, writer = await asyncio.open_connection(*live.broker.address)
    pull = encode_frame_bytes(
        RemotingCommand(code=11, ext_fields=live.peer.pull_fields("T", 0, maxMsgNums="32"))
    )
    writer.write(pull * 200)
    for _ in range(50):
        assert (await live.peer.send("T", b"y")).code == 0
    writer.close()
    del reader


async def test_half_open_connections_do_no_harm(live: Any) -> None:
    writers = []
    for n in range(100):
        _, writer = await asyncio.open_connection(*live.broker.address)
        writer.write(b"\x00\x00\x01\x00"[: n % 5])
        writers.append(writer)
    assert (await live.peer.send("T")).code == 0
    for writer in writers:
        writer.close()
    await live.until(lambda: len(live.broker.server.channels) <= 1)
