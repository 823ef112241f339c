"""StaticTopics: which logical queues this broker takes part in, and in topicQueueMapping.json.

What is always true: every list of stretches has passed ``queue_mapping.check_items``; a change is
on the disk before it counts, so that no message is ever taken for a queue whose mapping a loss of
power could take back; a stretch that has been shown to anybody never changes.
RocketMQ: TopicQueueMappingManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from oberth.broker.config_file import ConfigFile
from oberth.errors import ConfigFormatError, IllegalNameError
from oberth.formats import names
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappings,
)
from oberth.formats.config_json import Shown
from oberth.formats.data_version import DataVersion
from oberth.remoting.code import ResponseCode
from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_AGAIN: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)

NOT_LEADER: Final = int(ResponseCode.NOT_LEADER_FOR_QUEUE)


@dataclass(frozen=True, slots=True)
class LogicalQueue:
    """A queue of a static topic, as a request names it.

    Attributes:
        topic: its topic.
        queue_id: its logical number.
        detail: the topic's mapping on this broker.
        items: its stretches; empty if the broker has no part in it.
    """

    topic: str
    queue_id: int
    detail: TopicQueueMappingDetail
    items: Sequence[LogicQueueMappingItem]

    @property
    def is_led(self) -> bool:
        """Whether this broker takes its messages, and so answers for it."""
        return qm.leads(self.detail, self.items)

    @property
    def not_leader(self) -> str:
        """The remark of an answer with NOT_LEADER, in Java's words."""
        return (
            f"{self.topic}-{self.queue_id} does not exit in request process of current broker "
            f"{self.detail.bname}"
        )

    def is_here(self, item: LogicQueueMappingItem) -> bool:
        """Whether a stretch is on this broker."""
        return item.bname == self.detail.bname


class LogicalPull(NamedTuple):
    """The answer to a pull, in logical offsets.

    Attributes:
        code: of the response.
        next_begin_offset: where the consumer goes on.
        min_offset: of the stretch.
        max_offset: of what is known of the queue.
        offset_delta: what consumers add to the offsets of the records.
    """

    code: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int


def to_logical_pull(
    items: Sequence[LogicQueueMappingItem],
    current: LogicQueueMappingItem,
    code: int,
    offset: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
) -> LogicalPull:
    """What a pull from one stretch means for the whole queue.

    Args:
        items: the queue's stretches.
        current: the one that was asked, a decided one.
        code: what it answered.
        offset: what it was asked for; this and the following in its own, physical offsets.
        next_begin_offset: of its answer.
        min_offset: of its answer.
        max_offset: of its answer.

    Who has read a stretch that takes no messages any more to its end is led to the next one; who
    is before its first message, to that. RocketMQ: rewriteResponseForStaticTopic of
    PullMessageProcessor.
    """
    max_offset = max(max_offset, 0)
    if code != _SUCCESS:
        if offset >= max_offset and current is not items[-1]:
            following = qm.next_item(items, current)
            if following is None:
                # The next stretch takes messages already, its place is not decided yet.
                code, next_begin_offset = _NOT_FOUND, offset
            else:
                current, code = following, _AGAIN
                next_begin_offset = min_offset = max_offset = following.start_offset
        elif offset < min_offset:
            code = _MOVED if current is qm.first_item(items) else _AGAIN
            next_begin_offset = min_offset
    if qm.is_ended(current):
        next_begin_offset = min(next_begin_offset, current.end_offset)
    last = qm.last_item(items)
    return LogicalPull(
        code,
        qm.to_logical(current, next_begin_offset),
        qm.to_logical(current, min_offset),
        max(qm.to_logical(current, max_offset), qm.known_end(last) if last is not None else 0),
        current.logic_offset - current.start_offset,
    )


