"""The body of REGISTER_BROKER (103): a broker's topics, as JSON or compressed.

JSON, for name servers and brokers of V3_0_11 and later:

    {"filterServerList":[...],"topicConfigSerializeWrapper":{"dataVersion":{...},
     "mappingDataVersion":{...},"topicConfigTable":{name: TopicConfig},
     "topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{name: mapping}}}

and for older ones the wrapper alone. Compressed (header field ``compressed``) it is a zlib stream
of (big-endian; a text is its size and its bytes):

    size  field          type   note
       4  version_size   int32  then that many bytes: DataVersion as JSON
       4  topic_count    int32  then so many texts: name, read queues, write queues, perm, filter
                                type and, from 5.x on, attributes as JSON, separated by blanks
       4  filter_size    int32  then filter servers as a JSON list
       4  mapping_count  int32  from V5_0_0 on; then so many texts: mappings as JSON

RocketMQ: ``RegisterBrokerBody``, ``TopicConfigAndMappingSerializeWrapper``, ``TopicConfig``. A
broker of many topics registers every 30 seconds, so this is decoded and encoded without a Bean per
topic.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Generator, Iterable
from typing import Any, Final, TypeVar

import msgspec

from oberth.errors import ConfigFormatError
from oberth.formats.data_version import DataVersion
from oberth.formats.json_values import LENIENT_SIZE_MAX
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.base import Body, BodyError, convert, parse, result_at_once
from oberth.remoting.code import MQVersion

REGISTER_BODY_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes of a body after decompression."""
REGISTERED_TOPICS_MAX: Final = 100_000
"""Topics of one broker."""
TOPICS_PER_SLICE: Final = 500
"""Topics that are read, or taken over, between two turns of the loop: some 2 ms."""
_BYTES_PER_SLICE: Final = 128 * 1024
"""Bytes of topics between two turns of the loop, and one topic more: some 2 ms, too."""
_DECOMPRESSED_PER_SLICE: Final = 1024 * 1024
_WHOLE_SIZE_MAX: Final = 128 * 1024
"""Bytes of JSON that are read at once; above, the table of topics is cut into its entries."""
_ENTRY_SIZE_MAX: Final = 32 * 1024
"""Bytes of one topic, filter list or mapping."""
_DIALECT_SIZE_MAX: Final = 4 * 1024
"""Bytes of one that is no JSON proper; brokers write such for other keys than text alone."""
_PARSED_PER_SLICE: Final = 4 * 1024
"""Bytes of such JSON between two turns of the loop, and one text more: some 10 ms at the worst."""

_INT32: Final = struct.Struct(">i")
_B = TypeVar("_B", bound=Body)


class RegisteredTopic(Body):
    """A topic as a broker registers it; fields as in ``TopicConfig``."""

    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str | None = None
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    @classmethod
    def of(cls, config: TopicConfig) -> RegisteredTopic:
        """What is registered of a topic's configuration."""
        return cls(
            attributes=config.attributes,
            order=config.order,
            perm=config.perm,
            read_queue_nums=config.read_queue_nums,
            topic_filter_type=config.topic_filter_type,
            topic_name=config.topic_name,
            topic_sys_flag=config.topic_sys_flag,
            write_queue_nums=config.write_queue_nums,
        )


class _Version(Body):
    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class _Wrapper(Body):
    data_version: _Version = msgspec.field(default_factory=_Version)
    mapping_data_version: _Version = msgspec.field(default_factory=_Version)
    topic_config_table: dict[str, RegisteredTopic] = msgspec.field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = msgspec.field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] = msgspec.field(default_factory=dict)


class _Body(Body):
    filter_server_list: list[str] = msgspec.field(default_factory=list)
    topic_config_serialize_wrapper: _Wrapper = msgspec.field(default_factory=_Wrapper)


