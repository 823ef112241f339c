"""Headers of sending: 10, 310, 320, 324, 325, 326, 36, 370.

``SendMessageRequestHeader`` is one table for both spellings: ``from_command`` reads the long names
of 10 and 324 or the letters of 310, 320 and 325, whichever the code says.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.base import CommandHeader, Int32, Int64

SEND_LETTERS: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}
"""Field → its letter in SEND_MESSAGE_V2. RocketMQ: ``SendMessageRequestHeaderV2``."""

LONG_NAME_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
"""Codes whose header has the long names; the other sends have the letters."""


class SendMessageRequestHeader(CommandHeader, kw_only=True):
    """Header of every send, under its long names.

    ``broker_name`` is whom the client believes to talk to.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")

    @staticmethod
    def from_command(command: RemotingCommand) -> SendMessageRequestHeader:
        """The header of a send request, in the spelling that its code has.

        Raises:
            HeaderError: a required field is missing, or a value is not of its type.
        """
        if command.code in LONG_NAME_CODES:
            return SendMessageRequestHeader.from_ext_fields(command.ext_fields)
        return SendMessageRequestHeaderV2.from_ext_fields(command.ext_fields)


SendMessageRequestHeaderV2: Final[type[SendMessageRequestHeader]] = cast(
    "type[SendMessageRequestHeader]",
    msgspec.defstruct(
        "SendMessageRequestHeaderV2",
        [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(SendMessageRequestHeader)
        ],
        bases=(SendMessageRequestHeader,),
        rename=SEND_LETTERS,
        kw_only=True,
        gc=False,
        module=__name__,
    ),
)
"""The same fields under the letters of SEND_LETTERS."""


class SendMessageResponseHeader(CommandHeader, kw_only=True):
    """Read by clients with codes 0, 10, 11, 12. ``msg_id`` of a batch: ids joined by commas."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class ConsumerSendMsgBackRequestHeader(CommandHeader, kw_only=True):
    """36; ``offset`` is a CommitLog offset; ``delay_level`` 0: broker decides, -1: dead letter."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class ReplyMessageRequestHeader(CommandHeader, kw_only=True):
    """326, broker to client."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class RecallMessageRequestHeader(CommandHeader, kw_only=True):
    """370."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponseHeader(CommandHeader, kw_only=True):
    """Answer of 370."""

    msg_id: str
