"""Schemas of bodies: of a directory that was named when the console was started, and pasted ones.

    NAME.avsc            an Avro schema, for one datum or the framing of a schema registry
    NAME.desc, NAME.pb   a Protobuf descriptor set, by ``protoc --include_imports
                         --descriptor_set_out=FILE``

A schema named as a topic is that topic's; any other can be chosen. The decoders are those of
exports, so what they refuse (schemas that contain themselves, arrays of items without bytes) is
refused here too. A browser chooses among the names that the directory has and gives no path.

A pasted schema comes from a browser, so it is bounded: PASTED_MAX characters, types that unfold to
UNFOLDED_MAX fields, PASTED_WORK_MAX for the bytes of a body times these. It is kept in memory for
the browser's session only.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from oberth.console.decoding import JSON_MAX, TEXT_SHOWN, Decoded, decode, unpack
from oberth.console.texts import cell
from oberth.errors import OptionError

FILES_MAX: Final = 500
FILE_SIZE_MAX: Final = 4 * 1024 * 1024
KINDS: Final = {".avsc": "avro", ".desc": "protobuf", ".pb": "protobuf"}

PASTED: Final = "pasted: "
"""How the names of pasted schemas begin; no file of a directory of schemas can end like them."""
PASTED_MAX: Final = 64 * 1024
PASTED_EACH_MAX: Final = 8
"""Pasted schemas of a session; a further one replaces the oldest."""
PASTED_SESSIONS_MAX: Final = 100
UNFOLDED_MAX: Final = 2000
PASTED_WORK_MAX: Final = 5_000_000

Read = Callable[[bytes], Any]


class Schemas:
    """The schemas of a directory.

    Args:
        folder: "": there are none.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._known: dict[str, tuple[tuple[int, int], dict[str, Read]]] = {}

    def names(self) -> list[str]:
        """Every choice: a file, or file#message where a descriptor set has several."""
        made: list[str] = []
        for path in self._files():
            try:
                made += [f"{path.name}#{each}" if each else path.name for each in self._of(path)]
            except OptionError:
                made.append(path.name)  # choosing it tells why
        return made

    def decode(self, body: bytes, name: str) -> Decoded:
        """A body by a schema; as it is, with the reason, where the schema does not fit.

        Raises:
            OptionError: there is no such schema, it cannot be read, or a package is missing.
        """
        file, _, message = name.partition("#")
        path = next((each for each in self._files() if each.name == file), None)
        found = None if path is None else self._of(path).get(message)
        if path is None or found is None:
            raise OptionError(f"no schema {name[:100]!r}; there are {', '.join(self.names())}")
        return _decoded(body, name, KINDS[path.suffix], found, JSON_MAX)

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        try:
            found = sorted(each for each in self._folder.iterdir() if each.suffix in KINDS)
        except OSError as error:
            raise OptionError(f"schemas in {self._folder}: {error.strerror}") from None
        return [each for each in found if each.is_file()][:FILES_MAX]

    def _of(self, path: Path) -> dict[str, Read]:
        """Message ("" if there is one kind only) → decoder, made anew when the file changes."""
        _check_packages(path.name, KINDS[path.suffix])
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
            known = self._known.get(path.name)
            if known is not None and known[0] == version:
                return known[1]
            if status.st_size > FILE_SIZE_MAX:
                raise OptionError(
                    f"the schema {path.name} has {status.st_size} bytes, and the console reads "
                    f"at most {FILE_SIZE_MAX}: keep the messages that you need in a smaller one"
                )
            data = path.read_bytes()
        except OSError as error:
            raise OptionError(f"schema {path}: {error.strerror}") from None
        made = _avro(data) if path.suffix == ".avsc" else _protobuf(data)
        self._known[path.name] = (version, made)
        return made


