"""RemotingCommand: one request or response, and its header as bytes.

A frame on the wire (big-endian):

    offset  size  field          type   note
         0     4  length         int32  bytes after this field: 4 + header + body
         4     1  serialize_type uint8  0 JSON, 1 ROCKETMQ binary
         5     3  header_size    uint24 bytes of the header
         8     -  header         bytes  as serialize_type says
         -     -  body           bytes  length - 4 - header_size

The binary header:

    offset  size  field          type   note
         0     2  code           int16
         2     1  language       uint8  LanguageCode
         3     2  version        int16
         5     4  opaque         int32
         9     4  flag           int32
        13     4  remark_size    int32  0: no remark; then the remark in UTF-8
         -     4  ext_size       int32  bytes of all entries; 0: no map
         -     -  entries        bytes  int16 key size, key, int32 value size, value

RocketMQ: ``RemotingCommand``, ``RocketMQSerializable``. What is always true: ``ext_fields`` maps
text to text; what peers send as JSON numbers, booleans or null has become text or is gone. The
encoder copies no body but a small one, which it puts after the header in one buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import msgspec

from oberth.errors import LocalProtocolError, RemoteProtocolError
from oberth.remoting.code import (
    ANNOUNCED_LANGUAGE,
    ANNOUNCED_VERSION,
    LanguageCode,
    SerializeType,
)

if TYPE_CHECKING:
    from oberth.remoting.headers.base import CommandHeader

    _H = TypeVar("_H", bound=CommandHeader)

Buffer: TypeAlias = bytes | bytearray | memoryview
"""One contiguous piece of a frame; a memoryview must be of bytes."""

Body: TypeAlias = Buffer | Sequence[Buffer]
"""A body in one piece, or in several that follow each other on the wire."""

FRAME_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of a whole frame, its length field included."""

HEADER_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of a header. A batch of 4 MiB answers with some 2 MiB of message ids."""

EXT_FIELD_COUNT_MAX: Final = 4096
"""Entries of one ``ext_fields``."""

# The shortest header with too many fields: "":"", and all names but one are longer.
_EXT_FIELD_COUNT_MAX_BYTES: Final = 6 * EXT_FIELD_COUNT_MAX

_NUMBER_DIGITS_MAX: Final = 100
"""Digits of an integer in a header that another peer than Java wrote."""

_LENIENT_COMMAS_MAX: Final = 40 * 1024
"""In such a header, each number in it takes 0.2 us; the ids of a batch have 32 766."""

EXT_KEY_SIZE_MAX: Final = 32767
"""Bytes of a key in a binary header, whose size field has 16 bits."""

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1

# msgspec cannot decode the union, and never has to.
if TYPE_CHECKING:
    _BodyField: TypeAlias = Body
else:
    _BodyField = object

_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]


class RemotingCommand(msgspec.Struct, gc=False):
    """One request or response.

    Attributes:
        code: a RequestCode, or in a response a ResponseCode.
        ext_fields: header fields by wire name; None when the frame had none (``fields`` is never
            None).
        flag: bit 0 response, bit 1 one-way.
        language: name of a LanguageCode; None if the peer sent none.
        opaque: the requester's number for this exchange.
        remark: free text, usually an error.
        version: ordinal of the sender's release.
        body: after decoding always ``bytes``; for encoding one buffer or a sequence of them.
        serialize_type: how the header came, or is to be written.
    """

    code: _Int32 = 0
    ext_fields: dict[str, str] | None = msgspec.field(default=None, name="extFields")
    flag: _Int32 = 0
    language: str | None = ANNOUNCED_LANGUAGE
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = int(ANNOUNCED_VERSION)
    # The next two are no JSON fields. A peer that sends these names gains nothing: the decoder sets
    # both after it has read the header.
    body: _BodyField = msgspec.field(default=b"", name="(body)")
    serialize_type: int = msgspec.field(default=0, name="(serialize_type)")

    @property
    def is_response(self) -> bool:
        """True for a response."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """True for a request that wants no answer."""
        return self.flag & ONEWAY_FLAG != 0

    @property
    def fields(self) -> dict[str, str]:
        """``ext_fields``, or an empty dict (which does not become part of the command)."""
        return self.ext_fields if self.ext_fields is not None else {}

    def header(self, header_type: type[_H]) -> _H:
        """The typed header; HeaderError names a field that is missing or malformed."""
        return header_type.from_ext_fields(self.ext_fields)

    def body_bytes(self) -> bytes:
        """The body as one ``bytes`` object; copies unless it is one already."""
        body = self.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, bytearray | memoryview):
            return bytes(body)
        return b"".join(body)


def text_size(texts: Iterable[str]) -> int:
    """Bytes that some texts take in memory.

    In CPython one character above U+FFFF makes all others of its text four bytes long; here, those
    of the other texts count as such, too.
    """
    return getsizeof("".join(texts))


def create_request(
    code: int, header: CommandHeader | None = None, body: Body = b""
) -> RemotingCommand:
    """A request; ``opaque`` is given by the connection that sends it."""
    return RemotingCommand(
        code=int(code),
        ext_fields=None if header is None else header.to_ext_fields(),
        body=body,
    )


def create_response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    *,
    header: CommandHeader | None = None,
    ext_fields: dict[str, str] | None = None,
    body: Body = b"",
) -> RemotingCommand:
    """The response to ``request``; ``header``'s fields come before ``ext_fields``."""
    if header is not None:
        fields = header.to_ext_fields()
        if ext_fields:
            fields.update(ext_fields)
        ext_fields = fields
    return RemotingCommand(
        code=int(code),
        ext_fields=ext_fields,
        flag=RESPONSE_FLAG,
        opaque=request.opaque,
        remark=remark,
        body=body,
    )