class RegisterBrokerBody:
    """A broker's topics and their version.

    Attributes:
        data_version: of the broker's topic table.
        topics: by name. A partial registration has only those that changed.
        filter_servers: obsolete.
        mappings: of static topics, by name, as JSON objects.
    """

    __slots__ = ("data_version", "filter_servers", "mappings", "topics")

    def __init__(
        self,
        data_version: DataVersion,
        topics: dict[str, RegisteredTopic],
        filter_servers: list[str] | None = None,
        mappings: dict[str, Any] | None = None,
    ) -> None:
        self.data_version = data_version
        self.topics = topics
        self.filter_servers = filter_servers or []
        self.mappings = mappings or {}

    @classmethod
    def of_configs(
        cls,
        data_version: DataVersion,
        configs: Iterable[TopicConfig],
        mappings: dict[str, Any] | None = None,
    ) -> RegisterBrokerBody:
        """The body that registers ``configs`` and the ``mappings`` of those that are static."""
        topics = {
            config.topic_name: RegisteredTopic.of(config) for config in configs if config.topic_name
        }
        return cls(data_version, topics, mappings=mappings)

    @classmethod
    def decode(
        cls, data: bytes, *, compressed: bool = False, version: int = MQVersion.V5_3_3
    ) -> RegisterBrokerBody:
        """The body of a registration.

        Args:
            data: the body as it came.
            compressed: the header's field of that name.
            version: of the requester; it decides between forms.

        Raises:
            BodyError: it is not such a body, or too large.
        """
        return result_at_once(cls.decode_in_slices(data, compressed=compressed, version=version))

    @classmethod
    def decode_in_slices(
        cls, data: bytes, *, compressed: bool = False, version: int = MQVersion.V5_3_3
    ) -> Generator[None, None, RegisterBrokerBody]:
        """`decode`, some milliseconds at a time: yields where an event loop may turn."""
        if compressed:
            return (yield from _decode_compressed(data, version))
        if not data:
            return cls(DataVersion(), {})
        if len(data) > _WHOLE_SIZE_MAX:
            rest, topics = yield from _cut_topics(data)
            small = cls.decode(rest, version=version)
            small.topics = topics
            return small
        if version >= MQVersion.V3_0_11:
            body = _decode_whole(_Body, data)
            wrapper, filters = body.topic_config_serialize_wrapper, body.filter_server_list
        else:
            wrapper, filters = _decode_whole(_Wrapper, data), []
        return cls(
            _data_version(wrapper.data_version),
            wrapper.topic_config_table,
            filters,
            wrapper.topic_queue_mapping_info_map,
        )

    def encode(self) -> bytes:
        """The JSON form. Other threads get in between of the parts of a large one."""
        topics = list(self.topics.items())
        parts = [
            msgspec.json.encode(dict(topics[start : start + TOPICS_PER_SLICE]))[1:-1]
            for start in range(0, len(topics), TOPICS_PER_SLICE)
        ]
        head, table, tail = self._encode_rest().partition(b'"topicConfigTable":{')
        return b"".join((head, table, b",".join(parts), tail))

    def _encode_rest(self) -> bytes:
        version = _Version(
            counter=self.data_version.counter,
            state_version=self.data_version.state_version,
            timestamp=self.data_version.timestamp,
        )
        return _Body(
            filter_server_list=self.filter_servers,
            topic_config_serialize_wrapper=_Wrapper(
                data_version=version,
                topic_queue_mapping_info_map=self.mappings,
            ),
        ).encode()

    def encode_compressed(self, version: int = MQVersion.V5_3_3) -> bytes:
        """The zlib form, with what ``version`` knows."""
        is_5x = version >= MQVersion.V5_0_0
        topics = [
            _text(
                f"{name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
                f"{topic.topic_filter_type}"
                + (f" {json.dumps(topic.attributes, separators=(',', ':'))}" if is_5x else "")
            )
            for name, topic in self.topics.items()
        ]
        pieces = [
            _text(self.data_version.encode(pretty=False).decode()),
            _INT32.pack(len(topics)),
            *topics,
            _text(json.dumps(self.filter_servers, separators=(",", ":"))),
        ]
        if is_5x:
            pieces.append(_INT32.pack(len(self.mappings)))
            pieces += [
                _text(json.dumps(mapping, separators=(",", ":")))
                for mapping in self.mappings.values()
            ]
        return zlib.compress(b"".join(pieces), 9)


