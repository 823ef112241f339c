"""What an export is told, and what it writes down so that later runs go on the same way.

``settings.json`` in the export's own directory holds everything that decides which rows its tables
have and of what type. A later run with other settings is refused.
"""

from __future__ import annotations

import base64
import string
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from oberth.errors import OptionError
from oberth.spark import plan as p
from oberth.spark.pipelines.export.bodies import BodyDecoder, JsonBodies, schema_decoder
from oberth.spark.pipelines.export.partition_by import PartitionColumn, parse_partition_by
from oberth.spark.schemas import ALL_COLUMNS, Field, arrow_schema, parse_columns, struct_type

FORMATS: Final = ("parquet", "delta", "iceberg")
BODY_KINDS: Final = ("raw", "json", "avro", "protobuf")
ONE_TABLE: Final = "messages"
QUARANTINE: Final = "+quarantine"
EXACT_COLUMNS: Final = ",".join(ALL_COLUMNS)
"""Everything that a record has: what `import` needs to make the same record again."""
RECORD_COLUMNS: Final = (
    "physicalOffset", "size", "magic", "bodyCRC", "partition", "flag", "storedQueueOffset",
    "sysFlag", "bornTimestamp", "bornHost", "timestamp", "storeHost", "reconsumeTimes",
    "preparedTransactionOffset", "storedBody", "value", "topic", "storedProperties", "innerIndex",
)  # fmt: skip
"""Those of them that a record is made of again."""
ODD_TIMES: Final = {"timestamp": "timestampMillis", "bornTimestamp": "bornTimestampMillis"}
"""By column of a time: where an exact export keeps one that no calendar has, in ms as stored."""
_RAW: Final = {"storedBody", "storedProperties"}
READABLE_COLUMNS: Final = ",".join(name for name in ALL_COLUMNS if name not in _RAW)


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
        body_reader_schema: for avro the schema that values are to be of, in base64; "" for the one
            that bodies were written with.
        catalog: of Iceberg tables: an address or a type that pyiceberg knows; "" for one beside
            the tables.
        namespace: in that catalog; "" for ``oberth``.
        warehouse: what the catalog calls so; "" for its own.
        topics: only these; empty for all that are not the broker's own.
        odd_times: whether there are the columns of `ODD_TIMES`: in exact exports, but for those
            that were begun before there were such columns.
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
    body_reader_schema: str = ""
    catalog: str = ""
    namespace: str = ""
    warehouse: str = ""
    odd_times: bool = False

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
        if self.format != "iceberg" and (self.catalog or self.namespace or self.warehouse):
            raise OptionError("a catalog, its namespace and warehouse go with format iceberg")
        if (self.namespace or self.warehouse) and not self.catalog:
            raise OptionError("a namespace and a warehouse are those of a catalog: give it too")
        if _has_secret(self.catalog):
            raise OptionError(
                "catalog: the address has a password or a token, which the export would note; "
                "give it as pyiceberg's own PYICEBERG_CATALOG__OBERTH__… or leave it to the "
                "database's client"
            )
        if self.body_reader_schema and self.body != "avro":
            raise OptionError(f"body {self.body}: only Avro has a reader's schema")
        if self.body_schema or self.body == "raw":
            self.partitions()
        elif self.body != "json":
            raise OptionError(f"body {self.body}: needs the schema that bodies were written with")

    def check_new(self) -> None:
        """Raises for settings that no export is begun with; one that was begun goes on with them.

        Raises:
            OptionError: an exact export whose files would lack a column that records are made of.
        """
        if not self.exact:
            return
        schema = self.record_schema()
        for text, each in zip(self.partition_by, self.partitions(), strict=True):
            if each.name not in RECORD_COLUMNS:
                continue
            # The files of Iceberg tables have partition columns too, as text.
            is_text = not each.function and pa.types.is_string(schema.field(each.name).type)
            if self.format != "iceberg" or not is_text:
                raise OptionError(
                    f"partition column {text!r}: an exact export has the column {each.name} as it "
                    f"is; give another name: by_{each.name}={text.rpartition('=')[2].strip()}"
                )

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

    def fields(self) -> tuple[Field, ...]:
        """What is read of a record."""
        odd = ODD_TIMES if self.odd_times else {}
        return (
            *parse_columns(self.wanted_columns()),
            *(Field(name, column, "bigint") for column, name in odd.items()),
        )

    def record_schema(self) -> pa.Schema:
        """The types of `fields`."""
        return arrow_schema(struct_type(self.fields()))

    def decoder(self) -> BodyDecoder | None:
        """What decodes bodies, None where they stay as they are."""
        if self.body == "raw":
            return None
        raw = base64.b64decode(self.body_schema)
        if self.body == "json":
            schema = pa.ipc.read_schema(pa.py_buffer(raw))
            return JsonBodies(pa.struct(list(schema)))
        reader = base64.b64decode(self.body_reader_schema).decode()
        return schema_decoder(self.body, raw, reader, self.body_message)

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

    def with_schema_file(self, path: str, reader_path: str | None = None) -> ExportSettings:
        """The settings with an Avro schema or a Protobuf descriptor set.

        Raises:
            OptionError: it cannot be read, or does not say what it should.
        """
        settings = replace(
            self,
            body_schema=_read_schema(path),
            body_reader_schema="" if reader_path is None else _read_schema(reader_path),
        )
        settings.decoder()
        return settings


_SECRETS: Final = ("password", "passwd", "pwd", "token", "secret", "credential")
"""Words in the names of parameters whose values are secrets."""


def _has_secret(address: str) -> bool:
    """Whether an address has a password, or a parameter that is named like a secret."""
    try:
        parts = urlsplit(address)
        names = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        return bool(parts.password) or any(word in name for name in names for word in _SECRETS)
    except ValueError:
        return True  # what cannot be read may hold one


def _read_schema(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return base64.b64encode(file.read()).decode()
    except OSError as error:
        raise OptionError(f"schema {path}: {error.strerror}") from None


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


_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "_-.")


def table_name(topic: str) -> str:
    """A topic's table: the topic, with ``+`` and two hex digits for what is awkward in paths."""
    plain = "".join(chr(byte) if chr(byte) in _PLAIN else f"+{byte:02X}" for byte in topic.encode())
    # A hidden directory would be passed over by readers.
    return f"+{ord(plain[0]):02X}{plain[1:]}" if plain[:1] in (".", "_") else plain or "+"


def topic_of_table(name: str) -> str:
    """The topic that `table_name` made a name for."""
    first, *others = name.split("+")
    raw = first.encode() + b"".join(bytes.fromhex(x[:2]) + x[2:].encode() for x in others if x)
    return raw.decode("utf-8", "replace")
