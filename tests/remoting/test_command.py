"""Headers as bytes, both ways: recorded frames, generated ones, and hostile ones.

Every recorded frame decodes and encodes to the same bytes; the binary form equals the JSON form;
lenient reading takes what C++ clients send; hostile headers are refused with the numbers.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oberth.remoting.command as command_module
from oberth.errors import LocalProtocolError, RemoteProtocolError
from oberth.remoting.code import LanguageCode, RequestCode, ResponseCode
from oberth.remoting.command import (
    EXT_FIELD_COUNT_MAX,
    Buffer,
    RemotingCommand,
    create_request,
    create_response,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_frame,
    encode_frame_bytes,
    encode_json_header,
)
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers.pull import PullMessageResponseHeader

Frames = Callable[[str], tuple[dict[str, Any], ...]]


def decode_frame(frame: bytes) -> RemotingCommand:
    (command,) = RemotingConnection().receive_data(frame)
    return command


@pytest.mark.parametrize("recording", ["client-497", "full-binary", "full-json", "v1-json"])
def test_recorded_frames_encode_to_the_same_bytes(recording: str, golden_frames: Frames) -> None:
    frames = golden_frames(recording)
    assert len(frames) > 100
    for recorded in frames:
        frame = base64.b64decode(recorded["frame"])
        command = decode_frame(frame)
        header = recorded["header"]
        assert command.code == header["code"]
        assert command.opaque == header["opaque"]
        assert command.flag == header["flag"]
        assert command.version == header["version"]
        assert command.language in (header["language"], LanguageCode(0).name)
        assert command.fields == (header.get("extFields") or {})
        assert len(command.body_bytes()) == recorded["bodyLength"]
        assert command.is_response == ("answers" in recorded)
        assert encode_frame_bytes(command) == frame, recorded["n"]


def test_layout_tables_of_the_docstring() -> None:
    # The fixed part of the binary header as the module's docstring draws it.
    text = command_module.__doc__ or ""
    rows = re.findall(
        r"^ +(\d+) +(\d+)  (\w+) +(\w+)", text.split("binary header:")[1], re.MULTILINE
    )
    formats = {"int16": "h", "uint8": "B", "int32": "i"}
    fixed = struct.Struct(">" + "".join(formats[kind] for _, _, _, kind in rows))
    offset = 0
    for row_offset, row_size, _name, kind in rows:
        assert int(row_offset) == offset
        assert int(row_size) == struct.calcsize(">" + formats[kind])
        offset += int(row_size)
    assert fixed.size == command_module._BINARY_FIXED.size == offset
    assert fixed.format == command_module._BINARY_FIXED.format


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_INT32 = st.integers(-(2**31), 2**31 - 1)

COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(0, 32767),
    ext_fields=st.none() | st.dictionaries(_TEXT, _TEXT, max_size=8),
    flag=st.integers(0, 3),
    language=st.sampled_from([language.name for language in LanguageCode]),
    opaque=_INT32,
    remark=st.none() | _TEXT,
    version=st.integers(0, 612),
    body=st.binary(max_size=64),
)


@given(COMMANDS)
def test_json_round_trip(command: RemotingCommand) -> None:
    assert decode_frame(encode_frame_bytes(command)) == command


@given(COMMANDS)
def test_json_header_is_plain_json(command: RemotingCommand) -> None:
    parsed = json.loads(encode_json_header(command))
    assert parsed["code"] == command.code
    assert parsed.get("extFields") == command.ext_fields
    assert parsed.get("remark") == command.remark
    assert parsed["serializeTypeCurrentRPC"] == "JSON"


@given(COMMANDS)
def test_binary_equals_json(command: RemotingCommand) -> None:
    command.serialize_type = 1
    decoded = decode_frame(encode_frame_bytes(command))
    # A binary header has no way to say "empty": none and empty are one.
    command.ext_fields = command.ext_fields or None
    command.remark = command.remark or None
    assert decoded == command


def test_body_is_not_copied() -> None:
    body = memoryview(bytes(5000))
    pieces = encode_frame(RemotingCommand(body=body))
    assert pieces[1] is body
    parts: list[Buffer] = [memoryview(b"abc"), b"de"]
    pieces = encode_frame(RemotingCommand(body=parts))
    assert pieces[1] is parts[0]
    assert decode_frame(b"".join(pieces)).body == b"abcde"
    assert RemotingCommand(body=parts).body_bytes() == b"abcde"


def test_lenient_reader_takes_scalars_as_text() -> None:
    header = (
        b'{"code":310,"language":"CPP","version":333,"opaque":7,"flag":0,"remark":"",'
        b'"extFields":{"e":3,"k":false,"g":1700000000000,"i":"x","n":null,"q":1.5}}\n'
    )
    command = decode_json_header(header)
    assert command.fields == {"e": "3", "k": "false", "g": "1700000000000", "i": "x", "q": "1.5"}
    assert command.language == "CPP"
    assert (command.code, command.opaque, command.version) == (310, 7, 333)


def test_lenient_reader_takes_odd_shapes() -> None:
    assert decode_json_header(b"{}").fields == {}
    assert decode_json_header(b'{"code":"34","extFields":null}').code == 34
    assert decode_json_header(b'{"code":1,"language":9}').language == "GO"
    assert decode_json_header(b'{"code":1,"language":"KLINGON"}').language == "KLINGON"
    # Java reads broken UTF-8 with replacement characters, and has lone surrogates.
    assert decode_json_header(b'{"code":1,"remark":"\xff"}').remark == "\ufffd"
    remark = decode_json_header(rb'{"code":1,"remark":"\ud83d"}').remark
    assert remark == "?"
    command = decode_json_header(b'{"code":1,"(body)":"QUJD","(serialize_type)":1}')
    assert command.body == b""
    assert command.serialize_type == 0


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"code":99999999999}',
        b'{"code":true,"opaque":"x"}',
        b'{"extFields":[]}',
        b"[" * 100_000,
        b'{"opaque":' + b"9" * 10_000 + b"}",
        b'{"extFields":{'
        + b",".join(b'"%d":""' % n for n in range(EXT_FIELD_COUNT_MAX + 1))
        + b"}}",
    ],
)
def test_hostile_json_headers(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_json_header(header)


@given(st.binary(max_size=200))
def test_random_json_headers(header: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_json_header(header)


@given(st.binary(max_size=200))
def test_random_binary_headers(header: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_binary_header(header)


@given(COMMANDS, st.data())
def test_flipped_binary_headers(command: RemotingCommand, data: st.DataObject) -> None:
    header = bytearray(encode_binary_header(command))
    header[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RemoteProtocolError):
        decode_binary_header(bytes(header))


def test_cut_binary_headers_say_found_and_allowed() -> None:
    header = encode_binary_header(RemotingCommand(remark="r" * 9, ext_fields={"key": "value"}))
    for size in range(len(header)):
        with pytest.raises(RemoteProtocolError, match=r"\d+.*allowed|torn entry at \d+"):
            decode_binary_header(header[:size])


def test_what_we_must_not_send() -> None:
    with pytest.raises(LocalProtocolError, match="ext fields of code 10"):
        encode_json_header(RemotingCommand(code=10, ext_fields={"queueId": 3}))  # type: ignore[dict-item]
    with pytest.raises(LocalProtocolError, match="200050"):
        encode_binary_header(RemotingCommand(code=RequestCode.POP_MESSAGE))
    with pytest.raises(LocalProtocolError, match="40000 bytes, allowed 32767"):
        encode_binary_header(RemotingCommand(ext_fields={"k" * 40000: ""}))
    whole = len(encode_frame_bytes(RemotingCommand(body=bytes(90))))
    with pytest.raises(LocalProtocolError, match=f"has {whole} bytes, allowed {whole - 1}"):
        encode_frame(RemotingCommand(body=bytes(90)), frame_size_max=whole - 1)
    assert encode_frame(RemotingCommand(body=bytes(90)), frame_size_max=whole)
    with pytest.raises(LocalProtocolError, match="allowed 100"):
        encode_frame(RemotingCommand(body=[bytes(50), bytes(50)]), frame_size_max=100)


def test_create_request_and_response() -> None:
    request = create_request(RequestCode.GET_MAX_OFFSET)
    assert not request.is_oneway
    assert not request.is_response
    assert (request.version, request.language) == (479, "PYTHON")
    request.opaque = 5
    response = create_response(request, ResponseCode.SYSTEM_ERROR, "why", ext_fields={"a": "b"})
    assert response.is_response
    assert (response.opaque, response.code, response.remark) == (5, 1, "why")
    assert response.ext_fields == {"a": "b"}
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=3, min_offset=1, max_offset=2
    )
    both = create_response(request, 0, header=header, ext_fields={"a": "b", "maxOffset": "9"})
    assert both.ext_fields == {**header.to_ext_fields(), "a": "b", "maxOffset": "9"}
    alone = create_response(request, 0, header=header)
    assert alone.ext_fields == header.to_ext_fields()


def test_numbers_that_an_odd_header_lacks_are_zero() -> None:
    found = decode_json_header(b'{"language":"JAVA","extFields":{"a":1}}')
    assert (found.code, found.version, found.opaque, found.flag) == (0, 0, 0, 0)


def test_response_codes_fit_into_16_bits() -> None:
    assert max(ResponseCode) < 2**15


def test_fields_are_counted_before_they_are_read() -> None:
    """Each of these held a server for some 18 ms."""
    entry = struct.pack(">h", 0) + struct.pack(">i", 0)
    for count, is_taken in ((EXT_FIELD_COUNT_MAX, True), (EXT_FIELD_COUNT_MAX + 1, False)):
        entries = entry * count
        header = struct.pack(">hbhiii", 310, 0, 479, 5, 0, 0)
        header += struct.pack(">i", len(entries)) + entries
        numbers = ",".join(f'"{n}":1.5' for n in range(count))
        lenient = f'{{"code":310,"extFields":{{{numbers}}}}}'.encode()
        if is_taken:
            assert decode_binary_header(header).ext_fields == {"": ""}
            assert len(decode_json_header(lenient).fields) == count
            continue
        with pytest.raises(RemoteProtocolError, match="ext fields"):
            decode_binary_header(header)
        with pytest.raises(RemoteProtocolError, match="4097 ext fields, allowed 4096"):
            decode_json_header(lenient)


def test_numbers_of_thousands_of_digits_are_not_read() -> None:
    header = b'{"code":310,"extFields":{"a":%s}}'
    assert decode_json_header(header % (b"9" * 100)).fields == {"a": "9" * 100}
    with pytest.raises(RemoteProtocolError, match="4200 digits, allowed 100"):
        decode_json_header(header % (b"9" * 4200))


def test_very_many_numbers_are_not_read() -> None:
    """Each goes through Python: 120 000 of one header took 43 ms."""
    header = b'{"code":310,"extFields":{"a":[%b1],"b":"%b"}}'
    found = decode_json_header(header % (b"1," * 20_000, b"," * 20_000))
    assert found.fields["a"] == f"[{'1,' * 20_000}1]"
    with pytest.raises(RemoteProtocolError, match="41003 commas and odd types, allowed 40960"):
        decode_json_header(header % (b"1," * 41_001, b""))
    many = b'{"code":310,"extFields":{"b":"%b"}}' % (b"," * 41_002)
    assert len(decode_json_header(many).fields["b"]) == 41_002