def _decode_whole(kind: type[_B], data: bytes) -> _B:
    """A body in JSON, of which LENIENT_SIZE_MAX bytes may be another dialect."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind.from_tree(parse(data, kind.__name__, LENIENT_SIZE_MAX))


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT32.pack(len(data)) + data


def _data_version(version: _Version) -> DataVersion:
    return DataVersion(
        counter=version.counter, state_version=version.state_version, timestamp=version.timestamp
    )


class _Reader:
    """Numbers and texts one after the other, in pieces that are nowhere joined."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._size = sum(map(len, pieces))
        self._pieces = pieces[::-1]
        self._data = b""
        self._begin = 0  # of the data, in all pieces
        self._at = 0

    @property
    def position(self) -> int:
        """Bytes that were read."""
        return self._begin + self._at

    @property
    def ended(self) -> bool:
        return self.position == self._size

    def _has(self, size: int) -> bool:
        """Whether so many bytes follow; then they are in one piece."""
        while len(self._data) - self._at < size and self._pieces:
            self._data = self._data[self._at :] + self._pieces.pop()
            self._begin += self._at
            self._at = 0
        return len(self._data) - self._at >= size

    def number(self, what: str) -> int:
        if not self._has(4):
            raise BodyError(
                f"RegisterBrokerBody: {what} at {self.position} of {self._size} bytes is torn"
            )
        (number,) = _INT32.unpack_from(self._data, self._at)
        self._at += 4
        return int(number)

    def count(self, what: str) -> int:
        """How many texts follow."""
        count = self.number(what)
        if count > REGISTERED_TOPICS_MAX:
            raise BodyError(f"RegisterBrokerBody: {what} {count}, allowed {REGISTERED_TOPICS_MAX}")
        return count

    def text(self, what: str, size_max: int) -> bytes:
        size = self.number(what)
        if size > size_max:
            raise BodyError(f"RegisterBrokerBody: {what} of {size} bytes, allowed {size_max}")
        if size < 0 or not self._has(size):
            raise BodyError(
                f"RegisterBrokerBody: {what} of {size} bytes at {self.position}, "
                f"allowed 0 to {self._size - self.position}"
            )
        self._at += size
        return self._data[self._at - size : self._at]


def _decompress(data: bytes) -> Generator[None, None, list[bytes]]:
    """The pieces are not joined: that takes 40 ms for 32 MiB."""
    decompressor = zlib.decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        while not decompressor.eof:
            piece = decompressor.decompress(data, _DECOMPRESSED_PER_SLICE)
            data = decompressor.unconsumed_tail
            if not piece and not data:
                break
            pieces.append(piece)
            size += len(piece)
            if size > REGISTER_BODY_SIZE_MAX:
                raise BodyError(f"RegisterBrokerBody: more than {REGISTER_BODY_SIZE_MAX} bytes")
            if data:
                yield
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody: {error}") from None
    if not decompressor.eof:
        raise BodyError("RegisterBrokerBody: the zlib stream does not end")
    return pieces


def _decode_compressed(data: bytes, version: int) -> Generator[None, None, RegisterBrokerBody]:
    reader = _Reader((yield from _decompress(data)))
    try:
        data_version = DataVersion.decode(
            reader.text("data version", _DIALECT_SIZE_MAX), name="dataVersion"
        )
    except ConfigFormatError as error:
        raise BodyError(f"RegisterBrokerBody: {error}") from None
    topics = {}
    count = reader.count("topic count")
    taken = 0
    pause_at = reader.position + _BYTES_PER_SLICE
    for number in range(count):
        if (number and number % TOPICS_PER_SLICE == 0) or reader.position > pause_at:
            pause_at = reader.position + _BYTES_PER_SLICE
            yield
        topic, odd = _decode_topic(reader.text("topic", _ENTRY_SIZE_MAX))
        if odd:
            taken += len(odd)
            if taken > _PARSED_PER_SLICE:
                taken = 0
                yield
            where = topic.topic_name or ""
            topic.attributes = convert(_parse(odd, where), dict[str, str], where)
        topics[str(topic.topic_name)] = topic
    filters = convert(
        _parse(reader.text("filter servers", _ENTRY_SIZE_MAX) or b"[]", "filterServerList") or [],
        list[str],
        "filterServerList",
    )
    mappings: dict[str, Any] = {}
    if version >= MQVersion.V5_0_0 and not reader.ended:
        taken = 0
        for _ in range(reader.count("mapping count")):
            text = reader.text("mapping", _ENTRY_SIZE_MAX)
            taken += len(text)
            if taken > _PARSED_PER_SLICE:
                taken = 0
                yield
            mapping = _parse(text, "topicQueueMappingInfo")
            if isinstance(mapping, dict) and isinstance(mapping.get("topic"), str):
                mappings[mapping["topic"]] = mapping
    return RegisterBrokerBody(data_version, topics, filters, mappings)


