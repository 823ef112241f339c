"""Typed headers: recorded ones convert both ways, required fields are asked for, as Java does."""

from __future__ import annotations

import base64
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oberth.remoting.headers
from oberth.errors import RemoteProtocolError
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers.base import CommandHeader, HeaderError, field_types
from oberth.remoting.headers.controller import CleanControllerBrokerDataRequestHeader
from oberth.remoting.headers.pull import (
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from oberth.remoting.headers.send import (
    SEND_LETTERS,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from oberth.remoting.headers.table import HEADERS

Frames = Callable[[str], tuple[dict[str, Any], ...]]

# Wire names beside the headers: see section "common ext fields" of docs/protocol.md.
COMMON = {"bname", "ReqT", "ns", "nsd", "oway", "lo", "_UNIQUE_KEY_QUERY", "MSG_REGION", "TRACE_ON"}
# Fields of 5.5.0 that came after what this project announces, and say nothing new.
LATER = {"liteTopic"}


@pytest.mark.parametrize("recording", ["client-497", "full-binary", "full-json", "v1-json"])
def test_recorded_headers(recording: str, golden_frames: Frames) -> None:
    seen = set()
    codes: dict[int, int] = {}
    table: dict[int, Any] = {int(code): pair for code, pair in HEADERS.items()}
    frames = golden_frames(recording)
    answers = {frame["answers"]: frame["header"]["code"] for frame in frames if "answers" in frame}
    for recorded in frames:
        (command,) = RemotingConnection().receive_data(base64.b64decode(recorded["frame"]))
        code = codes[recorded["answers"]] if command.is_response else command.code
        codes[recorded["n"]] = code
        kind = table.get(code, (None, None))[command.is_response]
        if kind is None or (command.is_response and command.code not in (0, 19, 20, 21)):
            continue
        if command.ext_fields is None and not any(need for _, need in field_types(kind).values()):
            continue
        if code in (RequestCode.GET_ALL_TOPIC_CONFIG, 201) and not command.is_response:
            continue  # most askers leave the header out
        seen.add(code)
        fields = command.fields
        try:
            again = command.header(kind).to_ext_fields()
        except HeaderError:
            # A pull without its queue, sent on purpose: Apache answers code 1 too.
            assert (code, answers[recorded["n"]]) == (RequestCode.PULL_MESSAGE, 1)
            continue
        assert again.keys() >= fields.keys() - COMMON - LATER, (recorded["n"], kind)
        for name, text in fields.items():
            if name in again:
                assert again[name] == text, (recorded["n"], kind, name)
        # What is there beyond is a Java primitive's default, which Java writes too.
        assert all(again[name] in ("false", "0", "-1") for name in again.keys() - fields.keys())
    assert len(seen) > 10


def all_headers() -> set[type[CommandHeader]]:
    found = set()
    for info in pkgutil.iter_modules(oberth.remoting.headers.__path__):
        module = importlib.import_module(f"oberth.remoting.headers.{info.name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, CommandHeader):
                found.add(kind)
    return found - {CommandHeader}


def test_every_header_is_in_the_table() -> None:
    in_table = {kind for pair in HEADERS.values() for kind in pair if kind is not None}
    assert all_headers() == in_table
    assert len(in_table) > 75


@pytest.mark.parametrize("kind", sorted(all_headers(), key=str))
def test_each_field_both_ways(kind: type[CommandHeader]) -> None:
    samples = {int: "7", str: "text", bool: "true"}
    fields = {name: samples[of] for name, (of, _) in field_types(kind).items()}
    assert kind.from_ext_fields(fields).to_ext_fields() == fields
    required = {name for name, (_, need) in field_types(kind).items() if need}
    minimal = {name: fields[name] for name in required}
    again = kind.from_ext_fields(minimal).to_ext_fields()
    assert minimal.items() <= again.items()
    for name in required:
        with pytest.raises(HeaderError, match=f"{name} is missing"):
            kind.from_ext_fields({key: text for key, text in minimal.items() if key != name})
    for name, (of, _) in field_types(kind).items():
        if of is int:
            with pytest.raises(HeaderError, match=f"{name} is 'seven', allowed an integer"):
                kind.from_ext_fields(fields | {name: "seven"})


def test_send_header_has_two_spellings() -> None:
    header = SendMessageRequestHeader(
        producer_group="G",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=-1,
        sys_flag=0,
        born_timestamp=1700000000000,
        flag=0,
        properties="a\x01b\x02",
        batch=True,
        broker_name="broker-a",
    )
    long = header.to_ext_fields()
    letters = SendMessageRequestHeaderV2(
        **{name: getattr(header, name) for name in header.__struct_fields__}
    ).to_ext_fields()
    assert letters == {
        "a": "G",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "-1",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "a\x01b\x02",
        "m": "true",
        "n": "broker-a",
    }
    assert len(SEND_LETTERS) == len(header.__struct_fields__)
    assert sorted(SEND_LETTERS.values()) == [chr(ord("a") + n) for n in range(14)]
    for code, fields in ((10, long), (324, long), (310, letters), (320, letters), (325, letters)):
        command = RemotingCommand(code=code, ext_fields=fields)
        read = SendMessageRequestHeader.from_command(command)
        for name in header.__struct_fields__:
            assert getattr(read, name) == getattr(header, name)
    with pytest.raises(HeaderError):
        SendMessageRequestHeader.from_command(RemotingCommand(code=310, ext_fields=long))


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-7", -7), ("+7", 7), ("007", 7), (" 7 ", 7), (str(2**31 - 1), 2**31 - 1)],
)
def test_numbers_as_java_reads_them(text: str, number: int) -> None:
    header = GetMaxOffsetRequestHeader.from_ext_fields({"topic": "T", "queueId": text})
    assert header.queue_id == number


@pytest.mark.parametrize(
    "text", ["", "x", "1e400", "0x7", str(2**31), str(-(2**31) - 1), "9" * 5000]
)
def test_numbers_that_java_refuses(text: str) -> None:
    with pytest.raises(HeaderError):
        GetMaxOffsetRequestHeader.from_ext_fields({"topic": "T", "queueId": text})


def test_booleans_and_empty_text() -> None:
    fields = {"brokerName": "b"}
    for text, value in (
        ("true", True),
        ("TRUE", True),
        ("false", False),
        ("yes", False),
        ("", False),
    ):
        header = CleanControllerBrokerDataRequestHeader.from_ext_fields(
            fields | {"isCleanLivingBroker": text}
        )
        assert header.is_clean_living_broker is value
    # C++ clients send optional fields empty.
    pulled = PullMessageResponseHeader.from_ext_fields(
        {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
            "topicSysFlag": "",
        }
    )
    assert pulled.topic_sys_flag is None


def test_header_errors_are_the_peers_fault() -> None:
    assert issubclass(HeaderError, RemoteProtocolError)
    with pytest.raises(HeaderError, match=r"consumerGroup is missing, found \[\]"):
        create_request(RequestCode.PULL_MESSAGE).header(PullMessageRequestHeader)


@given(
    st.dictionaries(st.sampled_from(["topic", "queueId", "committed", "x"]), st.text(max_size=12))
)
def test_any_fields_convert_or_are_refused(fields: dict[str, str]) -> None:
    try:
        header = GetMaxOffsetRequestHeader.from_ext_fields(fields)
    except HeaderError:
        return
    assert -(2**31) <= header.queue_id < 2**31
    assert header.topic == fields["topic"]
