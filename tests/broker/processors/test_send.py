"""Sends over a socket: what is stored, what is answered, and every check with its code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oberth.client.messages import decode_messages
from oberth.errors import StoreFullError
from oberth.formats.batch_body import BatchItem, decode_batch, encode_batch
from oberth.formats.message import MessageExt, decode_host, decode_record
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.command import RemotingCommand, decode_json_header, encode_frame_bytes
from oberth.store.messages import PutMessageResult, PutMessageStatus


async def test_a_message_is_stored_and_answered(live: Any) -> None:
    response = await live.peer.send("T", b"body", 2, {"TAGS": "A", "UNIQ_KEY": "U1", "k": "v"})
    assert response.code == 0
    fields = response.fields
    assert (fields["queueId"], fields["queueOffset"]) == ("2", "0")
    assert fields["transactionId"] == "U1"
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    where = decode_offset_message_id(fields["msgId"])
    assert where.broker_address == live.peer.address
    (message,) = await live.peer.read("T", 2)
    assert message.body == b"body"
    assert message.properties == {
        "TAGS": "A",
        "UNIQ_KEY": "U1",
        "k": "v",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert message.commit_log_offset == where.commit_log_offset
    channel = await live.peer.channel()
    assert decode_host(message.born_host) == str(channel.local)


async def test_a_burst_is_answered_whole_and_in_queue_order(live: Any) -> None:
    await live.peer.send("T")
    channel = await live.peer.channel()
    futures = [
        channel.invoke_nowait(
            RemotingCommand(code=310, ext_fields=live.peer.send_fields("T"), body=str(n).encode()),
            10.0,
        )
        for n in range(300)
    ]
    responses = await asyncio.gather(*futures)
    assert [int(each.fields["queueOffset"]) for each in responses] == list(range(1, 301))
    messages = await live.peer.read("T")
    assert [message.body for message in messages[1:]] == [str(n).encode() for n in range(300)]


async def test_a_burst_of_good_and_bad_gets_each_its_answer(live: Any) -> None:
    await live.peer.send("T")
    channel = await live.peer.channel()
    topics = ["T", "bad topic!", "T", "SCHEDULE_TOPIC_XXXX", "T"]
    responses = await asyncio.gather(
        *(
            channel.invoke_nowait(
                RemotingCommand(code=310, ext_fields=live.peer.send_fields(topic), body=b"x"), 5.0
            )
            for topic in topics
        )
    )
    assert [each.code for each in responses] == [0, 29, 0, 16, 0]
    assert len(await live.peer.read("T")) == 4


async def test_code_10_has_the_long_names(live: Any) -> None:
    response = await live.peer.call(
        10,
        {
            "producerGroup": "PG",
            "topic": "T",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "1",
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "7",
            "properties": "a\x01b",
        },
        b"x",
    )
    assert response.code == 0
    (message,) = await live.peer.read("T", 1)
    assert message.flag == 7
    assert message.properties["a"] == "b"


async def test_one_way_gets_no_answer(live: Any) -> None:
    await live.peer.oneway(310, live.peer.send_fields("T"), b"x")
    await live.peer.oneway(310, live.peer.send_fields("not allowed!"), b"x")
    assert (await live.peer.send("T")).fields["queueOffset"] == "1"


async def test_a_missing_unique_key_is_made(live: Any) -> None:
    response = await live.peer.send("T", b"x", 0, {"KEYS": "MY_UNIQ_KEY"})
    (message,) = await live.peer.read("T")
    assert message.uniq_key == response.fields["transactionId"]
    assert len(message.uniq_key or "") == 32


async def test_properties_that_must_not_be_stored(live: Any) -> None:
    await live.peer.send(
        "T",
        b"x",
        0,
        {"POP_CK": "old", "CLUSTER": "wrong", "__RMQ.TRANSIENT.x": "1", "UNIQ_KEY": 'quo"te'},
    )
    (message,) = await live.peer.read("T")
    assert message.properties == {
        "CLUSTER": "DefaultCluster",
        "UNIQ_KEY": 'quo"te',
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


async def test_a_batch_becomes_messages(live: Any) -> None:
    response = await live.peer.send_batch("T", [b"a", b"b", b"c"])
    assert response.code == 0
    assert len(response.fields["msgId"].split(",")) == 3
    assert response.fields["queueOffset"] == "0"
    assert [message.body for message in await live.peer.read("T")] == [b"a", b"b", b"c"]


async def test_a_broken_batch_is_refused(live: Any) -> None:
    response = await live.peer.call(320, live.peer.send_fields("T", m="true"), b"\0\0\0\x05x")
    assert response.code == 13
    assert (await live.peer.send("T")).code == 0


async def test_the_first_send_makes_a_topic(live: Any) -> None:
    await live.peer.send("New", d="3")
    made = live.broker.parts.topics.get("New")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 6)
    await live.restart()
    assert live.broker.parts.topics.get("New") is not None


async def test_a_negative_queue_is_the_brokers_choice(live: Any) -> None:
    chosen = {(await live.peer.send("T", b"x", -1)).fields["queueId"] for _ in range(60)}
    assert chosen == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("topic", "queue_id", "code", "remark"),
    [
        ("", 0, 29, "blank"),
        ("no spaces", 0, 29, "illegal characters"),
        ("../../etc", 0, 29, "illegal characters"),
        ("y" * 128, 0, 29, "longer than topic max length: 127"),
        ("SCHEDULE_TOPIC_XXXX", 0, 16, "forbidden"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 16, "forbidden"),
        ("Known", 77, 29, "queueId[77] is illegal"),
        ("%RETRY%bad group", 0, 29, "illegal characters"),
    ],
)
async def test_refusals(live: Any, topic: str, queue_id: int, code: int, remark: str) -> None:
    await live.peer.send("Known")
    response = await live.peer.send(topic, b"x", queue_id)
    assert response.code == code
    assert remark in (response.remark or "")
    assert response.fields["MSG_REGION"] == "DefaultRegion"


async def test_without_automatic_creation_a_topic_is_unknown(make_live: Any) -> None:
    live = await make_live(autoCreateTopicEnable="false")
    response = await live.peer.send("New")
    assert response.code == 17
    assert "topic[New] not exist" in (response.remark or "")
    assert (await live.peer.send("%RETRY%G")).code == 0  # consumers must be able to retry


async def test_permissions_are_the_routes_business_but_for_order_topics(make_live: Any) -> None:
    live = await make_live(brokerPermission="4")
    assert (await live.peer.send("T")).code == 0
    found = live.broker.parts.topics.get("T")
    found.perm = 4
    assert (await live.peer.send("T")).code == 0
    found.order = True
    live.broker.processors.send.topics_changed([])
    response = await live.peer.send("T")
    assert response.code == 16
    assert "sending message is forbidden" in (response.remark or "")


async def test_a_broker_that_still_starts(make_live: Any) -> None:
    live = await make_live(startAcceptSendRequestTimeStamp=str(2**60))
    response = await live.peer.send("T")
    assert response.code == 1
    assert "unable to service" in (response.remark or "")


async def test_a_body_over_the_limit(make_live: Any) -> None:
    live = await make_live(maxMessageSize="1000")
    assert (await live.peer.send("T", b"x" * 1000)).code == 0
    response = await live.peer.send("T", b"x" * 1001)
    assert response.code == 13
    assert "body length limit 1000B" in (response.remark or "")


async def test_properties_over_the_limit(live: Any) -> None:
    assert (await live.peer.send("T", b"x", 0, {"a": "x" * 33_000})).code == 13


async def test_a_header_without_a_field_is_named(live: Any) -> None:
    fields = live.peer.send_fields("T")
    del fields["e"]
    response = await live.peer.call(310, fields, b"x")
    assert response.code == 1
    assert "e is missing" in (response.remark or "")


async def test_a_header_with_a_word_for_a_number(live: Any) -> None:
    response = await live.peer.send("T", e="one")
    assert response.code == 1
    assert "'one'" in (response.remark or "")


@pytest.mark.parametrize("field", ["f", "g", "h"])
@pytest.mark.parametrize("value", ["1e9", "1.0", str(2**31), str(-(2**63) - 1), "9" * 5000, ""])
async def test_numbers_in_any_spelling_are_taken_or_named(
    live: Any, field: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And what came with them in one write is not touched."""
    peer = live.peer
    channel = await peer.channel()
    sends = [
        RemotingCommand(code=310, ext_fields=peer.send_fields("T", **more), body=b"x")
        for more in ({}, {field: value}, {})
    ]
    answers = await asyncio.gather(*(channel.invoke_nowait(each, 100.0) for each in sends))
    assert [answers[0].code, answers[2].code] == [0, 0]
    if answers[1].code:
        assert answers[1].code == 1
        assert "HeaderError" in answers[1].remark
    else:
        found = (await peer.read("T"))[1]
        shown = {"f": found.sys_flag, "g": found.born_timestamp, "h": found.flag}[field]
        assert shown == int(float(value))
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
async def test_every_send_reads_a_number_or_names_it(
    live: Any, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    letters = live.peer.send_fields("T")
    wire_names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
        "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
        "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
    }  # fmt: skip
    for letter, value in ((letter, value) for letter in "efgh" for value in ("1e9", "1e9x")):
        fields = {**letters, letter: value}
        if code in (10, 324):
            fields = {wire_names.get(name, name): value for name, value in fields.items()}
        answer = await live.peer.call(code, fields, b"x")
        if value == "1e9x":
            assert answer.code == 1
            assert "HeaderError" in str(answer.remark)
            assert value in str(answer.remark)
        else:  # a number, though one that is no queue of the topic
            assert answer.code in (0, 1, 13, 29)
    assert "Traceback" not in caplog.text


