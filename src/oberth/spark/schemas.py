"""The columns of ``format("rocketmq")``: names, synonyms, types and what each costs.

One table for source, sink, transforms and tests. A schema given by a user is resolved against it
column by column (names without regard to case, synonyms too), so only what is asked for is decoded.

    column                     type       in the default set
    key                        binary     yes   the KEYS property: keys separated by blanks
    value                      binary     yes   the body, decompressed (synonym body)
    topic                      string     yes
    broker                     string     yes   the store's broker name (synonym brokerName)
    partition                  int        yes   (synonym queueId)
    offset                     bigint     yes   (synonym queueOffset)
    timestamp                  timestamp  yes   when it was stored (synonym storeTimestamp)
    timestampType              int        yes   always 1: given by the log, as Kafka says it
    tags                       string     yes
    bornTimestamp              timestamp  yes   when the client made it
    properties                 map        with includeProperties (synonym headers)
    physicalOffset             bigint           (synonym commitLogOffset)
    size                       int              of the whole record (synonyms recordSize, storeSize)
    msgId                      string           UNIQ_KEY, or the offset id where there is none
    uniqueKey                  string           the UNIQ_KEY property, the client's id (synonym uniqKey)
    offsetMsgId                string           the broker's id: store host and physicalOffset
    shardingKey                string           the __SHARDINGKEY property
    flag                       int              the application's
    sysFlag                    int              as stored
    bodyCRC                    int              as stored
    bornHost                   string           address:port
    storeHost                  string           address:port
    reconsumeTimes             int
    preparedTransactionOffset  bigint
    magic                      int              which layout the record has
    innerIndex                 int              place in an inner batch, null outside one
    storedQueueOffset          bigint           the record's own; of an inner batch its first
    storedBody                 binary           as stored: compressed, an inner batch in one
    storedProperties           binary           as stored
    bodyError                  string           why value is the stored body; null where it is not

Rows of an inner batch share the record's columns; key, value, tags, properties, uniqueKey,
shardingKey and flag are the inner message's own.
"""  # noqa: E501 - the table

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oberth.errors import OptionError, RecordError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TIMESTAMP_TYPE_LOG_APPEND: Final = 1
"""What a row's timestampType says: the log gave the time (Kafka: LogAppendTime)."""

# Arrow has 32-bit offsets here: no batch may hold more bytes than that in one column.
COLUMN_BYTES_MAX: Final = 2**31 - 1


class Column(NamedTuple):
    """One column: its name, the Spark types it can have (the first by default), its synonyms."""

    name: str
    types: tuple[str, ...]
    synonyms: tuple[str, ...] = ()
    default: bool = False


_BYTES: Final = ("binary", "string")
_TEXT: Final = ("string", "binary")
_TIME: Final = ("timestamp", "bigint", "timestamp_ntz")
_MAP: Final = "map<string,string>"
_HEADERS: Final = "array<struct<key:string,value:binary>>"

