"""A schema registry, asked over HTTP, and bodies that name their schema by its number there.

The interface is that of Confluent's Schema Registry, which Karapace, Apicurio and Redpanda speak too:

    GET /subjects/SUBJECT/versions/VERSION   {"subject", "version", "id", "schemaType", "schema"}
    GET /schemas/ids/ID                      {"schemaType", "schema"}

``schemaType`` is AVRO where it is missing. A Protobuf schema is asked for with ``?format=serialized``:
a FileDescriptorProto in base64. A body begins with a zero and the id, four bytes, big end first; for
Protobuf follows which message of the schema it is: a count of indexes and the indexes, as zigzag
varints, where a lone zero means the first message.

The column has the type of one version of one subject, asked for when a query is planned. Avro bodies of
other versions are read by the schema that they name and resolved to that one; JSON and Protobuf
bodies are fitted by names and field numbers.
"""  # noqa: E501 - addresses

from __future__ import annotations

import base64
import binascii
import json
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa

from oberth.errors import OptionError, RemotingError
from oberth.spark.pipelines.export.bodies import BodyDecoder, JsonBodies
from oberth.spark.pipelines.export.each_body import Reasons, decode_each
from oberth.spark.pipelines.json_types import DEPTH_MAX, BodyError, parse_schema

KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
ANSWER_BYTES_MAX: Final = 4 << 20
IDS_MAX: Final = 1000
"""Schemas that a task asks for at most: what bodies name is anybody's choice."""
REFERENCES_MAX: Final = 100
_TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.2
_TIMEOUT_S: Final = 10.0
_HEADER: Final = struct.Struct(">bi")


class Registered(NamedTuple):
    """A schema as a registry has it.

    Attributes:
        id: its number.
        kind: AVRO, JSON or PROTOBUF.
        text: the schema; for Protobuf a FileDescriptorProto in base64.
        references: name, subject and version of the schemas that it uses.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry.

    Attributes:
        url: ``http://`` or ``https://``, with a path if it has one.
        user: for HTTP's basic authentication; "" for none.
        password: the same.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    def check(self) -> None:
        """Raises for an address that is none.

        Raises:
            OptionError: what is allowed.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise OptionError(
                f"schemaRegistry: found {self.url!r}, allowed is http://host:port or https://…"
            )

    def version(self, subject: str, version: str, kind: str) -> Registered:
        """One version of a subject, or its ``latest``.

        Raises:
            OptionError: the registry does not know it, or it is of another kind.
            RemotingError: the registry does not answer.
        """
        name = f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}"
        found = self._ask(name, kind)
        if found is None:
            raise OptionError(
                f"the schema registry {self.url} has no version {version} of subject {subject!r}"
            )
        if found.kind != kind:
            raise OptionError(
                f"subject {subject!r} of the schema registry is {found.kind}, not {kind}"
            )
        return found

    def by_id(self, number: int, kind: str) -> Registered | None:
        """The schema with a number, None for none.

        Raises:
            RemotingError: the registry does not answer.
        """
        return self._ask(f"/schemas/ids/{number}", kind)

    def _ask(self, name: str, kind: str) -> Registered | None:
        address = self.url.rstrip("/") + name + ("?format=serialized" if kind == "PROTOBUF" else "")
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        request = urllib.request.Request(address, headers=headers)
        if self.user:
            given = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {given}")
        raw = self._fetch(name, request)
        return None if raw is None else self._parsed(name, raw)

    def _fetch(self, name: str, request: urllib.request.Request) -> bytes | None:
        """The body of an answer, None where there is no such thing."""
        pause, left = _FIRST_PAUSE_S, _TRIES
        while True:
            left -= 1
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                    raw: bytes = answer.read(ANSWER_BYTES_MAX + 1)
                    return raw
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code < 500 or not left:
                    raise RemotingError(
                        f"the schema registry {self.url} answers {name} with {error.code} "
                        f"{error.reason}"
                    ) from None
            except OSError as error:
                if not left:
                    raise RemotingError(
                        f"the schema registry {self.url} does not answer {name}: {error}"
                    ) from None
            time.sleep(pause)
            pause *= 2

    def _parsed(self, name: str, raw: bytes) -> Registered:
        try:
            answer = json.loads(raw)
            references = tuple(
                (str(each["name"]), str(each["subject"]), str(each["version"]))
                for each in answer.get("references") or ()
            )
            number = int(answer.get("id") or 0)
            return Registered(
                number, str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), references
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RemotingError(
                f"the schema registry {self.url} answers {name} with what is no schema: {error!r}"
            ) from None


