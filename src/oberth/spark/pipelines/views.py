"""Topics of stores as views for SQL: safe names, JSON bodies as columns, rows without a job.

A view has the name of its topic where SQL takes it as it is; other characters become ``_``, a
digit in front gets ``t_`` before it, and names that would be the same for SQL, which knows no
case, get numbers. `all_messages` holds the messages of all topics.

A statement is answered faster when Spark's Python workers need not be started. Topics with few
bytes are therefore read here, in the driver, and handed over as they are.

Filters of statements are pushed down by the session's rule (`oberth.spark.pushdown`). Where there
is none, with Spark Connect, those of a statement that reads one larger topic once: Spark keeps what
was pushed with the view, so the statement gets one of its own, and one without push-down where the
plan turns out to read it more than once.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OptionError
from oberth.spark import plan as p
from oberth.spark.lake import Lake, open_lake, union_frame
from oberth.spark.open_source import open_source
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export.places import storage_options
from oberth.spark.pipelines.json_types import ddl_type, infer_struct
from oberth.spark.pushdown import CONF as PUSHDOWN
from oberth.spark.pushdown import install
from oberth.spark.schemas import ALL_COLUMNS, column_named, parse_columns, struct_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOG: Final = logging.getLogger(__name__)
ALL_MESSAGES: Final = "all_messages"
READ_HERE_MAX: Final = 32 << 20
"""Record bytes up to which a topic is read in the driver."""
_WORD: Final = re.compile(r"\w+")
_BEFORE: Final = re.compile(r"(?:\s|\(|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""What may stand before the first word of a statement."""

_QUERIES: Final = ("select", "with", "from", "table", "values", "map", "reduce")
_SCAN: Final = "BatchScan rocketmq"
"""What a plan's text has for each read of a view that is not in the driver's memory."""


def safe_names(topics: Iterable[str]) -> dict[str, str]:
    """View name by topic; the same for the same topics, whatever their order."""
    taken = {ALL_MESSAGES}
    names: dict[str, str] = {}
    # Topics that SQL takes as they are keep their names, whatever the others are called.
    for topic in sorted(topics, key=lambda each: (_plain(each) != each, each)):
        base = name = _plain(topic)
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        names[topic] = name
    return names


def is_query(statement: str) -> bool:
    """Whether a statement that Spark takes asks for rows: SET and SHOW have rows, too."""
    before = _BEFORE.match(statement)
    assert before is not None, "it may be empty"
    word = _WORD.match(statement, before.end())
    return word is not None and word[0].lower() in _QUERIES


def _plain(topic: str) -> str:
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    return f"t_{name}" if name[:1].isdigit() else name or "_"


