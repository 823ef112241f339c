"""Every fast frame equals the general path: the same command comes out of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.remoting.command import RemotingCommand, create_response, encode_frame_bytes
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers.pull import PullMessageResponseHeader
from oberth.remoting.headers.send import SendMessageResponseHeader
from oberth.remoting.rendered import FixedResponse, SendResponses, render_pull_head

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CODES = st.sampled_from([0, 10, 11, 12])


def read(frame: bytes) -> RemotingCommand:
    (command,) = RemotingConnection().receive_data(frame)
    return command


@given(INT32, INT32, INT64, st.binary(max_size=16), st.none() | TEXT, CODES, st.none() | TEXT, TEXT)
def test_send(
    opaque: int,
    queue_id: int,
    offset: int,
    raw_id: bytes,
    transaction_id: str | None,
    code: int,
    remark: str | None,
    region: str,
) -> None:
    msg_id = raw_id.hex().upper()
    frame = SendResponses(region, trace_on=False).render(
        opaque, queue_id, offset, msg_id.encode(), transaction_id, code=code, remark=remark
    )
    general = create_response(
        RemotingCommand(opaque=opaque),
        code,
        remark,
        header=SendMessageResponseHeader(
            msg_id=msg_id, queue_id=queue_id, queue_offset=offset, transaction_id=transaction_id
        ),
        ext_fields={"MSG_REGION": region, "TRACE_ON": "false"},
    )
    assert read(frame) == read(encode_frame_bytes(general))


@given(INT32, st.sampled_from([0, 19, 20, 21]), INT64, INT64, INT64, st.binary(), INT64, TEXT)
def test_pull(
    opaque: int,
    code: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body: bytes,
    broker_id: int,
    remark: str,
) -> None:
    head = render_pull_head(
        opaque,
        code,
        next_offset,
        min_offset,
        max_offset,
        len(body),
        suggest_which_broker_id=broker_id,
        group_sys_flag=3,
        topic_sys_flag=1,
        remark=remark,
    )
    general = create_response(
        RemotingCommand(opaque=opaque),
        code,
        remark,
        header=PullMessageResponseHeader(
            suggest_which_broker_id=broker_id,
            next_begin_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            group_sys_flag=3,
            topic_sys_flag=1,
        ),
        body=body,
    )
    assert read(head + body) == read(encode_frame_bytes(general))


@pytest.mark.parametrize("trace_on", [True, False])
def test_trace_and_region(trace_on: bool) -> None:
    frame = SendResponses("100%s", trace_on).render(1, 2, 3, b"ID")
    assert read(frame).fields == {
        "queueId": "2",
        "msgId": "ID",
        "TRACE_ON": "true" if trace_on else "false",
        "MSG_REGION": "100%s",
        "queueOffset": "3",
    }


def test_pieces_of_an_answer_make_the_answer() -> None:
    made = SendResponses('a "region" %d', trace_on=False)
    values = (b"3", b"7F000001", b"12", b"KEY", b"77")
    text = b"".join(a + b for a, b in zip(made.pieces, (*values, b""), strict=True))
    frame = made.render(77, 3, 12, b"7F000001", "KEY")
    assert frame[8:] == text


@given(
    opaque=st.integers(-(2**31), 2**31 - 1),
    fields=st.none() | st.dictionaries(st.text(), st.text()),
)
def test_fixed(opaque: int, fields: dict[str, str] | None) -> None:
    expected = create_response(RemotingCommand(opaque=opaque), 0, ext_fields=fields)
    assert FixedResponse(fields).render(opaque) == encode_frame_bytes(expected)
