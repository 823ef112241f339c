"""A Kafka cluster, through Spark's source and sink and the client in their jars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMEOUT_S: Final = 60
_DELIVERY_TIMEOUT: Final = "kafka.delivery.timeout.ms"
_DELIVERY_TIMEOUT_MS: Final = 120_000
"""Kafka's own default."""


class Kafka:
    """A cluster, through Spark's source and sink and the client in their jars.

    Raises:
        OptionError: the session has no such jars.
    """

    def __init__(self, session: SparkSession, servers: str, options: Mapping[str, str]) -> None:
        from py4j.protocol import Py4JJavaError

        self._session = session
        self._servers = servers
        self._options = {n: v for n, v in options.items() if n.startswith("kafka.")}
        jvm: Any = session
        self._jvm = jvm._jvm
        self._loader = self._jvm.Thread.currentThread().getContextClassLoader()
        try:
            self._loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider")
        except Py4JJavaError as error:
            raise OptionError(
                "Spark's Kafka source is not there: add its jars, for example --conf "
                "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION"
            ) from error

    def _admin(self) -> Any:
        properties = self._jvm.java.util.Properties()
        properties.put("bootstrap.servers", self._servers)
        for name, value in self._options.items():
            properties.put(name.removeprefix("kafka."), value)
        return self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def _get(self, future: Any) -> Any:
        return future.get(_TIMEOUT_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def partitions(self, topic: str, *, make: int = 0) -> int:
        """How many partitions a topic has; made with so many where it is missing.

        Raises:
            OptionError: there is no such topic.
        """
        admin = self._admin()
        try:
            names = self._get(admin.listTopics().names())
            if not names.contains(topic):
                if not make:
                    raise OptionError(f"Kafka at {self._servers} has no topic {topic!r}")
                wanted = self._jvm.java.util.ArrayList()
                none = self._jvm.java.util.Optional.empty()
                number = self._jvm.java.util.Optional.of(make)
                wanted.add(self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, number, none))
                self._get(admin.createTopics(wanted).all())
                return make
            asked = self._jvm.java.util.ArrayList()
            asked.add(topic)
            described = self._get(admin.describeTopics(asked).allTopicNames())
            return int(described.get(topic).partitions().size())
        finally:
            admin.close()

    def bounds(self, topic: str, count: int) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each partition."""
        specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        # Behind the last stable offset are messages of transactions that are still open.
        level = self._jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        committed = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        admin = self._admin()
        try:
            found: list[dict[int, int]] = []
            for spec in (specs.earliest(), specs.latest()):
                asked = self._jvm.java.util.HashMap()
                for number in range(count):
                    asked.put(self._partition(topic, number), spec)
                answers = self._get(admin.listOffsets(asked, committed).all())
                found.append(
                    {
                        number: int(answers.get(self._partition(topic, number)).offset())
                        for number in range(count)
                    }
                )
            return {number: (found[0][number], found[1][number]) for number in range(count)}
        finally:
            admin.close()

    def _partition(self, topic: str, number: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, number)

    def read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        """The records of ranges: key, value, headers, partition, offset and timestamp."""

        def offsets(side: int) -> str:
            return json.dumps({topic: {str(n): bounds[side] for n, bounds in ranges.items()}})

        reader = self._session.read.format("kafka").options(**self._options)
        return (
            reader.option("kafka.bootstrap.servers", self._servers)
            .option("assign", json.dumps({topic: sorted(ranges)}))
            .option("startingOffsets", offsets(0))
            .option("endingOffsets", offsets(1))
            .option("includeHeaders", "true")
            .option("kafka.isolation.level", "read_committed")
            .load()
        )

    def write(self, frame: DataFrame, topic: str) -> None:
        """Sends a frame's rows, at least once."""
        writer = frame.write.format("kafka").options(**self._options).mode("append")
        writer.option("kafka.bootstrap.servers", self._servers).option("topic", topic).save()

    @property
    def delivery_timeout_s(self) -> float:
        """How long producers go on sending what they were given, in s.

        Spark keeps them when their tasks have ended, and executors whose driver is gone send the
        rest before they end.
        """
        given = self._options.get(_DELIVERY_TIMEOUT, "")
        return (int(given) if given.isdecimal() else _DELIVERY_TIMEOUT_MS) / 1000

    def group_offsets(self, group: str, topic: str, count: int) -> dict[int, int]:
        """What a group has committed, by partition."""
        admin = self._admin()
        try:
            answers = self._get(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()
            )
            found = {}
            for number in range(count):
                place = answers.get(self._partition(topic, number))
                if place is not None:
                    found[number] = int(place.offset())
            return found
        finally:
            admin.close()

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commits offsets for a group that nobody is in."""
        made = self._jvm.java.util.HashMap()
        for number, offset in offsets.items():
            place = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
            made.put(self._partition(topic, number), place)
        admin = self._admin()
        try:
            self._get(admin.alterConsumerGroupOffsets(group, made).all())
        finally:
            admin.close()