async def test_sync_flush_answers_when_the_disk_has_it(make_live: Any) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH")
    responses = await asyncio.gather(*(live.peer.send("T", str(n).encode()) for n in range(20)))
    assert {each.code for each in responses} == {0}
    assert live.broker.parts.store.flushed_offset >= live.broker.parts.store.max_phy_offset
    assert (await live.peer.send("T", b"x", 0, {"WAIT": "false"})).code == 0
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue("T", 0) == 21)
    assert (await live.peer.send_batch("T", [b"a", b"b"])).code == 0


# ---------------------------------------------------------------------------- delay and retries


async def test_a_delayed_message_waits_in_its_level(live: Any) -> None:
    response = await live.peer.send("T", b"later", 1, {"DELAY": "1", "TAGS": "A"})
    assert response.code == 0
    assert response.fields["queueId"] == "1"
    assert await live.peer.read("T", 1) == []
    await live.later(1000)
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue("T", 1) == 1)
    (message,) = await live.peer.read("T", 1)
    assert message.body == b"later"
    assert message.properties["REAL_TOPIC"] == "T"
    assert message.tags == "A"


async def send_back(live: Any, offset: int, **more: str) -> RemotingCommand:
    fields = {"offset": str(offset), "group": "G", "delayLevel": "0", **more}
    response: RemotingCommand = await live.peer.call(36, fields)
    return response


