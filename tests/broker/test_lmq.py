"""Light message queues in a broker: sent once, read from each queue, offsets in their own file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oberth.broker.lmq_consumer_offsets import LmqConsumerOffsets
from oberth.client.messages import decode_messages
from oberth.formats.config_json import parse_config
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}


async def call(mq: EmbeddedBroker, code: int, fields: dict[str, object], body: bytes = b"") -> Any:
    async with RemotingClient() as client:
        request = RemotingCommand(code=code, body=body)
        request.ext_fields = {name: str(value) for name, value in fields.items()}
        return await client.invoke(mq.address, request, timeout_s=100.0)


async def pull(mq: EmbeddedBroker, topic: str, offset: int = 0) -> Any:
    fields: dict[str, object] = {
        "consumerGroup": "%LMQ%GID", "topic": topic, "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subVersion": 1, "subscription": "*",
    }  # fmt: skip
    return await call(mq, 11, fields)


async def test_one_message_is_read_from_every_light_queue_it_names() -> None:
    async with EmbeddedBroker(SETTINGS) as mq:
        for number in range(6):
            text = f"INNER_MULTI_DISPATCH\x01%LMQ%dev{number % 2},%LMQ%all\x02"
            fields: dict[str, object] = {
                "a": "P", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
                "i": text,
            }  # fmt: skip
            assert (await call(mq, 310, fields, b"%d" % number)).code == 0
        every = await pull(mq, "%LMQ%all")
        assert every.code == 0
        assert [m.body for m in decode_messages(every.body, "b")] == [b"%d" % n for n in range(6)]
        one = await pull(mq, "%LMQ%dev1")
        assert [m.body for m in decode_messages(one.body, "b")] == [b"1", b"3", b"5"]
        assert (await pull(mq, "%LMQ%../x")).code == ResponseCode.TOPIC_NOT_EXIST
        offset: dict[str, object] = {
            "consumerGroup": "%LMQ%GID", "topic": "%LMQ%all", "queueId": 0, "commitOffset": 4,
        }  # fmt: skip
        assert (await call(mq, 15, offset)).code == 0
        assert "%LMQ%GID" not in {each.group_name for each in mq.broker.parts.groups}
        await mq.restart()
        asked = await call(mq, 14, offset)
        assert (asked.code, asked.fields["offset"]) == (0, "4")
        config = Path(mq.store_dir) / "config"
        assert not (config / "consumerOffset.json").exists()
        document = parse_config((config / "lmqConsumerOffset.json").read_bytes())
        assert document["lmqOffsetTable"] == {"%LMQ%all@%LMQ%GID": 4}


async def test_without_the_switch_there_are_no_light_topics() -> None:
    async with EmbeddedBroker() as mq:
        assert (await pull(mq, "%LMQ%all")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_golden_store_goes_on(golden_store: Callable[[str], Any], tmp_path: Path) -> None:
    golden = golden_store("lmq-broker-5.5.0")
    before = parse_config((golden.root / "config" / "lmqConsumerOffset.json").read_bytes())
    settings = {"brokerName": "broker-golden", "brokerClusterName": "GoldenCluster"}
    async with EmbeddedBroker({**golden.config, **settings}, store=golden.root) as mq:
        for group, topic in (("%LMQ%GID_x", "%LMQ%dev1"), ("%LMQ%GID_x", "%LMQ%all")):
            assert mq.broker.parts.offsets.query(group, topic, 0) == 2
            assert mq.broker.parts.offsets.topics_of_group(group).count(topic) == 1
        response = await pull(mq, "%LMQ%all")
        assert len(decode_messages(response.body, "b")) == 20
        shutil.copytree(golden.root / "config", tmp_path / "config")
    after = parse_config((golden.root / "config" / "lmqConsumerOffset.json").read_bytes())
    assert after["lmqOffsetTable"] == before["lmqOffsetTable"]


def test_a_table_is_what_is_committed() -> None:
    offsets = LmqConsumerOffsets()
    offsets.commit("g", "T", 1, 5, 1)
    offsets.commit("%LMQ%g", "%LMQ%t", 0, 7, 1)
    assert sorted(group for _, group, _ in offsets) == ["%LMQ%g", "g"]
    assert offsets.queues("%LMQ%g", "%LMQ%t") == {0: 7}
    again = LmqConsumerOffsets()
    again.read(parse_config(offsets.encode()))
    assert again.encode() == offsets.encode()
    assert again.groups_of_topic("%LMQ%t") == ["%LMQ%g"]
    again.delete_group("%LMQ%g")
    assert again.query("%LMQ%g", "%LMQ%t", 0) == -1
    assert again.query("g", "T", 1) == 5


async def test_light_names_with_an_at_do_not_keep_a_broker_from_starting() -> None:
    """As clients of MQTT have them: the file was refused as a whole."""
    async with EmbeddedBroker(SETTINGS) as mq:
        fields: dict[str, object] = {
            "a": "P", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
            "i": "INNER_MULTI_DISPATCH\x01%LMQ%p2p@dev\x02",
        }  # fmt: skip
        assert (await call(mq, 310, fields, b"x")).code == 0
        assert (await pull(mq, "%LMQ%p2p@dev")).code == 0
        offset: dict[str, object] = {"topic": "%LMQ%p2p@dev", "queueId": 0, "commitOffset": 1}
        groups = ("%LMQ%GID@@@dev", "G")
        for group in groups:
            assert (await call(mq, 15, {**offset, "consumerGroup": group})).code == 0
        await mq.restart()
        for group in groups:
            asked = await call(mq, 14, {**offset, "consumerGroup": group})
            assert (asked.code, asked.fields["offset"]) == (0, "1")