COLUMNS: Final[tuple[Column, ...]] = (
    Column("key", _BYTES, ("keys",), True),
    Column("value", _BYTES, ("body",), True),
    Column("topic", _TEXT, (), True),
    Column("broker", ("string",), ("brokerName",), True),
    Column("partition", ("int", "bigint"), ("queueId",), True),
    Column("offset", ("bigint",), ("queueOffset",), True),
    Column("timestamp", _TIME, ("storeTimestamp",), True),
    Column("timestampType", ("int",), (), True),
    Column("tags", _TEXT, ("tag",), True),
    Column("bornTimestamp", _TIME, (), True),
    Column("properties", (_MAP, _HEADERS, "string"), ("headers",)),
    Column("physicalOffset", ("bigint",), ("commitLogOffset", "phyOffset")),
    Column("size", ("int", "bigint"), ("recordSize", "storeSize")),
    Column("msgId", ("string",), ("messageId",)),
    Column("uniqueKey", _TEXT, ("uniqKey",)),
    Column("offsetMsgId", ("string",)),
    Column("shardingKey", _TEXT),
    Column("flag", ("int",)),
    Column("sysFlag", ("int",)),
    Column("bodyCRC", ("int",)),
    Column("bornHost", ("string",)),
    Column("storeHost", ("string",)),
    Column("reconsumeTimes", ("int",)),
    Column("preparedTransactionOffset", ("bigint",)),
    Column("magic", ("int",)),
    Column("innerIndex", ("int",)),
    Column("storedQueueOffset", ("bigint",)),
    Column("storedBody", ("binary",)),
    Column("storedProperties", ("binary",)),
    Column("bodyError", ("string",)),
)
COLUMN_BY_NAME: Final[Mapping[str, Column]] = {column.name: column for column in COLUMNS}
DEFAULT_COLUMNS: Final = tuple(column.name for column in COLUMNS if column.default)
ALL_COLUMNS: Final = tuple(COLUMN_BY_NAME)
PLACE: Final = ("topic", "broker", "partition", "offset")
"""What names a message where something is told of it."""
_BY_ANY_NAME: Final[Mapping[str, Column]] = {
    name.lower(): column for column in COLUMNS for name in (column.name, *column.synonyms)
}
assert len(_BY_ANY_NAME) == sum(1 + len(column.synonyms) for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class Field:
    """A column as a reader has to give it.

    Attributes:
        name: what the user calls it.
        column: its name in this module's table.
        type: its Spark type, one of the column's.
        nullable: whether the user's schema lets it be null.
    """

    name: str
    column: str
    type: str
    nullable: bool = True


def column_named(name: str) -> Column:
    """The column with a name or synonym, whatever its case.

    Raises:
        OptionError: there is no such column; the nearest is named.
    """
    column = _BY_ANY_NAME.get(name.lower())
    if column is None:
        names = {n.lower(): n for c in COLUMNS for n in (c.name, *c.synonyms)}
        near = get_close_matches(name.lower(), names, 1, 0.4)
        hint = f"; the nearest is {names[near[0]]}" if near else ""
        raise OptionError(f"there is no column {name!r}{hint}. Columns: {', '.join(ALL_COLUMNS)}")
    return column


def parse_columns(text: str, *, with_properties: bool = False) -> tuple[Field, ...]:
    """The fields that the option ``columns`` asks for.

    Args:
        text: ``""`` or ``default``, ``*`` or ``all``, or names separated by commas; a name keeps
            the user's spelling.
        with_properties: whether the default set has properties.

    Raises:
        OptionError: an unknown name, or one named twice.
    """
    wanted = text.strip()
    if wanted.lower() in ("", "default"):
        names = [*DEFAULT_COLUMNS, *(("properties",) if with_properties else ())]
    elif wanted.lower() in ("*", "all", "full"):
        names = list(ALL_COLUMNS)
    else:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        if with_properties and not any(column_named(n).name == "properties" for n in names):
            names.append("properties")
    fields = []
    for name in names:
        column = column_named(name)
        fields.append(Field(name, column.name, column.types[0]))
    _refuse_doubles(field.name for field in fields)
    return tuple(fields)


def _refuse_doubles(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise OptionError(f"column {name!r} is named twice")
        seen.add(name.lower())


def struct_type(fields: Iterable[Field]) -> StructType:
    """The Spark schema of fields."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for field in fields:
        schema = schema.add(field.name, _spark_type(field.type), field.nullable)
    return schema


def _spark_type(name: str) -> Any:
    from pyspark.sql import types as t

    simple = {
        "binary": t.BinaryType,
        "string": t.StringType,
        "int": t.IntegerType,
        "bigint": t.LongType,
        "timestamp": t.TimestampType,
        "timestamp_ntz": t.TimestampNTZType,
    }
    if name == _MAP:
        return t.MapType(t.StringType(), t.StringType())
    if name == _HEADERS:
        return t.ArrayType(
            t.StructType(
                [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
            )
        )
    return simple[name]()


def resolve_schema(schema: StructType) -> tuple[Field, ...]:
    """The fields of a schema that a user gave.

    Raises:
        OptionError: a column that does not exist, or that cannot have the type asked for.
    """
    fields = []
    for field in schema.fields:
        column = column_named(field.name)
        kind = _kind_of(field.dataType)
        if kind not in column.types:
            raise OptionError(
                f"column {field.name}: found type {field.dataType.simpleString()}, "
                f"allowed: {', '.join(column.types)}"
            )
        fields.append(Field(field.name, column.name, kind, field.nullable))
    if not fields:
        raise OptionError("the schema has no columns")
    return tuple(fields)


def _kind_of(data_type: Any) -> str:
    text: str = data_type.simpleString()
    return "string" if text.startswith(("varchar", "char", "string ")) else text


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for a schema, to the last nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return arrow


def place_text(topic: str, broker: str, queue: int, offset: int) -> str:
    """The values of `PLACE` for a person."""
    return f"{topic} of {broker}, queue {queue}, offset {offset}"


def refuse_nulls(
    values: pa.Array, field: pa.Field, place: Callable[[int], str] | None = None
) -> None:
    """Raises for a null that a schema has no place for: Spark does not look for it.

    Args:
        values: a column.
        field: what the schema says of it.
        place: what the error calls a row.

    Raises:
        RecordError: a column, a field of a struct or an item of an array is null and NOT NULL.
    """
    found = _find_nulls(values, field, field.name)
    if found is None:
        return
    name, count = found
    what = "items" if "[]" in name else "rows"
    text = f"column {name} is null in {count} {what}, the schema says NOT NULL"
    if place is not None:
        rows = range(len(values))
        row = next(n for n in rows if _find_nulls(values.slice(n, 1), field, field.name))
        text = f"{text}; the first is {place(row)}"
    raise RecordError(text)


def _find_nulls(values: pa.Array, field: pa.Field, name: str) -> tuple[str, int] | None:
    """What is null and must not be, and how often; None if nothing is."""
    import pyarrow as pa

    if not field.nullable and values.null_count:
        return name, values.null_count
    inner = _inner_fields(field.type)
    if not any(refuses_nulls(each) for each in inner):
        return None
    there = values.drop_null()
    if not isinstance(field.type, pa.StructType):
        return _find_nulls(there.flatten(), inner[0], f"{name}[]")
    for number, each in enumerate(inner):
        found = _find_nulls(there.field(number), each, f"{name}.{each.name}")
        if found is not None:
            return found
    return None


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """What a struct or an array is made of; a map's texts are never null."""
    import pyarrow as pa

    if isinstance(kind, pa.StructType):
        return list(kind)
    return [kind.value_field] if isinstance(kind, pa.ListType) else []


def refuses_nulls(field: pa.Field) -> bool:
    """Whether a schema says NOT NULL of a column or of anything in it."""
    return not field.nullable or any(refuses_nulls(each) for each in _inner_fields(field.type))
