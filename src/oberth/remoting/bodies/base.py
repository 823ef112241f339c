"""Body: a JSON document over the wire, compact on writing, lenient on reading.

Each body is a Struct whose fields stand in the alphabetical order of their wire names, which is the
order in which fastjson writes them. Fields that are None are left out, and nothing is written
between the tokens: the Go client cuts some bodies at commas and colons.

Reading tries strict JSON first. What that cannot take goes through ``oberth.formats.json_reader``,
which knows fastjson's dialect (bare integer and object keys, ``$ref``), and then null counts as
missing and text as the number it spells. Unknown fields are ignored. RocketMQ:
``RemotingSerializable``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar

import msgspec

from oberth.errors import ConfigFormatError, LocalProtocolError, RemoteProtocolError
from oberth.formats.json_reader import BARE_KEYS_FACTOR, check_counts, parse_config
from oberth.formats.json_values import LENIENT_SIZE_MAX, ObjectKey
from oberth.remoting.command import FRAME_SIZE_MAX

_T = TypeVar("_T")

_encode: Final = msgspec.json.Encoder().encode
_DECODERS: Final[dict[type, Callable[[bytes], Any]]] = {}


ANSWER_SIZE_MAX: Final = 512 * 1024
"""Bytes of what a client answers; its offsets in 5 000 queues have 400 KiB."""


class BodyError(RemoteProtocolError):
    """A body is not the JSON that it should be. Answered with code 1."""


class MessageQueue(msgspec.Struct, rename="camel", kw_only=True, frozen=True, gc=False):
    """One queue of a topic on a broker. Ordered by topic, broker name, number, as clients sort."""

    broker_name: str = ""
    queue_id: int = 0
    topic: str = ""

    @property
    def sort_key(self) -> tuple[str, str, int]:
        """What clients order queues by."""
        return self.topic, self.broker_name, self.queue_id

    def __lt__(self, other: MessageQueue) -> bool:
        return self.sort_key < other.sort_key


if TYPE_CHECKING:
    QueueMap: TypeAlias = dict[MessageQueue, _T]
else:

    class QueueMap:
        """To the type checker a map from queues; to msgspec, which has no such keys, any dict."""

        def __class_getitem__(cls, item: object) -> type:
            return dict


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all bodies.

    Attributes:
        QUEUE_MAPS: wire name → type of the values, for each field that maps queues to something.
            Such maps have whole objects as keys and are no JSON.
    """

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def decode(cls, data: bytes, lenient_size_max: int = LENIENT_SIZE_MAX) -> Self:
        """The body that ``data`` spells.

        Args:
            data: JSON in any dialect.
            lenient_size_max: bytes of what is no JSON proper, which takes up to 1.2 us a byte. More
                than on an event loop is for whoever reads its own files, or has nobody wait.

        Raises:
            BodyError: not JSON in any dialect, or a field of another type.
        """
        if not cls.QUEUE_MAPS:
            decoder = _DECODERS.get(cls)
            if decoder is None:
                decoder = _DECODERS[cls] = msgspec.json.Decoder(cls, strict=False).decode
            try:
                body: Self = decoder(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            else:
                return body
        return cls.from_tree(parse(data, cls.__name__, lenient_size_max))

    @classmethod
    def decode_answer(cls, data: bytes, size_max: int = ANSWER_SIZE_MAX, factor: int = 1) -> Self:
        """`decode` of what a client has answered, for a thread: takes up to 1.2 us a byte.

        Raises:
            BodyError: see `decode`; or it is longer, or holds more than ``factor`` times what a
                request may.
        """
        check_answer_size(data, cls.__name__, size_max)
        try:
            check_counts(data, cls.__name__, factor)
        except ConfigFormatError as error:
            raise BodyError(str(error)) from None
        return cls.decode(data, size_max)

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        """The body in what ``parse_config`` made of a document; see ``decode``."""
        if not isinstance(tree, dict):
            raise BodyError(f"{cls.__name__}: a JSON {type(tree).__name__}, allowed an object")
        maps = {
            wire_name: _queue_map(tree.get(wire_name), kind, f"{cls.__name__}.{wire_name}")
            for wire_name, kind in cls.QUEUE_MAPS.items()
        }
        rest = {name: value for name, value in tree.items() if name not in maps}
        body = convert(cls._mend(_plain(rest)), cls, cls.__name__)
        if maps:
            names = dict(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
            for wire_name, queue_map in maps.items():
                setattr(body, names[wire_name], queue_map)
        return body

    @classmethod
    def _mend(cls, tree: dict[str, Any]) -> dict[str, Any]:
        """Last resort for what some clients write in another type than Java does."""
        return tree

    def encode(self) -> bytes:
        """The body as compact JSON; queues as keys are bare objects, as fastjson writes them."""
        if self.QUEUE_MAPS:
            return render_fields(self)
        data = _encode(self)
        # A None became null, unless that stands in some text: then this costs a little time. Names
        # of topics, groups and clients, of which a body may have very many, have no colon.
        return data if b":null" not in data else encode_without_none(self)


def encode_without_none(value: Any) -> bytes:
    """``value`` as compact JSON; what is None in an object is left out, however deep it is."""
    return _encode(_without_none(msgspec.to_builtins(value)))


def render_fields(body: Body) -> bytes:
    """``body`` with whatever its fields hold, bodies that map queues among it."""
    pieces = [
        b'"%b":%b' % (wire_name.encode(), render(value))
        for name, wire_name in zip(
            body.__struct_fields__, body.__struct_encode_fields__, strict=True
        )
        if (value := getattr(body, name)) is not None
    ]
    return b"{%b}" % b",".join(pieces)


def render(value: Any) -> bytes:
    """A value of a body's field as it stands there."""
    if isinstance(value, Body):
        return value.encode()
    if isinstance(value, list):
        return b"[%b]" % b",".join([render(item) for item in value])
    if isinstance(value, dict):
        return b"{%b}" % b",".join(
            [b"%b:%b" % (_encode(key), render(inner)) for key, inner in value.items()]
        )
    return _encode(value)


ENTRIES_A_SLICE: Final = 125
BYTES_A_SLICE: Final = 64 * 1024
"""Bytes of a slice, and one entry more: peers choose how long texts are."""


def result_at_once(work: Generator[None, None, _T]) -> _T:
    """What work in slices comes to, for who has nothing to do between them."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result


def render_in_slices(body: Body) -> Generator[None, None, bytearray]:
    """`Body.encode` of a body with any number of entries, of any length, in slices.

    Yields each quarter of a millisecond.

    The bytes grow with each slice: joining megabytes at the end would take tens of milliseconds.

    Raises:
        LocalProtocolError: they become more than a frame may have.
    """
    done = bytearray()
    out: list[bytes] = []
    counted = size = 0
    for _ in _pieces(out, body, 0):
        size += sum(map(len, out[counted:]))
        counted = len(out)
        if counted >= ENTRIES_A_SLICE * 4 or size >= BYTES_A_SLICE:
            if len(done) + size > FRAME_SIZE_MAX:
                raise LocalProtocolError(
                    f"the answer is longer than a frame may be, {FRAME_SIZE_MAX} bytes"
                )
            done += b"".join(out)
            out.clear()
            counted = size = 0
            yield
    done += b"".join(out)
    return done


def _pieces(out: list[bytes], value: Any, depth: int) -> Generator[None, None, None]:
    """Append what `render` would give, and yield after every entry."""
    if isinstance(value, list):
        separator = b"["
        for item in value:
            out.append(separator)
            separator = b","
            yield from _pieces(out, item, depth + 1)
            yield
        out.append(b"]" if value else b"[]")
        return
    entries: list[tuple[Any, Any]]
    if isinstance(value, Body):
        if depth and not value.QUEUE_MAPS:
            out.append(value.encode())
            return
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        entries = [(wire_name, getattr(value, name)) for name, wire_name in names]
    elif isinstance(value, dict):
        entries = list(value.items())
    else:
        out.append(_encode(value))
        return
    separator = b"{"
    for key, each in entries:
        if each is None:
            continue
        out += (separator, _encode(key), b":")
        separator = b","
        yield from _pieces(out, each, depth + 1)
        yield
    out.append(b"}" if separator == b"," else b"{}")


def convert(tree: Any, kind: type[_T], where: str) -> _T:
    """``tree`` as a ``kind``, numbers in text taken for numbers; BodyError names ``where``."""
    try:
        return msgspec.convert(tree, kind, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise BodyError(f"{where}: {error}") from None


def parse(data: bytes, where: str, lenient_size_max: int = LENIENT_SIZE_MAX) -> Any:
    """What ``data`` spells in fastjson's dialect, of which so many bytes may be no JSON proper.

    Raises:
        BodyError: it cannot be read.
    """
    try:
        return parse_config(
            data,
            name=where,
            lenient_size_max=lenient_size_max,
            bare_keys_max=BARE_KEYS_FACTOR * LENIENT_SIZE_MAX,
            is_body=True,
        )
    except ConfigFormatError as error:
        raise BodyError(f"{where}: {error}") from None


def check_answer_size(data: bytes | bytearray | memoryview, where: str, allowed: int) -> None:
    """Compare what was answered with what is read of it.

    Raises:
        BodyError: it is longer.
    """
    if len(data) > allowed:
        raise BodyError(f"{where}: an answer of {len(data)} bytes, allowed {allowed}")


def checked_list(data: bytes, where: str) -> bytes:
    """``data``, if it may be decoded on an event loop.

    Raises:
        BodyError: it holds too much, or is longer than LENIENT_SIZE_MAX and no JSON proper.
    """
    try:
        check_counts(data, where)
    except ConfigFormatError as error:
        raise BodyError(str(error)) from None
    if len(data) > LENIENT_SIZE_MAX:
        try:
            if b"$ref" in data:
                raise ValueError("references")
            msgspec.json.decode(data, type=msgspec.Raw)
        except (ValueError, RecursionError) as error:
            raise BodyError(
                f"{where}: {len(data)} bytes in a dialect of JSON ({error}), at most "
                f"{LENIENT_SIZE_MAX} are allowed"
            ) from None
    return data


def _plain(value: Any) -> Any:
    """Without nulls, keys as text: what strict conversion takes."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value if inner is not None]
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value


def _queue_map(found: Any, kind: Any, where: str) -> dict[Any, Any]:
    """A map from queues, or from text to such maps when ``kind`` is a one-entry dict."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BodyError(f"{where}: a JSON {type(found).__name__}, allowed an object")
    if isinstance(kind, dict):
        (inner_kind,) = kind.values()
        return {str(key): _queue_map(inner, inner_kind, where) for key, inner in found.items()}
    return {
        _queue_of(key, where): convert(_plain(value), kind, where)
        for key, value in found.items()
        if value is not None
    }


def _queue_of(key: Any, where: str) -> MessageQueue:
    """A key that is a bare object, or text that spells one."""
    if isinstance(key, ObjectKey):
        tree: Any = key.as_dict()
    elif isinstance(key, str):
        tree = parse(key.encode("utf-8", "replace"), where)
    else:
        raise BodyError(f"{where}: the key {key!r} is no message queue")
    return convert(_plain(tree), MessageQueue, where)