async def test_send_back_goes_to_the_retry_topic(live: Any) -> None:
    await live.peer.send("T", b"again", 0, {"TAGS": "A"})
    (first,) = await live.peer.read("T")
    assert (await send_back(live, first.commit_log_offset)).code == 0
    (delayed,) = await live.peer.read("SCHEDULE_TOPIC_XXXX", 2)
    assert delayed.properties["DELAY"] == "3"
    await live.later(10_000)
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue("%RETRY%G", 0) == 1)
    (again,) = await live.peer.read("%RETRY%G")
    assert again.reconsume_times == 1
    assert again.body == b"again"
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.properties["ORIGIN_MESSAGE_ID"] == (
        f"{first.store_host.hex().upper()}{first.commit_log_offset:016X}"
    )
    assert again.born_host == first.born_host
    # The next attempt waits longer and still names its origin.
    assert (await send_back(live, again.commit_log_offset)).code == 0
    (delayed,) = await live.peer.read("SCHEDULE_TOPIC_XXXX", 3)
    assert delayed.reconsume_times == 2
    assert delayed.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize("how", [{"delayLevel": "-1"}, {"maxReconsumeTimes": "0"}])
async def test_send_back_ends_in_the_dead_letter_topic(live: Any, how: dict[str, str]) -> None:
    await live.peer.send("T", b"dead")
    (first,) = await live.peer.read("T")
    assert (await send_back(live, first.commit_log_offset, **how)).code == 0
    (dead,) = await live.peer.read("%DLQ%G")
    assert dead.body == b"dead"
    assert dead.properties["DELAY"] == "0"
    found = live.broker.parts.topics.get("%DLQ%G")
    assert found is not None
    assert found.perm == 6


async def test_send_back_refusals(make_live: Any) -> None:
    live = await make_live(autoCreateSubscriptionGroup="false")
    assert (await send_back(live, 0)).code == 26
    live = await make_live()
    response = await send_back(live, 123)
    assert response.code == 1
    assert "look message by offset failed, 123" in (response.remark or "")
    found = live.broker.parts.groups.find("G")
    found.retry_queue_nums = 0
    assert (await send_back(live, 123)).code == 0