class StaticTopics:
    """The static topics of a broker.

    Args:
        config_dir: where topicQueueMapping.json is.
        broker_name: of this broker.
        clock_ms: the time of data versions.
        files: where the directory is; None: the operating system's.
    """

    def __init__(
        self,
        config_dir: Path,
        broker_name: str,
        clock_ms: Callable[[], int],
        files: FileSystem | None = None,
    ) -> None:
        self._file = ConfigFile(config_dir / "topicQueueMapping.json", files)
        self._broker_name = broker_name
        self._clock_ms = clock_ms
        self._lock = asyncio.Lock()  # guards the file against two changes at once
        self._changes = 0
        self.data_version = DataVersion()
        self.table: dict[str, TopicQueueMappingDetail] = {}

    def __bool__(self) -> bool:
        return bool(self.table)

    def get(self, topic: str) -> TopicQueueMappingDetail | None:
        """The mapping of a topic, or None if it is not static."""
        return self.table.get(topic)

    def queue(
        self, topic: str, queue_id: int, fields: Mapping[str, str] | None
    ) -> LogicalQueue | None:
        """The logical queue that a request is about; None if it means a physical one.

        Args:
            topic: of the request.
            queue_id: of the request.
            fields: of the request: ``lo=false`` says that the number is a physical one.
        """
        detail = self.table.get(topic)
        if detail is None or (fields is not None and fields.get("lo", "").lower() == "false"):
            return None
        return LogicalQueue(topic, queue_id, detail, detail.hosted_queues.get(queue_id, ()))

    # Changes

    def checked(
        self, new: TopicQueueMappingDetail, *, force: bool = False
    ) -> TopicQueueMappingDetail:
        """A mapping as it would be after a change to ``new``.

        Args:
            new: what somebody wants it to be.
            force: whatever it was before.

        Raises:
            ConfigFormatError: it is no mapping, or does not follow the present one.
        """
        qm.check_detail(new)
        topic = str(new.topic)
        if new.bname != self._broker_name:
            raise ConfigFormatError(
                f"mapping of {topic} for broker {new.bname!r}, this is {self._broker_name!r}"
            )
        old = self.table.get(topic)
        if old is None:
            return new
        hosted = {**old.hosted_queues, **new.hosted_queues}
        if force:
            return replace(new, hosted_queues=hosted)
        if new.epoch < old.epoch:
            raise ConfigFormatError(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
        if new.scope != old.scope:
            raise ConfigFormatError(
                f"Can't accept data with unmatched scope {new.scope} != {old.scope}"
            )
        is_same_epoch = new.epoch == old.epoch
        for queue_id, items in old.hosted_queues.items():
            wanted = new.hosted_queues.get(queue_id)
            if wanted is not None:
                qm.check_successor(
                    items, wanted, f"{topic} queue {queue_id}", is_same_epoch=is_same_epoch
                )
            elif is_same_epoch:
                raise ConfigFormatError(
                    f"Cannot accept equal epoch with null data: {topic} queue {queue_id}"
                )
        return replace(new, hosted_queues=hosted)

    async def put(self, new: TopicQueueMappingDetail, *, force: bool = False) -> None:
        """Change a mapping; it counts, and is on the disk, on return.

        Raises:
            ConfigFormatError: see `checked`; nothing was changed.
            OSError: it could not be written; nothing was changed.
        """
        async with self._lock:
            detail = self.checked(new, force=force)
            await self._write(str(new.topic), detail)

    async def drop_queues(self, topic: str, queue_ids: set[int]) -> None:
        """Forget some logical queues of a topic; for what others lead by now."""
        async with self._lock:
            old = self.table.get(topic)
            if old is None:
                return
            kept = {
                queue_id: items
                for queue_id, items in old.hosted_queues.items()
                if queue_id not in queue_ids
            }
            await self._write(topic, replace(old, hosted_queues=kept))

    async def _write(self, topic: str, detail: TopicQueueMappingDetail) -> None:
        """Write the table with a mapping, then take it over."""
        self.data_version = self.data_version.next(self._clock_ms())
        changes = -1
        while changes != self._changes:  # else another topic was deleted while this was written
            changes = self._changes
            data = self._encode({**self.table, topic: detail})
            await asyncio.to_thread(self._file.write, data, sync=True)
        self.table[topic] = detail

    def delete(self, topic: str) -> None:
        """Forget a topic.

        Raises:
            OSError: it could not be written; nothing was changed.
        """
        if topic not in self.table:
            return
        kept = dict(self.table)
        del kept[topic]
        self.data_version = self.data_version.next(self._clock_ms())
        self._file.write(self._encode(kept))
        del self.table[topic]
        self._changes += 1

    def differs(self, document: Any) -> bool:
        """Whether a master's answer to GET_ALL_TOPIC_CONFIG has another table than this one.

        Raises:
            ConfigFormatError: it is no document of mappings.
        """
        wanted = document.get("topicQueueMappingDetailMap") if isinstance(document, dict) else None
        version = document.get("mappingDataVersion") if isinstance(document, dict) else None
        if not wanted and not self.table:
            return False
        return DataVersion.from_json(version or {}, "mappingDataVersion") != self.data_version

    def decoded(self, document: Any) -> tuple[TopicQueueMappings, bytes]:
        """The table of such an answer, and the file that has it. Any thread may call.

        Raises:
            ConfigFormatError: something that is no mapping, or a name that no topic may have.
        """
        mappings = self._checked(
            {
                "dataVersion": document.get("mappingDataVersion") or {},
                "topicQueueMappingInfoMap": document.get("topicQueueMappingDetailMap") or {},
            }
        )
        return mappings, mappings.encode()

    def replace_all(self, mappings: TopicQueueMappings, file: bytes) -> None:
        """Take over a master's table, see `decoded`.

        Raises:
            OSError: it cannot be written, so nothing is taken over.
        """
        self._file.write(file)
        self._take(mappings)
        self._changes += 1

    # Files

    def load(self) -> None:
        """Read the file, if there is one. May block.

        Raises:
            ConfigFormatError: neither it nor its back-up can be read.
        """
        self._file.load(self.read)

    def read(self, document: Any) -> None:
        """Take over a file.

        Raises:
            ConfigFormatError: something that is no mapping, or a name that no topic may have.
        """
        self._take(self._checked(document))

    def _take(self, mappings: TopicQueueMappings) -> None:
        self.table = mappings.topic_queue_mapping_info_map
        self.data_version = mappings.data_version

    def _checked(self, document: Any) -> TopicQueueMappings:
        """The mappings of a document. Any thread may call."""
        mappings = TopicQueueMappings.from_json(document, "topicQueueMapping.json")
        for topic, detail in mappings.topic_queue_mapping_info_map.items():
            try:
                names.check_stored_topic(topic)
            except IllegalNameError as error:
                raise ConfigFormatError(f"topicQueueMapping.json: {error}") from None
            if detail.topic is None:
                detail.topic = topic
            qm.check_detail(detail)
            if detail.bname != self._broker_name:
                _LOG.warning(
                    "the mapping of static topic %s was made for broker %s, this broker is %s",
                    topic, detail.bname, self._broker_name,
                )  # fmt: skip
        return mappings

    def _encode(self, table: dict[str, TopicQueueMappingDetail]) -> bytes:
        return TopicQueueMappings(
            data_version=self.data_version, topic_queue_mapping_info_map=table
        ).encode()

    def to_body(self) -> dict[str, Any]:
        """The mappings' part of GET_ALL_TOPIC_CONFIG, for ``config_in_slices``."""
        return {
            "mappingDataVersion": self.data_version.to_json(),
            "topicQueueMappingDetailMap": Shown(self.table, qm.wire_json),
        }

    def infos(self, topics: Sequence[str] | None = None) -> dict[str, Any]:
        """What the name servers are told of some topics, or of all; see queue_mapping."""
        return {
            topic: qm.mapping_info(self.table[topic])
            for topic in (self.table if topics is None else topics)
            if topic in self.table
        }
