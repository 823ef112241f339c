"""What only a broker says of a message cannot be brought in by a client, whatever it sends."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from oberth.broker.acl.needs import Action, Kind, Need, needs_of
from oberth.formats import properties as p
from oberth.formats.batch_body import BatchItem, decode_batch, encode_batch
from oberth.formats.message import MessageExt
from oberth.formats.properties import encode_properties
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand

FORGED = dict.fromkeys(sorted(p.BROKER_ONLY), "6") | {"__RMQ.TRANSIENT.x": "6"}
OWN = {"UNIQ_KEY": "K1", "mine": "1", "WAIT": "true"}
SENT = {**FORGED, **OWN}
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
BATCH_QUEUE = {
    "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    "attributes": "+queue.type=BatchCQ",
}  # fmt: skip


def forged(properties: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if FORGED.get(name) == value}


def last_record(live: Any) -> MessageExt:
    """The last record of the log."""
    at: int = live.broker.parts.store.min_phy_offset
    found: MessageExt | None = None
    while (message := live.broker.parts.store.look_message_by_offset(at)) is not None:
        at, found = at + message.record_size, message
    assert found is not None
    return found


def long_names(properties: dict[str, str]) -> dict[str, str]:
    return {
        "producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        "properties": encode_properties(properties).decode(),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(FORGED))
@pytest.mark.parametrize("switches", [{}, LIGHT], ids=["plain", "light"])
async def test_no_single_send_brings_one_in(
    make_live: Any, name: str, switches: dict[str, str]
) -> None:
    live = await make_live(**switches)
    alone = {**OWN, name: "6"}
    for code, fields in (
        (310, live.peer.send_fields("T", 0, alone)),
        (10, long_names(alone)),
        (325, live.peer.send_fields("T", 0, alone)),
        (324, long_names(alone)),
        (310, live.peer.send_fields("T", 0, {**alone, "TRAN_MSG": "true"})),
        (310, live.peer.send_fields("%RETRY%G", 0, alone)),
        (310, live.peer.send_fields("T", 0, {**alone, "DELAY": "5"})),
    ):
        end = live.broker.parts.store.max_phy_offset
        assert (await live.peer.call(code, fields, b"x")).code in (0, 1)  # 1: nobody had asked
        assert live.broker.parts.store.max_phy_offset > end
        stored = last_record(live)
        assert forged(stored.properties) == {}
        assert (stored.properties["mine"], stored.body) == ("1", b"x")


@pytest.mark.parametrize("line", ["4.9", "5.x"])
@pytest.mark.parametrize("switches", [{}, LIGHT], ids=["plain", "light"])
@pytest.mark.parametrize("code", [310, 320])
async def test_no_item_of_a_batch_brings_one_in(
    make_live: Any, code: int, switches: dict[str, str], line: str
) -> None:
    live = await make_live(rocketmqLine=line, **switches)
    sent = {**SENT, p.INNER_MULTI_DISPATCH: "V"}
    items = [BatchItem(0, b"%d" % n, encode_properties({"i": str(n), **sent})) for n in range(2)]
    items.append(BatchItem(0, b"2", b"__CRC32#\x010000000000"))
    fields = live.peer.send_fields("T", 0, sent, m="true")
    assert (await live.peer.call(code, fields, encode_batch(items))).code == 0
    stored = await live.peer.read("T")
    assert [message.body for message in stored] == [b"0", b"1", b"2"]
    for message in stored:
        assert forged(message.properties) == {}
        assert p.INNER_MULTI_DISPATCH not in message.properties
    assert [message.properties.get("mine") for message in stored[:2]] == ["1", "1"]
    if line == "5.x":
        # Glued to a value it would still be read as the checksum of the record.
        tail = encode_batch([BatchItem(0, b"x", b"a\x01b__CRC32#\x010000000000\x02")])
        assert (await live.peer.call(code, fields, tail)).code == 13


async def test_no_inner_batch_brings_one_in(make_live: Any) -> None:
    live = await make_live(**LIGHT)
    assert (await live.peer.call(17, BATCH_QUEUE)).code == 0
    item = encode_properties({**SENT, p.INNER_MULTI_DISPATCH: "V"})
    body = encode_batch([BatchItem(7, b"%d" % n, item) for n in range(3)])
    sent = {**SENT, p.INNER_MULTI_DISPATCH: "%LMQ%mine"}
    for number in range(2):
        response = await live.peer.call(320, live.peer.send_fields("B", 0, sent, m="true"), body)
        assert (response.code, response.fields["queueOffset"]) == (0, str(3 * number))
    stored = last_record(live)
    expected = {p.INNER_NUM: "3", p.INNER_BASE: "3", p.INNER_MULTI_QUEUE_OFFSET: "1"}
    assert {name: stored.properties.get(name) for name in expected} == expected
    assert forged(stored.properties) == {}
    for each in decode_batch(stored.body):
        assert p.decode_properties(each.properties) == OWN
        assert each.flag == 7
    # An item without a batch's key is a record of its own, and takes no more than one place.
    response = await live.peer.call(320, live.peer.send_fields("B", 0, {}, m="true"), body)
    assert response.code == 0
    live.broker.services.dispatching.now()
    assert live.broker.parts.store.max_offset_in_queue("B", 0) == 9


@pytest.mark.parametrize("code", [310, 320])
@pytest.mark.parametrize("flag", [INNER_BATCH, NEED_UNWRAP, INNER_BATCH | NEED_UNWRAP])
async def test_no_flag_makes_a_message_count_for_many(live: Any, code: int, flag: int) -> None:
    assert (await live.peer.call(17, BATCH_QUEUE)).code == 0
    for batch in ("false", "true"):
        fields = live.peer.send_fields("B", 0, {"INNER_NUM": "1000"}, f=str(flag), m=batch)
        body = encode_batch([BatchItem(0, b"x", b"")])
        assert (await live.peer.call(code, fields, body)).code == 13
    assert live.broker.parts.store.max_offset_in_queue("B", 0) == 0
    fields = live.peer.send_fields("T", 0, {"INNER_NUM": "1000"}, f=str(flag))
    assert (await live.peer.call(325, fields, b"x")).code == 1
    (message,) = await live.peer.read("T")
    assert message.sys_flag & (INNER_BATCH | NEED_UNWRAP) == 0


@pytest.mark.parametrize("victim", ["V", "%LMQ%v"])
@pytest.mark.parametrize("switches", [LIGHT, {"enableMultiDispatch": "true"}], ids=["both", "one"])
@pytest.mark.parametrize("line", ["4.9", "5.x"])
async def test_no_sender_takes_the_next_place_of_another_queue(
    make_live: Any, line: str, switches: dict[str, str], victim: str
) -> None:
    live = await make_live(rocketmqLine=line, **switches)
    assert (await live.peer.send("V", b"first")).code == 0
    place = {p.INNER_MULTI_DISPATCH: victim, p.INNER_MULTI_QUEUE_OFFSET: "1"}
    body = encode_batch([BatchItem(0, b"forged", encode_properties(place))] * 2)
    assert (await live.peer.call(320, live.peer.send_fields("A", m="true"), body)).code == 0
    assert (
        await live.peer.call(320, live.peer.send_fields("A", 0, place, m="true"), body)
    ).code == 0
    assert (await live.peer.send("A", b"forged", 0, {p.INNER_MULTI_QUEUE_OFFSET: "1"})).code == 0
    honest = {p.INNER_MULTI_DISPATCH: victim} if victim != "V" else {}
    for body in (b"second", b"third"):
        assert (await live.peer.send("V", body, 0, honest)).code == 0
    await live.restart()  # and recovery finds the same
    bodies = [message.body for message in await live.peer.read("V")]
    assert bodies == [b"first", b"second", b"third"]
    if "enableLmq" in switches and victim != "V":
        light = [message.body for message in await live.peer.read(victim)]
        assert light == [b"second", b"third"]
    assert [message.body for message in await live.peer.read("A")] == [b"forged"] * 5


@pytest.mark.parametrize("line", ["4.9", "5.x"])
@pytest.mark.parametrize(
    "name",
    ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%RETRY%G", "../x"],
)
async def test_light_queues_are_none_of_the_brokers_own(
    make_live: Any, line: str, name: str
) -> None:
    live = await make_live(rocketmqLine=line, **LIGHT)
    before = live.broker.parts.store.max_offset_in_queue(name, 0) if "/" not in name else 0
    response = await live.peer.send("A", b"x", 0, {p.INNER_MULTI_DISPATCH: f"%LMQ%ok,{name}"})
    assert response.code == 13
    if "/" not in name:
        assert live.broker.parts.store.max_offset_in_queue(name, 0) == before


async def test_a_half_message_is_in_no_light_queue_before_its_commit(make_live: Any) -> None:
    live = await make_live(**LIGHT)
    properties = {"TRAN_MSG": "true", "PGROUP": "PG", p.INNER_MULTI_DISPATCH: "%LMQ%q"}
    for body, decision in ((b"kept", "8"), (b"gone", "12")):
        sent = await live.peer.send("T", body, 0, properties)
        half = last_record(live)
        seen = len(await live.peer.read("%LMQ%q"))
        assert seen == (decision == "12")
        ended = {
            "producerGroup": "PG", "tranStateTableOffset": sent.fields["queueOffset"],
            "commitLogOffset": str(half.commit_log_offset), "commitOrRollback": decision,
            "fromTransactionCheck": "false", "msgId": "m", "transactionId": "t",
        }  # fmt: skip
        assert (await live.peer.call(37, ended)).code == 0
    assert [message.body for message in await live.peer.read("%LMQ%q")] == [b"kept"]


async def test_a_message_sent_back_says_where_it_was_read(make_live: Any) -> None:
    live = await make_live(**LIGHT)
    claims = {p.RETRY_TOPIC: "Other", p.INNER_MULTI_DISPATCH: "%LMQ%q"}
    assert (await live.peer.send("T", b"x", 0, claims)).code == 0
    (message,) = await live.peer.read("T")
    fields = {"offset": str(message.commit_log_offset), "group": "G", "delayLevel": "-1"}
    assert (await live.peer.call(36, fields)).code == 0
    (dead,) = await live.peer.read("%DLQ%G")
    assert dead.properties[p.RETRY_TOPIC] == "T"
    assert p.INNER_MULTI_QUEUE_OFFSET not in dead.properties
    assert len(await live.peer.read("%LMQ%q")) == 1


@pytest.mark.parametrize("field", ["producerGroup", "recallHandle"])
async def test_a_recall_brings_in_nothing_but_its_key(make_live: Any, field: str) -> None:
    live = await make_live(recallMessageEnable="true")
    assert (await live.peer.send("T", b"x")).code == 0
    due_ms = live.broker.parts.now_ms() + 20_000
    key, group = "K", "PG"
    if field == "producerGroup":
        group += "\x02INNER_MULTI_QUEUE_OFFSET\x011\x02REAL_TOPIC\x01Other"
    else:
        key += "\x02REAL_TOPIC\x01Other"
    handle = base64.urlsafe_b64encode(f"v1 T broker-a {due_ms} {key}".encode()).decode()
    fields = {"producerGroup": group, "topic": "T", "recallHandle": handle}
    end = live.broker.parts.store.max_phy_offset
    response = await live.peer.call(370, fields)
    assert response.code == ResponseCode.ILLEGAL_OPERATION
    assert "separator" in (response.remark or "")
    assert live.broker.parts.store.max_phy_offset == end


def test_a_light_queue_of_a_lite_topic_needs_its_parent() -> None:
    properties = encode_properties({p.INNER_MULTI_DISPATCH: "%LMQ%q,%LMQ%$parent$x,V"}).decode()
    request = RemotingCommand(code=310, ext_fields={"b": "A", "i": properties})
    may_publish = frozenset({Action.PUB})
    assert list(needs_of(request, lambda offset: None)) == [
        Need(Kind.TOPIC, name, may_publish) for name in ("A", "%LMQ%q", "parent", "V")
    ]
