"""Schemas of bodies, from a directory that was named when the console was started.

    NAME.avsc            an Avro schema, for one datum or the framing of a schema registry
    NAME.desc, NAME.pb   a Protobuf descriptor set, by ``protoc --include_imports
                         --descriptor_set_out=FILE``

A schema named as a topic is that topic's; any other can be chosen. The decoders are those of
exports, so what they refuse (schemas that contain themselves, arrays of items without bytes) is
refused here too. A browser chooses among the names that the directory has and gives no path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
        from oberth.spark.pipelines.json_types import BodyError  # noqa: PLC0415 - needs pyarrow

        plain, layers = unpack(body)
        try:
            if len(plain) > JSON_MAX:
                raise BodyError(f"{len(plain)} bytes, at most {JSON_MAX} are decoded")
            value = found(plain)
        except BodyError as error:
            return replace(decode(body), problem=f"{name}: {error}")
        text = json.dumps(value, indent=2, ensure_ascii=False, default=cell)
        kind = KINDS[path.suffix]
        return Decoded(kind, text[:TEXT_SHOWN], layers, len(plain), len(text) > TEXT_SHOWN)

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
        for package in ("pyarrow", *(["fastavro"] if path.suffix == ".avsc" else ["google"])):
            if find_spec(package) is None:
                extra = "avro" if path.suffix == ".avsc" else "protobuf"
                raise OptionError(
                    f"{path.name}: the package {package} is missing; "
                    f"pip install 'oberth[spark,{extra}]' brings it"
                )
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
            known = self._known.get(path.name)
            if known is not None and known[0] == version:
                return known[1]
            if status.st_size > FILE_SIZE_MAX:
                raise OptionError(f"{path.name}: {status.st_size} bytes, allowed {FILE_SIZE_MAX}")
            data = path.read_bytes()
        except OSError as error:
            raise OptionError(f"schema {path}: {error.strerror}") from None
        made = _avro(data) if path.suffix == ".avsc" else _protobuf(data)
        self._known[path.name] = (version, made)
        return made


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
