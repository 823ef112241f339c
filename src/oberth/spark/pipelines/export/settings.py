"""What an export is told, and what it writes down so that later runs go on the same way.

``settings.json`` in the export's own directory holds everything that decides which rows its tables
have and of what type. A later run with other settings is refused.
"""

from __future__ import annotations

import base64
import string
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from oberth.errors import OptionError
from oberth.spark import plan as p
from oberth.spark.pipelines.export.bodies import BodyDecoder, JsonBodies, make_decoder
from oberth.spark.pipelines.export.partition_by import PartitionColumn, parse_partition_by
from oberth.spark.schemas import ALL_COLUMNS, arrow_schema, parse_columns, struct_type

FORMATS = ("parquet", "delta", "iceberg")
BODY_KINDS = ("raw", "json", "avro", "protobuf")
ONE_TABLE = "messages"
QUARANTINE = "+quarantine"
#: Everything that a record has: what `import` needs to make the same record again.
EXACT_COLUMNS = ",".join(ALL_COLUMNS)
_RAW = {"storedBody", "storedProperties"}
READABLE_COLUMNS = ",".join(name for name in ALL_COLUMNS if name not in _RAW)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What an export is told.

    Attributes:
        format: parquet, delta or iceberg.
        one_table: all topics in one table rather than a table each.
        exact: every record with all its bytes, prepared and rolled back ones and the broker's own
            topics too.
        columns: as the option ``columns``; "" for all readable ones, with ``exact`` for all.
        partition_by: expressions of partition columns.
        body: raw, json, avro or protobuf.
        body_schema: for json the type as Arrow's serialized schema in base64, else the text or
            bytes of the schema in base64; "" for raw.
        body_message: for protobuf the message's name.
        topics: only these; empty for all that are not the broker's own.
    """

    format: str = "parquet"
    one_table: bool = False
    exact: bool = False
    columns: str = ""
    partition_by: tuple[str, ...] = ()
    body: str = "raw"
    body_schema: str = ""
    body_message: str = ""
    topics: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises for settings that contradict each other.

        Raises:
            OptionError: what, and what is allowed.
        """
        if self.format not in FORMATS:
            raise OptionError(f"format {self.format!r}: allowed are {', '.join(FORMATS)}")
        if self.body not in BODY_KINDS:
            raise OptionError(f"body {self.body!r}: allowed are {', '.join(BODY_KINDS)}")
        if self.exact and (self.body != "raw" or self.columns or self.topics):
            raise OptionError(
                "an exact export has all columns of all topics, with bodies as they are"
            )
        if self.body_schema or self.body == "raw":
            self.partitions()
        elif self.body != "json":
            raise OptionError(f"body {self.body}: needs the schema that bodies were written with")

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ExportSettings:
        """The settings that `to_json` gave."""
        lists = {name: tuple(values[name]) for name in ("partition_by", "topics")}
        return cls(**{**values, **lists})

    # What rows are.

    def wanted_columns(self) -> str:
        """The columns that are read."""
        return self.columns or (EXACT_COLUMNS if self.exact else READABLE_COLUMNS)

    def record_schema(self) -> pa.Schema:
        """What is read of a record."""
        return arrow_schema(struct_type(parse_columns(self.wanted_columns())))

    def decoder(self) -> BodyDecoder | None:
        """What decodes bodies, None where they stay as they are."""
        if self.body == "raw":
            return None
        raw = base64.b64decode(self.body_schema)
        if self.body == "json":
            schema = pa.ipc.read_schema(pa.py_buffer(raw))
            return JsonBodies(pa.struct(list(schema)))
        if self.body == "avro":
            from oberth.spark.pipelines.export.avro import AvroBodies

            return AvroBodies(raw.decode())
        from oberth.spark.pipelines.export.protobuf import ProtobufBodies

        return ProtobufBodies(raw, self.body_message)

    def row_schema(self) -> pa.Schema:
        """What a row has before partition columns."""
        schema = self.record_schema()
        decoder = self.decoder()
        return schema if decoder is None else schema.append(pa.field("body", decoder.type))

    def partitions(self) -> tuple[PartitionColumn, ...]:
        """The partition columns.

        Raises:
            OptionError: an expression that is none.
        """
        return parse_partition_by(self.partition_by, self.row_schema())

    def table_schema(self, quarantine: bool = False) -> pa.Schema:
        """What a table has, partition columns last."""
        schema = self.record_schema() if quarantine else self.row_schema()
        if quarantine:
            return schema.append(pa.field("reason", pa.string()))
        for each in self.partitions():
            if each.name in schema.names:
                schema = schema.remove(schema.get_field_index(each.name))
            schema = schema.append(pa.field(each.name, pa.string()))
        return schema

    def with_json_type(self, kind: pa.StructType) -> ExportSettings:
        """The settings with the type of JSON bodies."""
        raw = pa.schema(list(kind)).serialize().to_pybytes()
        return replace(self, body_schema=base64.b64encode(raw).decode())

    def with_schema_file(self, path: str) -> ExportSettings:
        """The settings with an Avro schema or a Protobuf descriptor set.

        Raises:
            OptionError: it cannot be read, or does not say what it should.
        """
        make_decoder(self.body, path, self.body_message)
        with open(path, "rb") as file:
            return replace(self, body_schema=base64.b64encode(file.read()).decode())


@dataclass(frozen=True, slots=True)
class ExportedTopics(p.TopicFilter):
    """Which topics an export takes."""

    settings: ExportSettings

    def allows(self, topic: str) -> bool:
        """See `TopicFilter`."""
        if self.settings.exact:
            return True
        if self.settings.topics:
            return topic in self.settings.topics
        return not p.is_hidden_topic(topic)


_PLAIN = frozenset(string.ascii_letters + string.digits + "_-.")


def table_name(topic: str) -> str:
    """A topic's table: the topic, with ``+`` and two hex digits for what is awkward in paths."""
    plain = "".join(chr(byte) if chr(byte) in _PLAIN else f"+{byte:02X}" for byte in topic.encode())
    # A hidden directory would be passed over by readers.
    return f"+{ord(plain[0]):02X}{plain[1:]}" if plain[:1] in (".", "_") else plain or "+"