class PastedSchemas:
    """Schemas that browsers have pasted, by session; the session used longest ago goes first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, OrderedDict[str, tuple[str, int, Read]]] = OrderedDict()

    def names(self, session: str) -> list[str]:
        """The names of the schemas that a session has pasted."""
        return list(self._known.get(session, ()))

    def add(self, session: str, kind: str, text: str) -> list[str]:
        """Keeps a schema for a session; the names it can be chosen by.

        Args:
            session: the session's identifier.
            kind: ``avro`` or ``protobuf``.
            text: an Avro schema, or a Protobuf descriptor set in base64.

        Raises:
            OptionError: it is none, or too large, or a package is missing.
        """
        if kind not in ("avro", "protobuf"):
            raise OptionError(f"a schema of kind {kind[:20]!r}, allowed avro and protobuf")
        if len(text) > PASTED_MAX:
            raise OptionError(
                f"the schema has {len(text)} characters, and this page takes at most "
                f"{PASTED_MAX}: put it into the directory of --schemas"
            )
        _check_packages("a pasted schema", kind)
        if kind == "avro":
            label, size = _unfolded_avro(text)
            made = _avro(text.encode("utf-8", "replace"))
        else:
            label = "protobuf"
            try:
                data = base64.b64decode("".join(text.split()), validate=True)
            except (binascii.Error, ValueError) as error:
                raise OptionError(f"the descriptor set is no base64: {error}") from None
            size = _unfolded_protobuf(data)
            made = _protobuf(data)
        kept = self._known.setdefault(session, OrderedDict())
        names = [f"{PASTED}{each or label}" for each in made][:PASTED_EACH_MAX]
        for name, read in zip(names, made.values(), strict=False):
            kept[name] = kind, size, read
            kept.move_to_end(name)
        while len(kept) > PASTED_EACH_MAX:
            kept.popitem(last=False)
        self._known.move_to_end(session)
        while len(self._known) > PASTED_SESSIONS_MAX:
            self._known.popitem(last=False)
        return names

    def forget(self, session: str) -> None:
        """Drops the schemas of a session that has ended."""
        self._known.pop(session, None)

    def decode(self, session: str, body: bytes, name: str) -> Decoded:
        """As `Schemas.decode`, by a schema that the session has pasted.

        Raises:
            OptionError: it has pasted none of this name, or it was forgotten since.
        """
        found = self._known.get(session, OrderedDict()).get(name)
        if found is None:
            raise OptionError(f"no schema {name[:100]!r}: paste it again")
        kind, size, read = found
        return _decoded(body, name, kind, read, min(JSON_MAX, PASTED_WORK_MAX // max(size, 1)))


def _decoded(body: bytes, name: str, kind: str, read: Read, size_max: int) -> Decoded:
    from oberth.spark.pipelines.json_types import BodyError  # noqa: PLC0415 - needs pyarrow

    plain, layers = unpack(body)
    try:
        if len(plain) > size_max:
            raise BodyError(f"{len(plain)} bytes, at most {size_max} are decoded")
        value = read(plain)
    except BodyError as error:
        return replace(decode(body), problem=f"{name}: {error}")
    text = json.dumps(value, indent=2, ensure_ascii=False, default=cell)
    return Decoded(kind, text[:TEXT_SHOWN], layers, len(plain), len(text) > TEXT_SHOWN)


def _check_packages(what: str, kind: str) -> None:
    for package in ("pyarrow", "fastavro" if kind == "avro" else "google"):
        if find_spec(package) is None:
            raise OptionError(
                f"{what}: the package {package} is missing; "
                f"pip install 'oberth[spark,{kind}]' brings it"
            )


def _unfolded_avro(text: str) -> tuple[str, int]:
    """The name of an Avro schema, and how many types it has where every name stands for its type.

    Types that are used twice by each other in turn would double with every one of them.

    Raises:
        OptionError: it is no JSON, nested too deep, or has more than UNFOLDED_MAX.
    """
    sizes: dict[str, int] = {}

    def size(schema: Any) -> int:
        if isinstance(schema, str):
            return sizes.get(schema.rpartition(".")[2], 1)
        if isinstance(schema, list):
            return bounded(size(each) for each in schema)
        if not isinstance(schema, dict):
            return 1
        fields = schema.get("fields")
        inner = [schema.get("items"), schema.get("values"), schema.get("type")]
        if isinstance(fields, list):
            inner += [each.get("type") for each in fields if isinstance(each, dict)]
        made = bounded(size(each) for each in inner if each is not None)
        if isinstance(name := schema.get("name"), str):
            # Of names that differ in their namespaces only the larger one counts.
            last = name.rpartition(".")[2]
            sizes[last] = max(sizes.get(last, 0), made)
        return made

    def bounded(parts: Iterable[int]) -> int:
        return _bounded(1 + sum(parts))

    try:
        schema = json.loads(text)
        made = size(schema)
    except json.JSONDecodeError as error:
        raise OptionError(f"the Avro schema is not JSON: {error}") from None
    except RecursionError:
        raise OptionError("the Avro schema is nested too deep") from None
    name = schema.get("name") if isinstance(schema, dict) else None
    return (name[:100] if isinstance(name, str) else "avro"), made


def _unfolded_protobuf(data: bytes) -> int:
    """How many fields the largest message has where every message stands for its fields.

    Raises:
        OptionError: it is no descriptor set, a name is not full, a message contains itself, or
            there are more than UNFOLDED_MAX.
    """
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - of the extra protobuf
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - the same

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    except DecodeError as error:
        raise OptionError(f"the Protobuf descriptor set cannot be read: {error}") from None
    messages: dict[str, Any] = {}

    def take(prefix: str, found: Iterable[Any]) -> None:
        for each in found:
            messages[f"{prefix}.{each.name}"] = each
            take(f"{prefix}.{each.name}", each.nested_type)

    for file in files:
        take(f".{file.package}" if file.package else "", file.message_type)
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = UNFOLDED_MAX  # while it is counted: a message in itself is too large
            fields = messages[name].field if name in messages else ()
            if any(each.type_name and not each.type_name.startswith(".") for each in fields):
                raise OptionError(f"{name}: the name of a field's type is not full")
            sizes[name] = _bounded(
                1 + sum(size(each.type_name) if each.type_name else 1 for each in fields)
            )
        return sizes[name]

    try:
        return max(map(size, list(messages)), default=1)
    except RecursionError:
        raise OptionError("the Protobuf messages are nested too deep") from None


def _bounded(size: int) -> int:
    if size > UNFOLDED_MAX:
        raise OptionError(
            f"the schema unfolds to more than {UNFOLDED_MAX} fields, or contains itself; "
            "one of --schemas may"
        )
    return size


def _avro(data: bytes) -> dict[str, Read]:
    from oberth.spark.pipelines.export.avro import AvroBodies  # noqa: PLC0415 - needs fastavro

    return {"": AvroBodies(data.decode("utf-8", "replace"))._one}


def _protobuf(data: bytes) -> dict[str, Read]:
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - of the extra protobuf
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - the same

    from oberth.spark.pipelines.export.protobuf import ProtobufBodies  # noqa: PLC0415 - the same

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    except DecodeError as error:
        raise OptionError(f"the Protobuf descriptor set cannot be read: {error}") from None
    names = [
        f"{file.package}.{message.name}" if file.package else message.name
        for file in files
        for message in file.message_type
        if not file.name.startswith("google/protobuf/")
    ]
    if len(names) <= 1:
        return {"": ProtobufBodies(data, names[0] if names else "").read}
    return {name: ProtobufBodies(data, name).read for name in names}