_TABLE_BEGINS: Final = re.compile(rb'"topicConfigTable"\s*:\s*\{(?!\s*\})')
_INSIDE: Final = rb'(?:[^{}"]|"[^"\\]*+")*+'
_ENTRY: Final = re.compile(
    rb'\s*"([^"\\]*+)"\s*:\s*(\{' + _INSIDE + rb"(?:\{" + _INSIDE + rb"\}" + _INSIDE + rb")*+\})"
    rb"\s*([,}])"
)
"""One topic of the table: its name, an object with objects one deep, and what follows it."""
_decode_entry: Final = msgspec.json.Decoder(RegisteredTopic, strict=False).decode


def _cut_topics(data: bytes) -> Generator[None, None, tuple[bytes, dict[str, RegisteredTopic]]]:
    """A long JSON body without its topics, and they."""
    # What is before the table is beside it, and that is limited.
    begins = _TABLE_BEGINS.search(data, 0, _WHOLE_SIZE_MAX)
    if begins is None:
        raise _too_much_beside(len(data))
    topics: dict[str, RegisteredTopic] = {}
    at = begins.end()
    pause_at = at + _BYTES_PER_SLICE
    for number in range(REGISTERED_TOPICS_MAX + 1):
        if (number and number % TOPICS_PER_SLICE == 0) or at > pause_at:
            pause_at = at + _BYTES_PER_SLICE
            yield
        entry = _ENTRY.match(data, at, at + _ENTRY_SIZE_MAX)
        if entry is None:
            raise BodyError(
                f"RegisterBrokerBody: {data[at : at + 80]!r} at {at} of {len(data)} bytes, "
                "allowed is a topic's configuration as brokers write it"
            )
        if number == REGISTERED_TOPICS_MAX:
            raise BodyError(f"RegisterBrokerBody: more than {REGISTERED_TOPICS_MAX} topics")
        try:
            topics[entry[1].decode("utf-8", "replace")] = _decode_entry(entry[2])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BodyError(f"RegisterBrokerBody: topic {entry[1][:80]!r}: {error}") from None
        at = entry.end()
        if entry[3] == b"}":
            break
    beside = begins.end() + len(data) - at + 1
    if beside > _WHOLE_SIZE_MAX:
        raise _too_much_beside(beside)
    return data[: begins.end()] + data[at - 1 :], topics


def _too_much_beside(size: int) -> BodyError:
    return BodyError(
        f"RegisterBrokerBody: {size} bytes beside its topics, allowed {_WHOLE_SIZE_MAX}"
    )


def _parse(text: bytes, where: str) -> Any:
    return parse(text, where, _DIALECT_SIZE_MAX)


_plain_attributes: Final = msgspec.json.Decoder(dict[str, str]).decode


def _decode_topic(text: bytes) -> tuple[RegisteredTopic, bytes]:
    """A topic, and its attributes if they are not JSON proper."""
    words = text.decode("utf-8", "replace").split(" ", 5)
    try:
        name, read_queues, write_queues, perm, filter_type = words[:5]
        topic = RegisteredTopic(
            topic_name=name,
            read_queue_nums=int(read_queues),
            write_queue_nums=int(write_queues),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError:
        raise BodyError(
            f"RegisterBrokerBody: topic {text[:80]!r}, allowed five or six words"
        ) from None
    if len(words) == 6 and words[5] not in ("", "{}", "null"):
        odd = words[5].encode()
        try:
            topic.attributes = _plain_attributes(odd)
        except (msgspec.DecodeError, RecursionError):
            return topic, odd
    return topic, b""