@pytest.mark.parametrize("trouble", ["unknown", "no permission", "full", "not stored"])
async def test_consumers_in_go_try_again_what_was_not_taken_back(
    live: Any, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """They take any answer for a success, so they get none; others are told why."""
    await live.peer.send("T", b"again")
    (message,) = await live.peer.read("T")
    store = live.broker.parts.store
    if trouble == "no permission":
        live.broker.parts.config.broker_permission = 4
    elif trouble == "full":

        def fails(_: object) -> None:
            raise StoreFullError("no room")

        monkeypatch.setattr(store, "append_messages", fails)
    elif trouble == "not stored":
        refused = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        monkeypatch.setattr(store, "append_messages", lambda _: [refused])
    offset = message.commit_log_offset + (1 if trouble == "unknown" else 0)
    fields = {"offset": str(offset), "group": "G", "delayLevel": "1"}
    reader, writer = await asyncio.open_connection(*live.broker.address)

    def frame(language: str, opaque: int) -> bytes:
        return encode_frame_bytes(
            RemotingCommand(code=36, language=language, opaque=opaque, ext_fields=fields)
        )

    writer.write(frame("GO", 0) + frame("JAVA", 1))
    answer = await next_answer(reader)
    assert (answer.opaque, answer.code) == (1, 16 if trouble == "no permission" else 1)
    monkeypatch.undo()
    live.broker.parts.config.broker_permission = 6
    if trouble != "unknown":
        writer.write(frame("GO", 2))
        answer = await next_answer(reader)
        assert (answer.opaque, answer.code) == (2, 0)
    writer.close()


async def next_answer(reader: asyncio.StreamReader) -> RemotingCommand:
    """The next frame's header, in JSON, without its body."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(size)
    return decode_json_header(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])


async def test_a_clients_own_retry_above_its_limit_is_a_dead_letter(live: Any) -> None:
    more = {"j": "3", "l": "3"}
    assert (await live.peer.send("%RETRY%G", b"again", 0, {"DELAY": "1"}, **more)).code == 0
    assert await live.peer.read("%DLQ%G") == []
    more = {"j": "4", "l": "3"}
    assert (await live.peer.send("%RETRY%G", b"dead", 0, {"DELAY": "1"}, **more)).code == 0
    (dead,) = await live.peer.read("%DLQ%G")
    assert (dead.body, dead.reconsume_times) == (b"dead", 4)


async def test_a_retry_of_an_orderly_group_is_a_dead_letter(live: Any) -> None:
    live.broker.parts.locks.lock("G", "client", [("T", "broker-a", 0)], live.broker.parts.now_ms())
    assert (await live.peer.send("%RETRY%G", b"dead")).code == 0
    (dead,) = await live.peer.read("%DLQ%G")
    assert dead.body == b"dead"


async def test_statistics_count_what_is_stored(live: Any) -> None:
    await live.peer.send("T", b"x" * 10)
    await live.peer.send_batch("T", [b"a", b"b"])
    item = live.broker.parts.stats.item("TOPIC_PUT_NUMS", "T")
    assert item.value == 3
    assert live.broker.parts.stats.broker_put.value == 3


async def test_frames_of_one_write_come_back_in_one_piece(live: Any) -> None:
    reader, writer = await asyncio.open_connection(*live.broker.address)
    frames = b"".join(
        encode_frame_bytes(
            RemotingCommand(code=310, ext_fields=live.peer.send_fields("T"), opaque=n, body=b"x")
        )
        for n in range(50)
    )
    writer.write(frames)
    await writer.drain()
    sizes = []
    for _ in range(50):
        size = int.from_bytes(await reader.readexactly(4), "big")
        sizes.append(size)
        await reader.readexactly(size)
    writer.close()
    assert len(sizes) == 50


async def test_the_queue_of_a_priority(live: Any) -> None:
    await live.peer.send("T", b"first")  # makes the topic, with 4 queues

    async def queue_of(priority: str, **more: str) -> int:
        properties = {"_SYS_MSG_PRIORITY_": priority, **more}
        response = await live.peer.send("T", b"x", 1, properties)
        assert response.code == 0
        return int(response.fields["queueId"])

    assert [await queue_of(each) for each in ("0", "2", "3", "4", "1000")] == [0, 2, 3, 3, 3]
    assert [await queue_of(each) for each in ("-1", "high", "")] == [1, 1, 1]
    stored = (await live.peer.read("T", 3))[0]
    assert stored.properties["_SYS_MSG_PRIORITY_"] == "3"
    # What is delayed or ordered has no priority: the property goes, the queue stays.
    assert await queue_of("3", __SHARDINGKEY="k") == 1
    assert "_SYS_MSG_PRIORITY_" not in (await live.peer.read("T", 1))[-1].properties
    assert await queue_of("3", TRAN_MSG="false") == 3


async def test_a_batch_queue_keeps_a_batch_as_one_record(live: Any) -> None:
    fields = {
        "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    assert (await live.peer.call(17, fields)).code == 0
    body = encode_batch([BatchItem(0, b"%d" % n, b"") for n in range(5)])

    async def send(key: str, body: bytes = body) -> RemotingCommand:
        properties = {"UNIQ_KEY": key} if key else {}
        sent = live.peer.send_fields("B", 0, properties, m="true")
        response: RemotingCommand = await live.peer.call(320, sent, body)
        return response

    for number in range(3):
        response = await send(f"key-{number}")
        assert response.code == 0
        assert response.fields["batchUniqId"] == f"key-{number}"
        assert response.fields["queueOffset"] == str(5 * number)
        assert len(response.fields["msgId"]) == 32  # one record, one id
    assert (await live.peer.call(30, {"topic": "B", "queueId": "0"})).fields == {"offset": "15"}
    answer = await live.peer.pull("B", 7, maxMsgNums="15")
    stored: list[MessageExt] = []
    while (at := sum(each.record_size for each in stored)) < len(answer.body_bytes()):
        stored.append(decode_record(answer.body_bytes(), at, check_crc=True))
    assert [each.queue_offset for each in stored] == [5, 10]
    assert [each.sys_flag & 0xC0 for each in stored] == [0xC0, 0xC0]
    assert stored[0].properties["INNER_NUM"] == "5"
    assert stored[0].properties["INNER_BASE"] == "5"
    assert [item.body for item in decode_batch(stored[0].body)] == [b"0", b"1", b"2", b"3", b"4"]
    # Consumers see messages.
    messages = decode_messages(answer.body_bytes(), "broker-a")
    assert [(each.queue_offset, each.body) for each in messages] == [
        (5 + n, b"%d" % (n % 5)) for n in range(10)
    ]
    assert (await send("torn", body[:-1])).code == 13
    # Without a key of its own it is stored as its messages, as RocketMQ does it.
    response = await send("")
    assert "batchUniqId" not in response.fields
    assert len(response.fields["msgId"].split(",")) == 5


async def test_compaction_topics_want_keys(live: Any) -> None:
    """A message without a key would never be read, so it is not taken."""
    fields = {
        "topic": "Kept",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        "attributes": "+cleanup.policy=COMPACTION",
    }
    assert (await live.peer.call(17, fields)).code == 0
    for properties in ({}, {"KEYS": " "}, {"TAGS": "t"}):
        response = await live.peer.send("Kept", b"x", 0, properties)
        assert (response.code, response.remark) == (13, "Required message key is missing")
    assert (await live.peer.send_batch("Kept", [b"x"])).code == 13
    for n in range(3):
        assert (await live.peer.send("Kept", b"%d" % n, 0, {"KEYS": "k"})).code == 0
    assert [message.body for message in await live.peer.read("Kept")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"DELAY": "x"}, 13),
        ({"TIMER_DELIVER_MS": "tomorrow"}, 13),
        ({"TIMER_DELAY_SEC": "1.5"}, 13),
        ({"TIMER_DELAY_MS": "9" * 30}, 13),
        ({"DELAY": "0", "TIMER_DELAY_SEC": "x"}, 13),
        ({"DELAY": "99"}, 0),  # the highest level
        ({"DELAY": "1", "TIMER_DELAY_SEC": "x"}, 0),  # the level counts
        ({"DELAY": "-1"}, 0),
        ({"NO_DELAY": "x"}, 0),
    ],
)
async def test_a_time_that_is_no_number(live: Any, properties: dict[str, str], code: int) -> None:
    """It is refused: the message would come at once, and its sender would not know."""
    response = await live.peer.send("T", b"x", 0, properties)
    assert response.code == code, response.remark
