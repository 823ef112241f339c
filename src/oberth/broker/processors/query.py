"""QueryMessageProcessor: 12 and 33, in a worker thread. RocketMQ: QueryMessageProcessor.

Index and log are read with blocking I/O, so a query never runs on the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.errors import RecordError
from oberth.formats.message import decode_record
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

if TYPE_CHECKING:
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class QueryMessageProcessor:
    """Finds messages by key and by offset."""

    def __init__(self, *, store_config: MessageStoreConfig, store: MessageStore) -> None:
        self._store_config = store_config
        self._store = store

    def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """12: messages by key or unique key."""
        del channel
        header = request.header(QueryMessageRequestHeader)
        max_num = header.max_num
        if request.fields.get(UNIQUE_KEY_QUERY) == "true":
            max_num = self._store_config.default_query_max_num
        result = self._store.query_message(
            header.topic,
            header.key,
            max(max_num, 0),
            header.begin_timestamp,
            header.end_timestamp,
            header.index_type,
        )
        found = QueryMessageResponseHeader(
            index_last_update_timestamp=result.index_last_update_timestamp,
            index_last_update_phyoffset=result.index_last_update_offset,
        )
        # The index holds hashes: a key can be chosen that has the hash of another topic's.
        records = [each for each in result.records if _is_of(each, header.topic)]
        if not records:
            return create_response(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                header=found,
            )
        return create_response(request, ResponseCode.SUCCESS, header=found, body=list(records))

    def view(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """33: the message at a CommitLog offset."""
        del channel
        header = request.header(ViewMessageRequestHeader)
        store = self._store
        store.bring_in_record(header.offset)
        # Decoded first: an offset that a client made up may point into the middle of a record.
        message = store.find_shown_message(header.offset)
        if message is not None and store.retention.is_hidden(
            message.topic, message.queue_id, header.offset
        ):
            message = None
        record = store.select_record(header.offset) if message is not None else None
        if record is None:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {header.offset}",
            )
        return create_response(request, ResponseCode.SUCCESS, body=record)


def _is_of(record: memoryview, topic: str) -> bool:
    """Whether a record is a topic's."""
    try:
        return decode_record(record).topic == topic
    except RecordError:
        return False
