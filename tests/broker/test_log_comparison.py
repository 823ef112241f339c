"""Copies of a log are compared: by checksums, by ranges, by what a HA port sends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.rigs.small_brokers import SEGMENT, make

from oberth.broker.broker import Broker
from oberth.broker.log_comparison import (
    BrokerLog,
    Comparison,
    Extent,
    NoChecksumsError,
    SentLog,
    StoreLog,
    compare,
)
from oberth.errors import ConfigFormatError, RemotingError
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request, create_response
from oberth.remoting.headers.replication import LogChecksumsRequestHeader
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.replication import FRAME


def put(broker: Broker, count: int, size: int = 300) -> None:
    broker.parts.store.append_messages(
        [MessageExtBrokerInner.of("t", bytes([n % 250]) * size) for n in range(count)]
    )
    broker.services.dispatching.soon()


async def caught_up(master: Broker, slave: Broker) -> None:
    async with asyncio.timeout(100):
        while (  # noqa: ASYNC110 - the store has no event for its growth
            slave.parts.store.max_phy_offset != master.parts.store.max_phy_offset
            or slave.services.ha.master_address is None
        ):
            await asyncio.sleep(0.01)


def spoil(broker: Broker, offset: int) -> None:
    """Changes one byte of the log behind the broker's back."""
    log = broker.parts.store.root + "/commitlog"
    with open(f"{log}/{offset - offset % SEGMENT:020d}", "r+b") as file:
        file.seek(offset % SEGMENT)
        before = file.read(1)
        file.seek(offset % SEGMENT)
        file.write(bytes([before[0] ^ 1]))


async def test_a_slave_compares_itself_and_names_the_first_offset_that_differs(
    tmp_path: Path, name_server: str
) -> None:
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        put(master, 700)
        await caught_up(master, slave)
        end = master.parts.store.max_phy_offset
        comparison = slave.services.comparison
        await comparison.once()
        assert comparison.equal_to == end
        assert slave.services.runtime_info.table()["logComparison"] == "equal"
        put(master, 100)
        await caught_up(master, slave)
        spoil(slave, end + 777)
        spoil(slave, end + 12_345)
        await comparison.once()
        assert comparison.differs_at == end + 777
        assert comparison.equal_to == end + 777
        shown = slave.services.runtime_info.table()
        assert shown["logDiffersAt"] == str(end + 777)
        assert shown["logComparedWith"] == str(master.address)
        assert "logDiffersAt" not in master.services.runtime_info.table()
        samples = {name: values for name, _, _, values in comparison.metrics()}
        assert samples["oberth_log_differs_at"] == [((), end + 777)]
        spoil(slave, end + 777)  # mended: the next difference is found
        await comparison.once()
        assert comparison.differs_at == end + 12_345
        spoil(slave, end + 12_345)
        await comparison.once()
        assert comparison.equal_to == slave.parts.store.max_phy_offset
        assert comparison.said == "equal"


async def test_checksums_tell_what_was_written_and_reading_what_is_there(
    tmp_path: Path, name_server: str
) -> None:
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        put(master, 700)
        await caught_up(master, slave)
        for broker in (master, slave):
            while broker.parts.store.checksums.extend():
                pass
        spoil(slave, 70_000)
        own = slave.services.comparison._own
        other = BrokerLog(
            str(master.address),
            lambda header: slave.services.comparison._ask(str(master.address), header),
        )
        assert (await compare(own, other)).differs_at is None
        assert (await compare(own, other, read_all=True)).differs_at == 70_000
        assert (await compare(own, other, 70_001, read_all=True)).differs_at is None
        with StoreReader(tmp_path / "b") as reader:
            assert (await compare(StoreLog(reader), other)).differs_at == 70_000
        store = master.parts.store
        sent = SentLog("127.0.0.1", master.services.ha.port, 0, store.max_phy_offset)
        try:
            assert await compare(sent, other) == Comparison(0, store.max_phy_offset, None)
            with StoreReader(tmp_path / "b") as reader:
                assert (await compare(sent, StoreLog(reader))).differs_at == 70_000
        finally:
            sent.close()


async def test_what_29003_answers(live: object, name_server: str) -> None:
    del name_server
    peer = live.peer  # type: ignore[attr-defined]
    assert (await peer.send("T", b"hello")).code == 0
    whole = json.loads((await peer.call(RequestCode.OBERTH_GET_LOG_CHECKSUMS)).body_bytes())
    assert whole["algorithm"] == "crc32"
    assert whole["minOffset"] == 0
    assert whole["maxOffset"] > 0
    fields = {"start": "0", "end": str(whole["maxOffset"]), "step": "50"}
    ranges = json.loads(
        (await peer.call(RequestCode.OBERTH_GET_LOG_CHECKSUMS, fields)).body_bytes()
    )
    assert len(ranges["crcs"]) == -(-whole["maxOffset"] // 50)
    for refused in (
        {"start": "0"},
        {**fields, "step": "0"},
        {**fields, "start": "-1"},
        {**fields, "end": str(whole["maxOffset"] + 1)},
        {"start": "9", "end": "8", "step": "1"},
    ):
        answer = await peer.call(RequestCode.OBERTH_GET_LOG_CHECKSUMS, refused)
        assert answer.code == ResponseCode.INVALID_PARAMETER, refused


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"segments":[]}', b'{"segments":[{}],"minOffset":0,"maxOffset":1}',
     b'{"segments":[],"minOffset":"x","maxOffset":1}'],
)  # fmt: skip
async def test_answers_that_are_none(body: bytes) -> None:
    async def ask(header: LogChecksumsRequestHeader) -> bytes:
        del header
        return body

    side = BrokerLog("peer", ask)
    with pytest.raises(ConfigFormatError):
        await side.extent()
    with pytest.raises(ConfigFormatError):
        await side.crcs(0, 10, 1)


async def test_a_master_without_checksums_is_said(tmp_path: Path, name_server: str) -> None:
    slave = make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE")
    async with slave:
        comparison = slave.services.comparison

        class Old:
            async def invoke(self, address: str, request: object, timeout_s: float) -> object:
                del address, timeout_s
                return create_response(
                    create_request(0), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no"
                )

        comparison._client = Old()  # type: ignore[assignment]
        slave.services.ha.master_address = "127.0.0.1:1"
        await comparison.once()
        assert "oberth cluster compare" in comparison.said
        with pytest.raises(NoChecksumsError):
            await comparison._ask("127.0.0.1:1", LogChecksumsRequestHeader())


async def test_a_ha_port_that_sends_something_else_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(FRAME.pack(77, 3) + b"abc")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        sent = SentLog("127.0.0.1", server.sockets[0].getsockname()[1], 0, 100)
        assert await sent.extent() == Extent(0, 100, {})
        with pytest.raises(RemotingError, match="sends from 77, asked for was 1"):
            await sent.crcs(0, 100, 10)
        with pytest.raises(RemotingError, match="closed the connection"):
            await sent.crcs(77, 100, 10)
        sent.close()