# Decoding

_decode_json = msgspec.json.Decoder(RemotingCommand).decode


def decode_json_header(header: bytes) -> RemotingCommand:
    """A command without its body, from a JSON header.

    Raises:
        RemoteProtocolError: not a JSON object, a number out of range, or too many fields.
    """
    try:
        command = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # C++ clients put numbers and booleans into extFields; others may leave nulls there.
        command = _decode_json_leniently(header)
    if len(header) > _EXT_FIELD_COUNT_MAX_BYTES:
        _check_count(len(command.fields))
    command.body = b""
    command.serialize_type = 0
    return command


def _check_count(count: int) -> None:
    if count > EXT_FIELD_COUNT_MAX:
        raise RemoteProtocolError(f"header with {count} ext fields, allowed {EXT_FIELD_COUNT_MAX}")


def _short_int(text: str) -> int:
    # Some 50 numbers of 4 000 digits each would take 15 ms.
    if len(text) > _NUMBER_DIGITS_MAX:
        raise ValueError(f"a number of {len(text)} digits, allowed {_NUMBER_DIGITS_MAX}")
    return int(text)


def _decode_json_leniently(header: bytes) -> RemotingCommand:
    """As fastjson would: text in place of other scalars, names and numbers of either type."""
    import json  # noqa: PLC0415 - seldom needed, and not free

    commas = header.count(b",")
    if commas > _LENIENT_COMMAS_MAX:
        raise RemoteProtocolError(
            f"header with {commas} commas and odd types, allowed {_LENIENT_COMMAS_MAX}"
        )
    try:
        return _command_of(json.loads(header.decode("utf-8", "replace"), parse_int=_short_int))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"header of {len(header)} bytes is not JSON: {error}") from None


def _command_of(raw: object) -> RemotingCommand:
    if not isinstance(raw, dict):
        raise RemoteProtocolError(f"header is a JSON {type(raw).__name__}, allowed an object")
    ext_fields: dict[str, str] | None = None
    raw_fields = raw.get("extFields")
    if isinstance(raw_fields, dict):
        _check_count(len(raw_fields))
        ext_fields = {
            _mend(key): _json_text(value) for key, value in raw_fields.items() if value is not None
        }
    elif raw_fields is not None:
        raise RemoteProtocolError(
            f"extFields is a JSON {type(raw_fields).__name__}, allowed an object"
        )
    language = raw.get("language")
    if isinstance(language, int) and not isinstance(language, bool):
        language = language_name(language)
    remark = raw.get("remark")
    return RemotingCommand(
        code=_json_int32(raw, "code"),
        ext_fields=ext_fields,
        flag=_json_int32(raw, "flag"),
        language=None if language is None else _json_text(language),
        opaque=_json_int32(raw, "opaque"),
        remark=None if remark is None else _json_text(remark),
        version=_json_int32(raw, "version"),
    )


