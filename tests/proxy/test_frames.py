"""The frames of a connection without a socket, against the library h2 as the client."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived as ClientData
from h2.events import StreamEnded as ClientEnded
from h2.events import TrailersReceived
from tests.proxy.test_http2 import PREFACE, Raw
from tests.proxy.test_http2_cases import CLOSING, GOING_ON

from oberth.proxy import frames
from oberth.proxy.frames import (
    ConnectionFault,
    DataReceived,
    ErrorCode,
    Kind,
    RequestReceived,
    ServerConnection,
    Setting,
    StreamReset,
    frame,
)
from oberth.proxy.header_blocks import literal

HEADERS = [
    (":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "t"),
    ("content-type", "application/grpc"), ("te", "trailers"),
]  # fmt: skip
WINDOW = 100_000
OK = literal((":status", "200"))
ENDED = literal(("grpc-status", "0"))
SETTINGS = frame(Kind.SETTINGS, 0, 0)


def serving(**more: int) -> ServerConnection:
    return ServerConnection(
        **{
            "streams_max": 100,
            "window": WINDOW,
            "connection_window": 3 * WINDOW,
            "header_list_max": 16 * 1024,
            **more,
        }
    )


def client() -> Any:
    made = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    made.initiate_connection()
    return made


def read(connection: ServerConnection, data: bytes) -> list[frames.Event]:
    connection.receive(data)
    return list(connection.events())


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10_000])
def test_any_pieces_give_the_same_events(step: int) -> None:
    peer = client()
    peer.send_headers(1, HEADERS)
    peer.send_data(1, b"x" * 5000)
    peer.send_data(1, b"y" * 300, end_stream=True, pad_length=9)
    peer.ping(b"12345678")
    peer.send_headers(3, [*HEADERS, ("long", "z" * 9000), ("longer", "z" * 3000)], end_stream=True)
    peer.reset_stream(3, 8)
    data = peer.data_to_send()
    whole = read(serving(), data)
    connection = serving()
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    assert [event for piece in pieces for event in read(connection, piece)] == whole
    assert [type(event) for event in whole].count(RequestReceived) == 2
    got = b"".join(event.data for event in whole if isinstance(event, DataReceived))
    assert got == b"x" * 5000 + b"y" * 300


def test_who_stops_in_between_goes_on() -> None:
    peer = client()
    for stream_id in range(1, 20, 2):
        peer.send_headers(stream_id, HEADERS, end_stream=True)
    connection = serving()
    connection.receive(peer.data_to_send())
    found: list[frames.Event] = []
    while (event := next(connection.events(), None)) is not None:
        found.append(event)
    requests = [event.stream_id for event in found if isinstance(event, RequestReceived)]
    assert requests == list(range(1, 20, 2))


@pytest.mark.parametrize("seed", range(4))
def test_an_exchange(seed: int) -> None:
    """Streams at a time, data of any size both ways, windows of any size: all of it arrives."""
    rng = random.Random(seed)
    peer, connection = (
        client(),
        serving(window=rng.choice((16_384, WINDOW)), connection_window=70_000),
    )
    peer.update_settings({Setting.INITIAL_WINDOW_SIZE: rng.choice((300, 5000, 65_535, 1 << 20))})
    to_send = {1 + 2 * n: rng.randbytes(rng.choice((0, 1, 5000, 50_000))) for n in range(8)}
    left = dict(to_send)
    heard: dict[int, bytes] = dict.fromkeys(to_send, b"")
    echoed: dict[int, bytes] = dict.fromkeys(to_send, b"")
    answering: dict[int, bytes] = {}
    ended: set[int] = set()
    for stream_id in to_send:
        peer.send_headers(stream_id, HEADERS)
    for _ in range(10_000):
        if len(ended) == len(to_send):
            break
        for stream_id in list(left):
            room = min(peer.local_flow_control_window(stream_id), peer.max_outbound_frame_size)
            piece = left[stream_id][: min(room, rng.choice((500, 16_384)))]
            if piece or not left[stream_id]:
                rest = left[stream_id] = left[stream_id][len(piece) :]
                peer.send_data(stream_id, piece, end_stream=not rest)
                if not rest:
                    del left[stream_id]
        for event in read(connection, peer.data_to_send()):
            if isinstance(event, DataReceived):
                heard[event.stream_id] += event.data
                if event.is_ended:
                    connection.send_headers(event.stream_id, OK)
                    answering[event.stream_id] = heard[event.stream_id]
        for stream_id in list(answering):
            piece = answering[stream_id][: connection.room(stream_id)]
            rest = answering[stream_id] = answering[stream_id][len(piece) :]
            if piece:
                connection.send_data(stream_id, piece)
            if not rest:
                connection.send_headers(stream_id, ENDED, end=True)
                del answering[stream_id]
        for event in peer.receive_data(connection.take_output()):
            if isinstance(event, ClientData):
                echoed[event.stream_id] += event.data or b""
                peer.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            elif isinstance(event, TrailersReceived):
                assert ("grpc-status", "0") in list[Any](event.headers or ())
            elif isinstance(event, ClientEnded):
                ended.add(event.stream_id)
    assert heard == to_send
    assert echoed == to_send
    assert not connection._streams


def test_more_than_the_window() -> None:
    for stream_id, size in ((1, WINDOW + 1), (3, 3 * WINDOW + 1)):
        connection = serving(connection_window=3 * WINDOW if stream_id == 1 else WINDOW)
        peer = client()
        peer.send_headers(stream_id, HEADERS)
        read(connection, peer.data_to_send())
        streams = connection._streams
        streams[stream_id].unreturned = -(1 << 30)  # nothing is given back
        connection._unreturned = -(1 << 30)
        data = b"".join(
            frame(Kind.DATA, 0, stream_id, bytes(min(16_384, size - at)))
            for at in range(0, size, 16_384)
        )
        if stream_id == 1:
            assert StreamReset(1) in read(connection, data)
        else:
            with pytest.raises(ConnectionFault) as fault:
                read(connection, data)
            assert fault.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_what_comes_on_a_stream_that_we_reset_is_no_mistake() -> None:
    connection, peer = serving(), client()
    peer.send_headers(1, HEADERS)
    read(connection, peer.data_to_send())
    connection.send_headers(1, OK + ENDED, end=True)
    assert not connection.is_open(1)
    peer.send_data(1, b"x" * 1000)
    peer.send_headers(1, [("x-trailer", "1")], end_stream=True)
    peer.send_headers(3, [*HEADERS, ("x-trailer", "1")], end_stream=True)
    (*_, last) = read(connection, peer.data_to_send())
    assert isinstance(last, RequestReceived)  # the table has what the trailers put into it
    assert last.headers[-1][:2] == ("x-trailer", "1")


def test_a_frame_before_any_settings() -> None:
    with pytest.raises(ConnectionFault):
        read(serving(), PREFACE + frame(Kind.PING, 0, 0, bytes(8)))
    with pytest.raises(ConnectionFault):
        read(serving(), PREFACE + frame(Kind.SETTINGS, 1, 0))


def test_of_several_values_the_last_holds() -> None:
    connection, peer = serving(), client()
    peer.send_headers(1, HEADERS)
    read(connection, peer.data_to_send())
    many = b"".join(
        Setting.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + size.to_bytes(4, "big")
        for size in (*range(2000), 77)
    )
    read(connection, frame(Kind.SETTINGS, 0, 0, many))
    assert connection.room(1) == 77


def test_a_peer_that_makes_its_table_smaller_hears_of_it_once() -> None:
    connection, peer = serving(), client()
    peer.update_settings({Setting.HEADER_TABLE_SIZE: 0})
    for stream_id in (1, 3):
        peer.send_headers(stream_id, HEADERS, end_stream=True)
    read(connection, peer.data_to_send())
    connection.take_output()
    connection.send_headers(1, OK)
    first = connection.take_output()
    connection.send_headers(3, OK)
    assert first[9:] == b"\x20" + connection.take_output()[9:]


def test_empty_frames_of_headers_are_few() -> None:
    begin = PREFACE + SETTINGS + frame(Kind.HEADERS, 0, 1, b"\x83")
    connection = serving()
    read(connection, begin)
    with pytest.raises(ConnectionFault) as fault:
        read(connection, frame(Kind.CONTINUATION, 0, 1) * frames.HEADER_FRAMES_MAX)
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def _damaged(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


def _samples() -> Iterable[bytes]:
    for case in (*CLOSING.values(), *GOING_ON.values()):
        yield PREFACE + SETTINGS + case(Raw(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames(seed: int) -> None:
    """Events or the documented error, and an output that h2 can read."""
    rng = random.Random(seed)
    samples = list(_samples())
    for _ in range(400):
        connection = serving()
        data = _damaged(rng, rng.choice(samples) + rng.choice(samples)[len(PREFACE) :])
        try:
            for event in read(connection, PREFACE + data[len(PREFACE) :]):
                if isinstance(event, RequestReceived) and connection.is_open(event.stream_id):
                    connection.send_headers(event.stream_id, OK + ENDED, end=True)
        except ConnectionFault as fault:
            connection.send_goaway(fault.code)
        out = connection.take_output()
        while out:
            size, kind = int.from_bytes(out[:3], "big"), out[3]
            assert kind in list(Kind)
            out = out[9 + size :]