def registry_decoder(
    registry: Registry, kind: str, subject: str, version: str, message: str
) -> BodyDecoder:
    """A decoder of bodies that name their schemas in a registry.

    Args:
        registry: which.
        kind: avro, json or protobuf.
        subject: whose version gives the column's type.
        version: a number or ``latest``.
        message: for protobuf the message's full name; "" for the schema's first.

    Raises:
        OptionError: there is no such subject, or its schema is no column's type.
        RemotingError: the registry does not answer.
    """
    registry.check()
    found = registry.version(subject, version, KINDS[kind])
    if kind == "json":
        return NamedJsonBodies(parse_schema(json.dumps(type_of_json_schema(found.text))))
    if kind == "avro":
        _refuse_references(found)
        return NamedAvroBodies(registry, found.id, found.text)
    return NamedProtobufBodies(_descriptors(registry, found), message)


def _refuse_references(found: Registered) -> None:
    if found.references:
        raise OptionError(
            f"schema {found.id} of the registry refers to others "
            f"({', '.join(name for name, _, _ in found.references)}); allowed is one that stands "
            "alone"
        )


def _named(body: bytes) -> int:
    """The id that a body names.

    Raises:
        BodyError: it names none.
    """
    if len(body) < _HEADER.size or body[0]:
        raise BodyError("no schema id in front: expected a zero and four bytes")
    return int(_HEADER.unpack_from(body)[1])


class NamedJsonBodies(JsonBodies):
    """JSON objects behind an id, or without one."""

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        bare = [
            body[_HEADER.size :] if body is not None and body[:1] == b"\0" else body
            for body in bodies.to_pylist()
        ]
        return super().decode(pa.array(bare, bodies.type))


class NamedAvroBodies:
    """Avro data behind an id, resolved to one schema.

    Args:
        registry: whom to ask for the schemas that bodies name.
        number: the id of the column's schema.
        schema: that schema.
    """

    def __init__(self, registry: Registry, number: int, schema: str) -> None:
        from oberth.spark.pipelines.export.avro import AvroBodies  # fastavro is an extra

        self._arguments = registry, number, schema
        own = AvroBodies(schema)
        self._type = own.type
        self._known: dict[int, Callable[[bytes], Any] | str] = {number: own.read}

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedAvroBodies, self._arguments

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self._type, self._one)

    def _one(self, body: bytes) -> Any:
        number = _named(body)
        found = self._known.get(number)
        if found is None:
            found = self._ask(number)
            self._known[number] = found
        if isinstance(found, str):
            raise BodyError(found)
        return found(body[_HEADER.size :])

    def _ask(self, number: int) -> Callable[[bytes], Any] | str:
        from oberth.spark.pipelines.export.avro import AvroBodies  # fastavro is an extra

        registry, _, schema = self._arguments
        if len(self._known) >= IDS_MAX:
            return f"schema {number}: more than {IDS_MAX} schemas are named by one task's bodies"
        written = registry.by_id(number, "AVRO") if number > 0 else None
        if written is None:
            return f"schema {number} is not known to the registry"
        try:
            _refuse_references(written)
            same = json.loads(written.text) == json.loads(schema)
            return AvroBodies(written.text, "" if same else schema).read
        except ValueError as error:  # no JSON, or no schema
            return f"schema {number}: {error}"


class NamedProtobufBodies:
    """Protobuf messages of one type behind an id and the message's place in its schema.

    Args:
        descriptors: a FileDescriptorSet whose last file has the message.
        message: its full name; "" for the first of that file.
    """

    def __init__(self, descriptors: bytes, message: str) -> None:
        from google.protobuf import descriptor_pb2  # protobuf is an extra

        from oberth.spark.pipelines.export.protobuf import ProtobufBodies

        self._arguments = descriptors, message
        file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
        self._places = dict(_places(file))
        first = next((name for name, place in self._places.items() if place == (0,)), "")
        self._name = message.lstrip(".") or first
        self._inner = ProtobufBodies(descriptors, self._name)
        if self._name not in self._places:
            raise OptionError(f"the registry's schema uses the message {self._name} of another one")

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedProtobufBodies, self._arguments

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._inner.type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self.type, self._one)

    def _one(self, body: bytes) -> Any:
        _named(body)
        place, at = _message_place(body, _HEADER.size)
        if place != self._places[self._name]:
            raise BodyError(
                f"message {list(place)} of its schema, expected {list(self._places[self._name])} "
                f"({self._name})"
            )
        return self._inner.read(body[at:])