def read_rows(
    options: Mapping[str, str], columns: str, *, rows_max: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch query, read in this process.

    Args:
        options: of ``format("rocketmq")``.
        columns: as the option ``columns``.
        rows_max: stop after the batch with which so many are reached.
    """
    from oberth.spark.source import RocketMQReader

    parsed = parse_read_options(options, streaming=False)
    reader = RocketMQReader(parsed, struct_type(parse_columns(columns)))
    count = 0
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield batch
            count += batch.num_rows
            if rows_max is not None and count >= rows_max:
                return


@dataclass(slots=True)
class TopicViews:
    """Views of the topics of some stores or live brokers, made when a statement names them.

    Attributes:
        session: where they are made.
        paths: the stores; none where options name live brokers.
        options: further options of ``format("rocketmq")``.
        columns: which columns they have, as the option ``columns``.
        expand: topics whose JSON bodies become columns; ``*`` for all that have any.
        names: view name by topic, also of topics that a lake leaves out.
    """

    session: SparkSession
    paths: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict)
    columns: str = ""
    expand: frozenset[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)
    _scanned: dict[str, str | None] = field(default_factory=dict)
    _bodies: dict[str, pa.StructType] = field(default_factory=dict)
    _without_json: set[str] = field(default_factory=set)
    _stores: p.QueueStores | None = None
    _tables: Lake | None = None

    def __post_init__(self) -> None:
        """Lists the topics."""
        self._stores = open_source(self._parsed())
        topics = {topic for store in self._stores.brokers for topic in store.topics()}
        if self._lake:
            self._tables = open_lake(self._lake, storage_options(self.options))
            topics |= self._tables.topics()
        self.names = safe_names(topics)

    @property
    def _lake(self) -> str:
        return self.options.get("lake", "")

    def _parsed(self, **more: str) -> Any:
        return parse_read_options(self._options(**more), streaming=False)

    def _options(self, **more: str) -> dict[str, str]:
        path = self.paths[0] if len(self.paths) == 1 else ",".join(self.paths)
        return {**self.options, **({"path": path} if path else {}), **more}

    def make_for(self, statement: str) -> list[str]:
        """Makes the views that a statement names (all, where it asks what there is).

        Of topics that the lake leaves out there is none; who names one is told why.

        Returns:
            The names of the views that are new.
        """
        words = {word.lower() for word in _WORD.findall(statement)}
        every = "show" in words and bool({"tables", "views"} & words)
        made = []
        for topic, name in self.names.items():
            wanted = self._has(topic) if every else name.lower() in words
            if wanted and name not in self._made:
                self._make(name, topic)
                made.append(name)
        wanted = self._has(None) if every else ALL_MESSAGES in words
        if wanted and ALL_MESSAGES not in self._made:
            self._make(ALL_MESSAGES, None)
            made.append(ALL_MESSAGES)
        return made

    def readable(self) -> dict[str, str]:
        """View name by topic, of topics that can be read: a lake leaves some out."""
        return {topic: name for topic, name in self.names.items() if self._has(topic)}

    def _has(self, topic: str | None) -> bool:
        """Whether a topic, or all of them, can be read: a lake may have been made of some."""
        if self._tables is None:
            return True
        return not self._tables.settings.topics if topic is None else self._tables.has_topic(topic)

    def query(self, statement: str) -> DataFrame:
        """The answer to a statement; its filters are pushed down where that is right.

        What the frame is used for later keeps the statement's own filters.
        """
        self.make_for(statement)
        words = [word.lower() for word in _WORD.findall(statement)]
        named = [name for name in self._scanned if name.lower() in words]
        before = self.session.conf.get(PUSHDOWN, "false")
        pushed = before == "true" and install(self.session)
        if pushed or len(named) != 1 or not is_query(statement):
            return self.session.sql(statement)
        self._make(named[0], self._scanned[named[0]], pushdown=True)
        self.session.conf.set(PUSHDOWN, "true")
        try:
            frame = self.session.sql(statement)
            with redirect_stdout(io.StringIO()) as plan:
                frame.explain()
            scans = plan.getvalue().count(_SCAN)
        finally:
            self.session.conf.set(PUSHDOWN, before or "false")
            # Nothing but this frame has the reader: views of views go by name.
            self._make(named[0], self._scanned[named[0]])
        return frame if scans <= 1 else self.session.sql(statement)

    def _make(self, name: str, topic: str | None, *, pushdown: bool = False) -> None:
        more = {} if topic is None else {"subscribe": topic}
        frame = self._frame(name, topic, more, pushdown=pushdown)
        every = "*" in self.expand and topic not in self._without_json
        if topic is not None and (every or topic in self.expand):
            try:
                frame = self._expanded(frame, more)
            except OptionError as error:
                if topic in self.expand:
                    raise
                self._without_json.add(topic)
                _LOG.warning("topic %s keeps its bodies as they are: %s", topic, error)
        frame.createOrReplaceTempView(name)
        self._made.add(name)

    def _frame(
        self, name: str, topic: str | None, more: Mapping[str, str], *, pushdown: bool
    ) -> DataFrame:
        options = self._options(**more)
        if self._lake:
            return union_frame(self.session, options, self.columns)
        if name not in self._scanned and self._size(more) <= READ_HERE_MAX:
            import pyarrow as pa

            from oberth.spark.schemas import arrow_schema

            columns = self.columns or ",".join(view_columns())
            schema = arrow_schema(struct_type(parse_columns(columns)))
            table = pa.Table.from_batches(read_rows(options, columns), schema)
            return self.session.createDataFrame(table)
        self._scanned[name] = topic
        reader = self.session.read.format("rocketmq").options(**options)
        if pushdown:
            reader = reader.option("pushdown", "true")
        return reader.option("columns", self.columns or ",".join(view_columns())).load()

    def _size(self, more: Mapping[str, str]) -> int:
        assert self._stores is not None
        parsed = self._parsed(**more)
        keys = p.select_queues(parsed, self._stores, must_exist=True)
        if not keys and isinstance(self._stores, p.Stores):
            return sum(store.log_end() - store.log_start() for store in self._stores.files)
        total = 0
        for key, (start, end) in self._stores.bounds(keys).items():
            total += self._stores.queue(key).record_bytes(start, end) if end > start else 0
            if total > READ_HERE_MAX:
                break
        return total

    def _expanded(self, frame: DataFrame, more: Mapping[str, str]) -> DataFrame:
        """The bodies' fields as further columns; a field with a column's name gets ``body_``."""
        from pyspark.sql import functions as f

        topic = more.get("subscribe", "")
        body_type = self._bodies.get(topic)
        if body_type is None:
            samples = [
                body
                for batch in read_rows(self._options(**more), "value", rows_max=1000)
                for body in batch.column(0).to_pylist()
            ]
            body_type = self._bodies[topic] = infer_struct(samples)
        body = f.from_json(f.col("value").cast("string"), ddl_type(body_type))
        taken = {name.lower() for name in frame.columns}
        chosen = []
        for number in range(body_type.num_fields):
            name = body_type.field(number).name
            alias = f"body_{name}" if name.lower() in taken else name
            taken.add(alias.lower())
            chosen.append(f.col("body").getField(name).alias(alias))
        return frame.withColumn("body", body).select(*frame.columns, *chosen)


def view_columns() -> list[str]:
    """What a view has unless told otherwise: all but the record's raw bytes."""
    raw = {"storedBody", "storedProperties"}
    return [name for name in ALL_COLUMNS if column_named(name).name not in raw]
