"""Header blocks against the library hpack, which makes and reads them another way."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from oberth.proxy.header_blocks import (
    FIELD_SIZE,
    TABLE_SIZE_MAX,
    HeaderBlockError,
    HeaderDecoder,
    literal,
)

LIST_MAX = 16 * 1024
NAMES = (":path", ":method", "te", "content-type", "x-mq-client-id", "grpc-timeout", "a", "x" * 200)
VALUES = ("", "trailers", "POST", "/a", "10S", "é", "v" * 300, "w" * 5000, "0123456789" * 13)


def pairs(decoder: HeaderDecoder, block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, value, _ in decoder.decode(block)]


def library_pairs(decoder: Decoder, block: bytes) -> list[Any]:
    return [tuple(each) for each in decoder.decode(block)]


def some_headers(rng: random.Random) -> list[tuple[str, str]]:
    return [
        (name, "trailers" if name == "te" else rng.choice(VALUES))
        for name in rng.choices(NAMES, k=rng.randrange(1, 9))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_what_the_library_writes(seed: int) -> None:
    """Block after block, with tables that grow, shrink and are full."""
    rng = random.Random(seed)
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    for _ in range(200):
        headers = some_headers(rng)
        if rng.random() < 0.05:
            encoder.header_table_size = rng.choice((0, 50, 300, TABLE_SIZE_MAX))
        block = encoder.encode(headers, huffman=rng.random() < 0.5)
        assert pairs(decoder, block) == headers


@pytest.mark.parametrize("seed", range(5))
def test_damaged_blocks_say_the_same_or_nothing(seed: int) -> None:
    rng = random.Random(seed)
    taken = 0
    for _ in range(100):
        ours, theirs, encoder = HeaderDecoder(LIST_MAX), Decoder(LIST_MAX), Encoder()
        for _ in range(3):
            block = bytearray(encoder.encode(some_headers(rng), huffman=rng.random() < 0.5))
            for _ in range(rng.randrange(3)):
                block[rng.randrange(len(block))] = rng.randrange(256)
            block = block[: rng.randrange(len(block) + 1)] if rng.random() < 0.2 else block
            try:
                found = pairs(ours, bytes(block))
            except HeaderBlockError:
                break
            assert library_pairs(theirs, bytes(block)) == found
            taken += 1
    assert taken > 20


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        block = rng.randbytes(rng.randrange(1, 60))
        try:
            found = pairs(HeaderDecoder(LIST_MAX), block)
        except HeaderBlockError:
            continue
        assert library_pairs(Decoder(LIST_MAX), block) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Upper", "1"), ("", "1"), ("a b", "1"), ("ä", "1"), ("a:", "1"), ("connection", "close"),
        ("transfer-encoding", "chunked"), ("upgrade", "h2c"), ("te", "gzip"), ("a", "1\r\nb: 2"),
        ("a", "\0"),
    ],
)  # fmt: skip
def test_fields_that_no_request_has(name: str, value: str) -> None:
    block = Encoder().encode([(name, value)])
    with pytest.raises(HeaderBlockError) as error:
        HeaderDecoder(LIST_MAX).decode(block)
    assert not error.value.is_compression


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xff\x80\x01", b"\xbe", b"\x3f\xe2\x1f", b"\x82\x20", b"\x00", b"\x00\x05ab",
     b"\xff" * 20, b"\x7f\xff\xff\xff\xff\xff\x01", b"\x00\x82\xff\xff\x00",
     b"\x40\x01a\x02\xff\xfe"],
)  # fmt: skip
def test_what_is_no_block(block: bytes) -> None:
    with pytest.raises(HeaderBlockError) as error:
        HeaderDecoder(LIST_MAX).decode(block)
    assert error.value.is_compression


def test_a_few_bytes_cannot_become_many() -> None:
    """One entry named by a byte each: it stops at the limit, whatever follows."""
    decoder = HeaderDecoder(LIST_MAX)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000)
    allowed = LIST_MAX // (4001 + FIELD_SIZE)
    assert len(decoder.decode(b"\xbe" * allowed)) == allowed
    with pytest.raises(HeaderBlockError):
        decoder.decode(b"\xbe" * (allowed + 1))


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(LIST_MAX)
    assert pairs(decoder, b"\x40\x01a\x01b\xbe") == [("a", "b"), ("a", "b")]
    decoder.decode(b"\x40\x01a\x7f\xa1\x1f" + b"x" * 4128)
    with pytest.raises(HeaderBlockError):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 300, 20_000])
def test_own_blocks(size: int) -> None:
    headers = [(":status", "200"), ("grpc-status", "0"), ("grpc-message", "m" * size)]
    decoder = Decoder(1 << 20)
    assert library_pairs(decoder, literal(*headers)) == headers
    assert not decoder.header_table.dynamic_entries


def test_the_library_fails_where_it_should() -> None:
    """The yardstick itself: it takes no rubbish."""
    with pytest.raises(HPACKError):
        Decoder().decode(b"\x80")