def _places(file: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The full names of a file's messages with their places."""
    found: list[tuple[str, tuple[int, ...]]] = []
    prefix: str = file.package + "." if file.package else ""
    ahead: list[tuple[str, tuple[int, ...], Any]] = [
        (prefix, (n,), each) for n, each in enumerate(file.message_type)
    ]
    while ahead:
        above, place, message = ahead.pop()
        found.append((above + message.name, place))
        ahead += [
            (f"{above}{message.name}.", (*place, n), each)
            for n, each in enumerate(message.nested_type)
        ]
    return found


def _message_place(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The indexes in front of a Protobuf message, and where they end."""
    count, at = _zigzag(body, at)
    if not count:
        return (0,), at
    if not 0 < count <= DEPTH_MAX:
        raise BodyError(f"{count} message indexes, allowed are 0 to {DEPTH_MAX}")
    place = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        place.append(index)
    return tuple(place), at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body) or shift > 28:
            raise BodyError(f"at {at}: no message index")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _descriptors(registry: Registry, found: Registered) -> bytes:
    """A FileDescriptorSet of a schema and all that it refers to, itself last."""
    from google.protobuf import descriptor_pb2, descriptor_pool  # protobuf is an extra
    from google.protobuf.message import DecodeError

    made = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def well_known(name: str) -> None:
        if name in seen or not name.startswith("google/protobuf/"):
            return
        seen.add(name)
        import google.protobuf.timestamp_pb2  # noqa: F401 - enters the pool below

        try:
            file = descriptor_pool.Default().FindFileByName(name)
        except KeyError:
            raise OptionError(f"the registry's schema imports {name}, which is not known") from None
        for each in file.dependencies:
            well_known(each.name)
        file.CopyToProto(made.file.add())

    def take(schema: Registered, name: str) -> None:
        if len(seen) > REFERENCES_MAX:
            raise OptionError(f"a schema refers to more than {REFERENCES_MAX} others")
        seen.add(name)
        for other, subject, version in schema.references:
            if other not in seen:
                take(registry.version(subject, version, "PROTOBUF"), other)
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(schema.text, validate=True)
            )
        except (binascii.Error, DecodeError, ValueError):
            raise OptionError(
                f"schema {schema.id}: the registry {registry.url} does not give Protobuf "
                "descriptors (format=serialized); give a descriptor set with bodySchema"
            ) from None
        file.name = name
        for each in file.dependency:
            well_known(each)
        made.file.append(file)

    take(found, f"schema-{found.id}.proto")
    return made.SerializeToString()


# JSON Schema.


def type_of_json_schema(text: str) -> dict[str, Any]:
    """What `parse_schema` takes for a JSON Schema: an object's properties.

    Whole numbers, numbers, texts, truth values, arrays of one kind of items and objects with
    properties are columns of their types, each also where null is allowed beside it; everything
    else (references, combinations, maps) is the value's JSON text.

    Raises:
        OptionError: it is no schema of objects.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the registry's JSON Schema is not JSON: {error}") from None
    made = _json_kind(schema, 0)
    if not isinstance(made, dict):
        raise OptionError("the registry's JSON Schema is not of an object with properties")
    return made


_JSON_KINDS: Final = {
    "integer": "bigint", "number": "double", "string": "string", "boolean": "boolean",
}  # fmt: skip


def _json_kind(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return "json"
    for name in ("oneOf", "anyOf"):
        members = schema.get(name)
        if isinstance(members, list):
            others = [each for each in members if each != {"type": "null"}]
            return _json_kind(others[0], depth + 1) if len(others) == 1 else "json"
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array":
        return [_json_kind(schema.get("items"), depth + 1)]
    if kind == "object" and isinstance(schema.get("properties"), dict) and schema["properties"]:
        return {str(n): _json_kind(v, depth + 1) for n, v in schema["properties"].items()}
    return _JSON_KINDS.get(kind, "json") if isinstance(kind, str) else "json"
