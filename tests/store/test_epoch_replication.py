"""Words of master and slave under a controller: cut anywhere, and nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from oberth.errors import RemoteProtocolError
from oberth.formats.epochs import EPOCHS_MAX, Epoch, EpochTable
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.epoch_replication import (
    EPOCH,
    MASTER_FRAME,
    MASTER_HANDSHAKE,
    SLAVE_HANDSHAKE,
    SLAVE_REPORT,
    EpochLogSender,
    EpochPiece,
    MasterHello,
    MasterReceiver,
    SlaveHello,
    SlaveReceiver,
)
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner

EPOCHS = EpochTable([Epoch(1, 0), Epoch(2, 700)])


def test_bytes_of_a_handshake() -> None:
    assert SlaveHello(7, from_last_file=True, is_learner=False).encode() == bytes.fromhex(
        "00000001 0001 0000 0000000000000007"
    )
    assert MasterHello(900, EPOCHS).encode() == bytes.fromhex(
        "00000001 00000018 0000000000000384 00000002"
        "00000001 0000000000000000 00000002 00000000000002bc"
    )


def test_slaves_words_cut_anywhere() -> None:
    hellos: list[SlaveHello] = []
    data = SlaveHello(7, from_last_file=False, is_learner=True).encode()
    data += SLAVE_REPORT.pack(2, 5) + SLAVE_REPORT.pack(2, 9)
    receiver = SlaveReceiver(hellos.append)
    reports = [receiver.receive_data(data[at : at + 1]) for at in range(len(data))]
    assert hellos == [SlaveHello(7, from_last_file=False, is_learner=True)]
    assert [each for each in reports if each is not None] == [5, 9]
    assert SlaveReceiver(hellos.append).receive_data(data) == 9


def test_handshakes_that_come_together_are_answered_once() -> None:
    hellos: list[SlaveHello] = []
    data = b"".join(
        SlaveHello(number, from_last_file=False, is_learner=False).encode()
        + SLAVE_REPORT.pack(2, number)
        for number in range(1, 100)
    )
    assert SlaveReceiver(hellos.append).receive_data(data) == 99
    assert [hello.broker_id for hello in hellos] == [99]


@pytest.mark.parametrize(
    "data",
    [
        SLAVE_REPORT.pack(2, 0),
        bytes(16),
        SLAVE_HANDSHAKE.pack(1, 0, 0, 0),
        SLAVE_HANDSHAKE.pack(1, 0, 0, 1) + SLAVE_REPORT.pack(2, -1),
        SLAVE_HANDSHAKE.pack(1, 0, 0, 1) + SLAVE_REPORT.pack(3, 1),
    ],
)
def test_nonsense_of_a_slave(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        SlaveReceiver(lambda _: None).receive_data(data)


def test_masters_words_cut_anywhere() -> None:
    data = MasterHello(900, EPOCHS).encode()
    data += MASTER_FRAME.pack(2, 3, 700, 2, 700, 650) + b"abc"
    data += MASTER_FRAME.pack(2, 0, 703, 2, 700, 703)
    receiver = MasterReceiver()
    found = [each for at in range(len(data)) for each in receiver.receive_data(data[at : at + 1])]
    hello, piece, heartbeat = found
    assert isinstance(hello, MasterHello)
    assert (hello.max_offset, hello.epochs.entries) == (900, EPOCHS.entries)
    assert piece == EpochPiece(700, b"abc", Epoch(2, 700), 650)
    assert heartbeat == EpochPiece(703, b"", Epoch(2, 700), 703)


@pytest.mark.parametrize(
    "data",
    [
        bytes(12),  # a heartbeat of a master without a controller
        MASTER_HANDSHAKE.pack(1, EPOCH.size * (EPOCHS_MAX + 1), 0, 0),
        MASTER_HANDSHAKE.pack(1, 5, 0, 0) + bytes(5),
        MASTER_HANDSHAKE.pack(1, 24, 0, 0) + EPOCH.pack(2, 0) + EPOCH.pack(1, 5),
        MASTER_FRAME.pack(2, -1, 0, 0, 0, 0),
        MASTER_FRAME.pack(2, (4 << 20) + 1, 0, 0, 0, 0),
        MasterHello(0, EPOCHS).encode() + MASTER_FRAME.pack(2, 0, -1, 0, 0, 0),
        MasterHello(0, EPOCHS).encode() + MASTER_FRAME.pack(2, 0, (1 << 62) + 1, 0, 0, 0),
        MasterHello(0, EPOCHS).encode() * 2,
        MasterHello(-1, EPOCHS).encode(),
        MasterHello((1 << 62) + 1, EPOCHS).encode(),
        MASTER_HANDSHAKE.pack(1, 12, 0, -1) + EPOCH.pack(-1, 0),
        MASTER_HANDSHAKE.pack(1, 12, 0, 1) + EPOCH.pack(1, -1),
        MASTER_FRAME.pack(2, 0, 0, 0, 0, 0),
    ],
)
def test_nonsense_of_a_master(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MasterReceiver().receive_data(data)


def test_frames_end_where_epochs_do(tmp_path: Path) -> None:
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=64 * 1024
    )
    with MessageStore(config) as store:
        store.append_messages([MessageExtBrokerInner.of("t", b"x" * 100) for _ in range(20)])
        log = store.commit_log
        confirmed = 100
        sender = EpochLogSender(
            log, 500, from_last_file=False, epochs=EPOCHS, confirm_offset=lambda: confirmed
        )
        assert sender.next_frame() is None
        sender.on_report(0)
        data = b""
        receiver = MasterReceiver()
        receiver.receive_data(MasterHello(log.max_offset, EPOCHS).encode())
        pieces = []
        while (frame := sender.next_frame()) is not None:
            (piece,) = receiver.receive_data(frame[0] + bytes(frame[1]))
            assert isinstance(piece, EpochPiece)
            pieces.append((piece.commit_log_offset, len(piece.data), piece.epoch.number))
            data += piece.data
        assert pieces[:3] == [(0, 500, 1), (500, 200, 1), (700, 500, 2)]
        assert data == bytes(log.select(0, log.max_offset) or b"")
        assert sender.has_news is False
        confirmed = 101
        news: bool = sender.has_news
        assert news
        (beat,) = receiver.receive_data(sender.heartbeat())
        assert beat == EpochPiece(log.max_offset, b"", Epoch(2, 700), 101)
        sender.greeted(from_last_file=False)
        sender.on_report(700)
        assert sender.next_offset == 700