def _mend(text: str) -> str:
    """Without lone surrogates, which have no UTF-8; Java writes a question mark for them too."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _json_text(value: object) -> str:
    if isinstance(value, str):
        return _mend(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    import json  # noqa: PLC0415 - seldom needed

    return _mend(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _json_int32(raw: dict[str, object], name: str) -> int:
    value = raw.get(name)
    if value is None:
        return 0
    try:
        number = int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or not _INT32_MIN <= number <= _INT32_MAX:
        raise RemoteProtocolError(
            f"header field {name} is {str(value)[:40]!r}, allowed a 32-bit integer"
        )
    return number


_LANGUAGE_NAMES: Final = {language.value: language.name for language in LanguageCode}
_LANGUAGE_NUMBERS: Final = {language.name: language.value for language in LanguageCode}


def language_name(number: int) -> str | None:
    """Name of a language code, or None for an unknown one."""
    return _LANGUAGE_NAMES.get(number)


_BINARY_FIXED: Final = struct.Struct(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark_size
)
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

BINARY_HEADER_SIZE_MIN: Final = 21
assert _BINARY_FIXED.size + _INT32.size == BINARY_HEADER_SIZE_MIN


def decode_binary_header(header: bytes) -> RemotingCommand:
    """A command without its body, from a ROCKETMQ binary header.

    Raises:
        RemoteProtocolError: a size that does not fit into the header, or too many fields.
    """
    size = len(header)
    if size < BINARY_HEADER_SIZE_MIN:
        raise RemoteProtocolError(
            f"binary header of {size} bytes, allowed at least {BINARY_HEADER_SIZE_MIN}"
        )
    code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(header)
    position = _BINARY_FIXED.size
    if not 0 <= remark_size <= size - BINARY_HEADER_SIZE_MIN:
        raise RemoteProtocolError(
            f"binary header: remark of {remark_size} bytes at {position - 4}, "
            f"allowed 0 to {size - BINARY_HEADER_SIZE_MIN}"
        )
    remark = None
    if remark_size:
        remark = header[position : position + remark_size].decode("utf-8", "replace")
        position += remark_size
    (ext_size,) = _INT32.unpack_from(header, position)
    position += 4
    if not 0 <= ext_size <= size - position:
        raise RemoteProtocolError(
            f"binary header: ext fields of {ext_size} bytes at {position - 4}, "
            f"allowed 0 to {size - position}"
        )
    ext_fields = _decode_entries(header, position, position + ext_size) if ext_size else None
    return RemotingCommand(
        code=code,
        ext_fields=ext_fields,
        flag=flag,
        language=_LANGUAGE_NAMES.get(language),
        opaque=opaque,
        remark=remark,
        version=version,
        serialize_type=SerializeType.ROCKETMQ.value,
    )


def _decode_entries(header: bytes, position: int, end: int) -> dict[str, str]:
    ext_fields: dict[str, str] = {}
    count = 0
    try:
        while position < end:
            count += 1  # not len(ext_fields): they may all have one name
            if count > EXT_FIELD_COUNT_MAX:
                raise RemoteProtocolError(
                    f"binary header with more than {EXT_FIELD_COUNT_MAX} ext fields"
                )
            (key_size,) = _INT16.unpack_from(header, position)
            key_end = position + 2 + key_size
            (value_size,) = _INT32.unpack_from(header, key_end)
            value_end = key_end + 4 + value_size
            if key_size < 0 or value_size < 0 or value_end > end:
                raise RemoteProtocolError(
                    f"binary header: entry at {position} with key of {key_size} and value of "
                    f"{value_size} bytes, allowed {end - position} bytes in all"
                )
            key = header[position + 2 : key_end].decode("utf-8", "replace")
            ext_fields[key] = header[key_end + 4 : value_end].decode("utf-8", "replace")
            position = value_end
    except struct.error:
        raise RemoteProtocolError(
            f"binary header: torn entry at {position}, ext fields end at {end}"
        ) from None
    return ext_fields


# Encoding

_encode_value = msgspec.json.Encoder().encode
_FRAME_HEAD: Final = struct.Struct(">ii")
_LANGUAGE_JSON: Final = {name: f'"language":"{name}",'.encode() for name in _LANGUAGE_NUMBERS}


def encode_json_header(command: RemotingCommand) -> bytes:
    """The JSON header, keys in the order in which Java writes them.

    Raises:
        LocalProtocolError: a key or value of ``ext_fields`` is not text.
    """
    ext_fields = command.ext_fields
    if ext_fields is None:
        ext = b""
    else:
        try:
            # Go clients fail on anything but strings here, and the whole frame is lost to them.
            "".join(ext_fields.values())
            ext = b'"extFields":%b,' % _encode_value(ext_fields)
        except (TypeError, UnicodeEncodeError) as error:
            raise LocalProtocolError(f"ext fields of code {command.code}: {error}") from None
    language = command.language
    if language is None:
        language_json = b""
    else:
        known = _LANGUAGE_JSON.get(language)
        language_json = known if known else b'"language":%b,' % _encode_value(language)
    remark = command.remark
    return (
        b'{"code":%d,%b"flag":%d,%b"opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (
            command.code,
            ext,
            command.flag,
            language_json,
            command.opaque,
            b"" if remark is None else b'"remark":%b,' % _encode_value(remark),
            command.version,
        )
    )


def encode_binary_header(command: RemotingCommand) -> bytes:
    """The ROCKETMQ binary header.

    Raises:
        LocalProtocolError: the code needs more than 16 bits, or a key more than 32767 bytes.
    """
    pieces: list[bytes] = []
    for key, value in (command.ext_fields or {}).items():
        key_bytes = key.encode()
        value_bytes = value.encode()
        if len(key_bytes) > EXT_KEY_SIZE_MAX:
            raise LocalProtocolError(
                f"ext field name of {len(key_bytes)} bytes, allowed {EXT_KEY_SIZE_MAX}"
            )
        pieces += (
            _INT16.pack(len(key_bytes)),
            key_bytes,
            _INT32.pack(len(value_bytes)),
            value_bytes,
        )
    ext = b"".join(pieces)
    remark = command.remark.encode() if command.remark else b""
    language = _LANGUAGE_NUMBERS.get(command.language or "", LanguageCode.OTHER.value)
    try:
        fixed = _BINARY_FIXED.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error as error:
        raise LocalProtocolError(f"code {command.code} in a binary header: {error}") from None
    return b"".join((fixed, remark, _INT32.pack(len(ext)), ext))


def encode_frame(command: RemotingCommand, frame_size_max: int = FRAME_SIZE_MAX) -> list[Buffer]:
    """The frame as buffers in order: the head and header in one, then the body as it was given.

    Raises:
        LocalProtocolError: the frame would be longer than ``frame_size_max``, or its header has
            something that the serialization cannot carry.
    """
    serialize_type = command.serialize_type
    header = encode_json_header(command) if serialize_type == 0 else encode_binary_header(command)
    header_size = len(header)
    body = command.body
    if isinstance(body, bytes):
        # Small frames are the common ones: one buffer is cheaper to send than two.
        body_size = len(body)
        if body_size <= _JOINED_BODY_SIZE_MAX:
            length = 4 + header_size + body_size
            if length + 4 > frame_size_max:
                raise _frame_too_long(command, length + 4, frame_size_max)
            head = _FRAME_HEAD.pack(length, serialize_type << 24 | header_size)
            return [b"%b%b%b" % (head, header, body)]
        buffers: Sequence[Buffer] = (body,)
    elif isinstance(body, bytearray | memoryview):
        body_size = len(body)
        buffers = (body,)
    else:
        body_size = sum(map(len, body))
        buffers = body
    length = 4 + header_size + body_size
    if length + 4 > frame_size_max:
        raise _frame_too_long(command, length + 4, frame_size_max)
    return [_FRAME_HEAD.pack(length, serialize_type << 24 | header_size) + header, *buffers]


_JOINED_BODY_SIZE_MAX: Final = 2048
"""Bytes up to which a body of type ``bytes`` is copied after its header instead of sent apart."""


def _frame_too_long(command: RemotingCommand, found: int, allowed: int) -> LocalProtocolError:
    return LocalProtocolError(f"frame of code {command.code} has {found} bytes, allowed {allowed}")


def encode_frame_bytes(command: RemotingCommand) -> bytes:
    """The frame in one piece; copies the body."""
    return b"".join(encode_frame(command))
