"""What an acknowledged message needs to be found is on the disk before the acknowledgement.

The disk's image is taken at every answer, as a loss of power would leave it; a broker is started on
each of them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import Peer
from tests.broker.power_cuts import Images, wall_ms
from tests.rigs.campaigns import some
from tests.rigs.small_brokers import until

from oberth.broker.acl.users import SUPER
from oberth.broker.broker import Broker
from oberth.broker.config_file import ConfigFile
from oberth.client.acl import SessionCredentials
from oberth.errors import StoreError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.config_files import MessageRequestModes
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.command import RemotingCommand
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify

pytestmark = pytest.mark.crash

TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def table_events(images: Images) -> list[str]:
    """What happened to the files of topics and groups."""
    tables = ("topics.json", "subscriptionGroup.json")
    return [what for what in images.disk.log if any(table in what for table in tables)]


@pytest.mark.parametrize("code", [10, 310, 320])
async def test_a_topic_made_by_a_send(tmp_path: Path, code: int) -> None:
    async with Images(tmp_path) as images:
        taken: list[list[Path]] = []
        for number in range(3):
            fields = images.peer.send_fields(f"T{number}", 1, m=str(code == 320).lower())
            if code == 10:
                fields = {
                    "producerGroup": "P", "topic": f"T{number}", "defaultTopic": "TBW102",
                    "defaultTopicQueueNums": "4", "queueId": "1", "sysFlag": "0",
                    "bornTimestamp": "1", "flag": "0", "properties": "",
                }  # fmt: skip
            body = encode_batch([BatchItem(0, b"x", b"")]) if code == 320 else b"x"
            assert (await images.peer.call(code, fields, body)).code == 0
            taken.append(images.take())
    for number, group in enumerate(taken):
        for image in group:

            async def look(broker: Broker, peer: Peer, number: int = number) -> None:
                for each in range(number + 1):
                    topic = broker.parts.topics.get(f"T{each}")
                    assert topic is not None
                    assert topic.write_queue_nums == 4  # not what the queues found would give
                    assert [m.body for m in await peer.read(f"T{each}", 1)] == [b"x"]

            await images.on(image, look)


async def test_a_power_cut_at_any_event_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[tuple[str, bytes]] = []
    async with Images(tmp_path) as live:
        with live.at_every_event(lambda: acknowledged.copy()) as images:
            for topic, body in (("A", b"1"), ("A", b"2"), ("B", b"3"), ("A", b"4")):
                assert (await live.peer.send(topic, body)).code == 0
                acknowledged.append((topic, body))
    assert len(images) > 20
    test = "test_a_power_cut_at_any_event_leaves_what_was_acknowledged"
    for image, expected in some(f"tests/broker/test_durable_tables.py::{test}", images):

        async def look(
            broker: Broker, peer: Peer, expected: list[tuple[str, bytes]] = expected
        ) -> None:
            for topic in {topic for topic, _ in expected}:
                bodies = [body for name, body in expected if name == topic]
                found = broker.parts.topics.get(topic)
                assert found is not None
                assert found.write_queue_nums == 4
                assert [m.body for m in await peer.read(topic)][: len(bodies)] == bodies

        await live.on(image, look)
        shutil.rmtree(image)


async def test_what_a_consumer_sent_back_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    """Its consumer goes on behind the message, and would not ask for it again."""
    async with Images(tmp_path) as images:
        assert (await images.peer.send("T", b"x")).code == 0
        (first,) = await images.peer.read("T")
        fields = {"offset": str(first.commit_log_offset), "group": "G"}
        assert (await images.peer.call(36, {**fields, "delayLevel": "18"})).code == 0
        delayed = images.take()
        assert (await images.peer.call(36, {**fields, "delayLevel": "-1"})).code == 0
        dead = images.take()

    async def look(_: Broker, peer: Peer) -> None:
        (found,) = await peer.read("SCHEDULE_TOPIC_XXXX", 17)
        assert (found.properties["REAL_TOPIC"], found.body) == ("%RETRY%G", b"x")
        if image in dead:
            assert [m.body for m in await peer.read("%DLQ%G")] == [b"x"]

    for image in delayed + dead:
        await images.on(image, look)


async def test_topics_groups_and_attributes_made_on_purpose(tmp_path: Path) -> None:
    async with Images(tmp_path) as images:
        made = {**TOPIC, "topic": "B", "attributes": "+queue.type=BatchCQ"}
        assert (await images.peer.call(17, made)).code == 0
        made_images = images.take()
        group = json.dumps({"groupName": "G", "retryMaxTimes": 3, "retryQueueNums": 2}).encode()
        assert (await images.peer.call(200, {}, group)).code == 0
        group_images = images.take()
        many = {"groupConfigList": [{"groupName": "G2"}, {"groupName": "G3"}]}
        assert (await images.peer.call(225, {}, json.dumps(many).encode())).code == 0
        many_images = images.take()
        changed = {**TOPIC, "topic": "B", "readQueueNums": "5"}
        assert (await images.peer.call(17, changed)).code == 0
        body = encode_batch([BatchItem(0, b"%d" % n, b"") for n in range(3)])
        fields = images.peer.send_fields("B", 0, {"UNIQ_KEY": "K"}, m="true")
        assert (await images.peer.call(320, fields, body)).code == 0
        last_images = images.take()

    async def look(broker: Broker, peer: Peer) -> None:
        topic = broker.parts.topics.get("B")
        assert topic is not None
        assert topic.is_batch_queue
        assert topic.read_queue_nums == (3 if image in made_images + group_images + many_images
                                         else 5)  # fmt: skip
        names = {each.group_name: each for each in broker.parts.groups}
        if image not in made_images:
            assert names["G"].retry_max_times == 3
        if image in many_images + last_images:
            assert {"G2", "G3"} <= names.keys()
        if image in last_images:
            assert broker.parts.store.max_offset_in_queue("B", 0) == 3

    for image in images.taken:
        await images.on(image, look)


async def test_what_the_disk_did_not_take_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Images(tmp_path) as images:

        def fail(file: ConfigFile, *_: object, **__: object) -> None:
            raise OSError(5, "Input/output error", str(file.path))

        with monkeypatch.context() as patch:
            patch.setattr(ConfigFile, "write", fail)
            response = await images.peer.send("T")
            assert response.code == 10  # FLUSH_DISK_TIMEOUT: stored, but not safe
            assert (await images.peer.call(17, {**TOPIC, "topic": "N"})).code == 1
        assert (await images.peer.send("T")).code == 0
        (image, *_) = images.take()

    async def look(broker: Broker, peer: Peer) -> None:
        assert "T" in broker.parts.topics
        assert "N" in broker.parts.topics

    await images.on(image, look)


async def test_a_send_to_a_known_topic_syncs_no_table(tmp_path: Path) -> None:
    async with Images(tmp_path) as images:
        assert (await images.peer.send("T")).code == 0
        images.disk.log.clear()
        for _ in range(20):
            assert (await images.peer.send("T")).code == 0
        assert table_events(images) == []


async def test_nothing_waits_where_nothing_is_promised(tmp_path: Path) -> None:
    async with Images(tmp_path, flushDiskType="ASYNC_FLUSH") as images:
        images.disk.log.clear()
        assert (await images.peer.send("T")).code == 0
        assert (await images.peer.call(17, {**TOPIC, "topic": "N"})).code == 0
        syncs = [what for what in table_events(images) if what.startswith("sync ")]
        assert syncs == []


async def test_a_topic_whose_messages_are_in_the_log_is_known_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    images = Images(tmp_path)
    async with images:
        for topic in ("Kept", "Deleted"):
            assert (await images.peer.send(topic, queue_id=0)).code == 0
        stored_ms = wall_ms()
        while wall_ms() == stored_ms:  # noqa: ASYNC110 - a clock does not tell
            await asyncio.sleep(0)
        assert (await images.peer.call(215, {"topic": "Deleted"})).code == 0
    before = (root / "config" / "topics.json").read_bytes()
    async with images.make(root) as broker:
        peer = Peer(broker)
        for topic in ("Lost", "%RETRY%G"):
            assert (await peer.send(topic, b"x", 0)).code == 0
        assert (await peer.send("Lost", b"y", 2)).code == 0
        await peer.client.aclose()
    (root / "config" / "topics.json").write_bytes(before)  # as if the disk had never had the rest
    (root / "config" / "topics.json.bak").unlink()
    with StoreReader(root) as reader:
        found = [each for each in verify(reader).findings if each.kind is FindingKind.TOPIC_UNKNOWN]
    younger = {each.topic for each in found if "younger messages" in each.found}
    assert younger == {"Lost", "%RETRY%G"}
    assert {each.topic for each in found} - younger <= {"Deleted"}  # its queue may be there
    assert {each.file for each in found} == {"config/topics.json"}
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)

    async def look(broker: Broker, peer: Peer) -> None:
        assert "Deleted" not in broker.parts.topics
        topic = broker.parts.topics.get("Lost")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)
        assert [m.body for m in await peer.read("Lost", 0)] == [b"x"]
        assert [m.body for m in await peer.read("Lost", 2)] == [b"y"]
        assert "%RETRY%G" in broker.parts.topics
        assert (await peer.send("Lost", b"z", 0)).code == 0

    await images.on(copy, look)
    with StoreReader(copy) as reader:
        report = verify(reader)
    assert report.clean
    found = [each for each in report.findings if each.kind is FindingKind.TOPIC_UNKNOWN]
    assert {each.topic for each in found} <= {"Deleted"}


@pytest.mark.parametrize("lost", ["topics.json", "config"])
async def test_a_batch_topic_that_the_tables_lost_keeps_its_messages(
    tmp_path: Path, lost: str
) -> None:
    async with Images(tmp_path) as images:
        made = {**TOPIC, "topic": "B", "attributes": "+queue.type=BatchCQ"}
        assert (await images.peer.call(17, made)).code == 0
        body = encode_batch([BatchItem(0, b"%d" % n, b"") for n in range(3)])
        fields = images.peer.send_fields("B", 0, {"UNIQ_KEY": "K"}, m="true")
        assert (await images.peer.call(320, fields, body)).code == 0
        assert (await images.peer.send("T")).code == 0
    config = images.root / "config"
    if lost == "config":
        shutil.rmtree(config)
    else:
        for path in config.glob("topics.json*"):
            path.unlink()

    async def look(broker: Broker, peer: Peer) -> None:
        topic = broker.parts.topics.get("B")
        assert topic is not None
        assert topic.is_batch_queue
        assert broker.parts.store.max_offset_in_queue("B", 0) == 3
        assert (await peer.call(320, fields, body)).code == 0
        end = await peer.call(30, {"topic": "B", "queueId": "0"})  # dispatches what is there
        assert end.fields == {"offset": "6"}
        assert (await peer.send("Fresh")).code == 0
        fresh = broker.parts.topics.get("Fresh")
        assert fresh is not None
        assert not fresh.is_batch_queue

    await images.on(images.root, look)


async def test_what_is_written_at_once_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    """Users, policies, modes and mappings: the file, its name, then the answer."""
    async with Images(tmp_path) as images:
        broker, config = images.broker, Path("config")

        def durable(name: str) -> bytes:
            image = images.take()[0]
            data = (image / config / name).read_bytes()
            assert data == (images.root / config / name).read_bytes()
            return data

        broker.services.access.users.create_user(
            UserInfo(username="u", password="p", user_type=SUPER)
        )
        assert b'"u"' in durable("authUsers.json")
        assert (await images.peer.send("T")).code == 0
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        assert (await images.peer.call(401, {}, json.dumps(mode).encode())).code == 0
        assert b'"POP"' in durable("messageRequestMode.json")
        detail = {
            "topic": "S", "bname": "broker-a", "epoch": 1, "totalQueues": 1, "scope": "__global__",
            "hostedQueues": {"0": [{
                "gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 0, "startOffset": 0,
                "endOffset": -1, "timeOfStart": -1, "timeOfEnd": -1,
            }]},
        }  # fmt: skip
        static = {**TOPIC, "topic": "S", "readQueueNums": "1", "writeQueueNums": "1"}
        response = await images.peer.call(513, static, json.dumps(detail).encode())
        assert response.code == 0, response.remark
        assert b'"S"' in durable("topicQueueMapping.json")
        image = images.take()[0]
        assert b'"S"' in (image / config / "topics.json").read_bytes()


async def test_a_start_after_two_segments_that_were_never_synced(tmp_path: Path) -> None:
    """The segment in use and the one made ahead are there by name only."""
    images = Images(tmp_path)
    log = tmp_path / "image" / "commitlog"
    log.mkdir(parents=True)
    for start in (0, 4 << 20):
        (log / f"{start:020d}").touch()

    async def look(broker: Broker, peer: Peer) -> None:
        assert (await peer.send("T", b"x")).code == 0
        assert [m.body for m in await peer.read("T")] == [b"x"]

    await images.on(tmp_path / "image", look)
    await images.peer.client.aclose()


def assert_safe(images: Images, *names: str) -> None:
    """Files of config/ are on the disk as they are."""
    image = images.take()[0]
    for name in names:
        live = images.root / "config" / name
        copy = image / "config" / name
        assert copy.exists(), f"{name} is not on the disk"
        assert copy.read_bytes() == live.read_bytes(), f"{name} is not whole on the disk"


async def test_tables_that_were_not_waited_for_are_synced_with_the_next_round(
    tmp_path: Path,
) -> None:
    async with Images(tmp_path, flushDiskType="ASYNC_FLUSH") as images:
        files = images.broker.services.table_files
        assert (await images.peer.call(17, {**TOPIC, "topic": "N"})).code == 0
        assert b'"N"' in (images.root / "config" / "topics.json").read_bytes()
        await files._write_changed()
        assert_safe(images, "topics.json", "subscriptionGroup.json")


async def test_offsets_are_not_ahead_of_the_log_that_a_loss_of_power_leaves(
    tmp_path: Path,
) -> None:
    settings = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "600000"}
    async with Images(tmp_path, **settings) as images:
        parts = images.broker.parts
        assert (await images.peer.send("T", b"x", 0)).code == 0
        parts.offsets.commit("G", "T", 0, 1, wall_ms())
        await images.broker.services.table_files._write_changed()
        assert_safe(images, "consumerOffset.json")
        image = images.take()[0]

    async def look(broker: Broker, peer: Peer) -> None:
        assert broker.parts.store.max_offset_in_queue("T", 0) == 1
        assert broker.parts.offsets.query("G", "T", 0) == 1

    await images.on(image, look)


async def test_delay_offsets_are_not_ahead_of_what_was_delivered(tmp_path: Path) -> None:
    settings = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "600000"}
    async with Images(tmp_path, **settings) as images:
        files = images.broker.services.table_files
        assert (await images.peer.send("T", b"x", 0)).code == 0
        images.broker.parts.offsets.is_dirty = False
        images.broker.parts.schedule.offsets[1] = 3
        images.broker.parts.schedule.is_dirty = files._are_delays_due = True
        await files._write_changed()
        assert_safe(images, "delayOffset.json")
        image = images.take()[0]
        log = f"commitlog/{0:020d}"
        assert (image / log).read_bytes() == (images.root / log).read_bytes()


@pytest.mark.parametrize("stops", [False, True])
async def test_tables_do_not_pass_what_the_disk_did_not_take(tmp_path: Path, stops: bool) -> None:
    settings = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "600000"}
    async with Images(tmp_path, **settings) as images:
        parts, files = images.broker.parts, images.broker.services.table_files
        assert (await images.peer.send("T", b"x", 0)).code == 0
        await files._write_or_complain()
        assert (await images.peer.send("T", b"y", 0)).code == 0
        images.disk.fails = True
        with pytest.raises(StoreError):
            parts.store.flush()
        images.disk.fails = False  # the kernel has forgotten what it could not write
        parts.offsets.commit("G", "T", 0, 2, wall_ms())
        parts.schedule.offsets[1] = 3
        parts.schedule.is_dirty = parts.topics.is_dirty = files._are_delays_due = True
        if not stops:
            (images.root / "config" / "topics.json").unlink()
            await files._write_or_complain()
            assert parts.offsets.is_dirty
            assert parts.schedule.is_dirty
            assert_safe(images, "topics.json")
            assert not parts.topics.is_dirty, "or it would be written again each second"
    (image, _) = images.take()
    for name in ("consumerOffset.json", "delayOffset.json"):
        path = image / "config" / name
        assert not path.exists() or json.loads(path.read_text())["offsetTable"] == {}

    async def look(_: Broker, peer: Peer) -> None:
        assert (await peer.send("T", b"z", 0)).code == 0
        assert (await peer.read("T"))[-1].body == b"z"

    await images.on(image, look)


async def test_progress_of_delay_levels_that_is_removed_does_not_come_back(tmp_path: Path) -> None:
    """Once the log has grown it would be believed again."""
    async with Images(tmp_path) as images:
        progress = images.broker.services.table_files.delay_progress
        images.broker.parts.schedule.offsets[1] = 3
        progress.on_time()
        images.disk.sync_all(str(images.root))
        assert (images.take()[0] / "oberth.delays").exists()
        progress.remove()
        assert not (images.take()[0] / "oberth.delays").exists()


async def test_tables_that_are_not_written_at_once_are_written_within_a_second(
    tmp_path: Path,
) -> None:
    """What clients make again by their heartbeats."""
    async with Images(tmp_path, flushDiskType="ASYNC_FLUSH") as images:
        parts, config = images.broker.parts, images.root / "config"
        tables: tuple[tuple[str, Any], ...] = (
            ("topics.json", parts.topics), ("subscriptionGroup.json", parts.groups),
        )  # fmt: skip
        await images.broker.services.table_files._write_changed()  # what the start has written
        for name, table in tables:
            (config / name).unlink()
            table.data_version = table.data_version.next(1)
            table.is_dirty = True
            await images.broker.services.table_files._write_changed()
            assert (config / name).exists()
            assert_safe(images, name)
            (config / name).unlink()
            await images.broker.services.table_files._write_changed()
            assert not (config / name).exists(), "nothing has changed since"


async def test_what_a_stop_writes_is_on_the_disk(tmp_path: Path) -> None:
    """All of config/, and no progress of delay levels beside it."""
    images = Images(tmp_path, enablePropertyFilter="true")
    async with images:
        assert (await images.peer.send("T", b"x", 0)).code == 0
        images.broker.parts.offsets.commit("G", "T", 0, 1, wall_ms())
        images.broker.parts.schedule.offsets[1] = 3
        images.broker.services.table_files.delay_progress.on_time()
        assert (images.root / "oberth.delays").exists()
        images.disk.sync_all(str(images.root))
    names = [path.name for path in (images.root / "config").glob("*.json")]
    assert {"topics.json", "consumerOffset.json", "delayOffset.json"} <= set(names)
    assert {"consumerFilter.json", "consumerOrderInfo.json"} <= set(names)
    assert_safe(images, *names)
    assert not (images.take()[0] / "oberth.delays").exists()


async def test_policies_modes_and_settings_are_on_the_disk_when_they_are_answered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store" / "config" / "broker.conf"
    path.parent.mkdir(parents=True)
    path.write_text("brokerName=broker-a\n")
    images = Images(tmp_path)
    images.broker.parts.config.broker_config_path = str(path)
    async with images:
        assert (await images.peer.send("T")).code == 0
        changed = await images.peer.call(25, {}, b"rejectTransactionMessage=true\n")
        assert changed.code == 0, changed.remark
        assert b"rejectTransactionMessage" in path.read_bytes()
        assert_safe(images, "broker.conf")
        users = images.broker.services.access.users
        users.create_user(UserInfo(username="u", password="p", user_type="Normal"))
        policy = PolicyInfo(
            policy_type="Custom",
            entries=[PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Allow")],
        )
        users.create_acl(AclInfo(subject="User:u", policies=[policy]))
        assert_safe(images, "authUsers.json", "authAcls.json")


async def test_accounts_and_a_masters_modes_are_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "accounts:\n- accessKey: administrator\n  secretKey: admin-secret\n  admin: true\n"
    )
    async with Images(tmp_path, aclEnable="true", aclFile=str(path)) as images:
        account = {"accessKey": "newcomer", "secretKey": "newcomer-secret"}
        request = RemotingCommand(code=50, ext_fields=account)
        SessionCredentials("administrator", "admin-secret").sign(request)
        answer = await images.peer.client.invoke(images.peer.address, request, 60.0)
        assert answer.code == 0, answer.remark
        assert b"newcomer" in path.read_bytes()
        assert_safe(images, "plain_acl.yml")
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        modes = MessageRequestModes.from_json({"messageRequestModeMap": {"T": {"G": mode}}})
        await images.broker.processors.assignment.replace_all(modes)
        assert_safe(images, "messageRequestMode.json")


async def test_a_flush_of_the_timer_is_on_the_disk(tmp_path: Path) -> None:
    settings = {"timerWheelEnable": "true", "timerFlushIntervalMs": "3600000"}
    async with Images(tmp_path, **settings) as images:
        due = str(wall_ms() + 3_600_000)
        sent = await images.peer.send("T", properties={"TIMER_DELIVER_MS": due})
        assert sent.code == 0, sent.remark
        timers = images.broker.services.timers
        assert timers is not None
        log = timers.store.log
        await until(lambda: log.end)
        end = log.end
        work = timers.store.begin_flush(wall_ms())
        assert work is not None
        timers._flush(work, asyncio.get_running_loop())
        assert_safe(images, "timercheck")
        image = images.take()[0]
        check = decode_timer_checkpoint((image / "config" / "timercheck").read_bytes())
        assert check.last_timer_log_flush_pos == end
