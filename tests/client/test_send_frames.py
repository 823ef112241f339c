"""Proves that templated send frames are what the general encoder writes, field by field."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oberth.client.send_frames import SendTemplate, properties_json
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import RequestCode
from oberth.remoting.command import encode_frame_bytes
from oberth.remoting.connection import RemotingConnection

text = st.text(max_size=30)


@given(
    code=st.sampled_from([310, 320, 325]),
    group=text,
    topic=text,
    broker=text,
    properties=text,
    body=st.binary(max_size=100),
    sys_flag=st.integers(0, 0x7FF),
    born=st.integers(0, 2**60),
    flag=st.integers(-(2**31), 2**31 - 1),
    opaque=st.integers(0, 2**31 - 1),
    unit=st.booleans(),
)
def test_equal_to_the_general_encoder(
    code: int,
    group: str,
    topic: str,
    broker: str,
    properties: str,
    body: bytes,
    sys_flag: int,
    born: int,
    flag: int,
    opaque: int,
    unit: bool,
) -> None:
    queue = MessageQueue(topic=topic, broker_name=broker, queue_id=3)
    template = SendTemplate(RequestCode(code), group, queue, "TBW102", 4, unit)
    frame = template.frame(
        opaque, sys_flag, born, flag, properties_json(properties), body, command_flag=2
    )
    command = template.command(sys_flag, born, flag, properties, body)
    command.opaque = opaque
    command.flag = 2
    (ours,) = RemotingConnection().receive_data(frame)
    (general,) = RemotingConnection().receive_data(encode_frame_bytes(command))
    assert ours == general
