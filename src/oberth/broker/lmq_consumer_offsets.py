"""LmqConsumerOffsets: offsets of ordinary and of light groups; lmqConsumerOffset.json.

A light message queue has one queue, so its offset is one number. Only groups that are light
themselves (``%LMQ%…``) have their offsets in the light table; with enableLmq this file stands in
for consumerOffset.json. RocketMQ: LmqConsumerOffsetManager.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from oberth.broker.config_file import document_bytes
from oberth.broker.consumer_offsets import (
    MERGED_A_TURN,
    ConsumerOffsets,
    drop_odd_keys,
    keys_of_topic,
)
from oberth.formats.config_files import ConsumerOffsets as OffsetsFile
from oberth.formats.config_files import LmqConsumerOffsets as LmqOffsetsFile
from oberth.formats.config_files import offset_key
from oberth.formats.config_json import Shown
from oberth.formats.names import LMQ_QUEUE_ID, is_lmq

_LIGHT: Final = "lmqOffsetTable"


class LmqConsumerOffsets(ConsumerOffsets):
    """Offsets of a broker with light message queues."""

    __slots__ = ("_light",)

    def __init__(self, update_version_step: int = 500) -> None:
        super().__init__(update_version_step)
        self._light: dict[str, int] = {}

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        now_ms: int,
        *,
        is_own: bool = False,
    ) -> bool:
        """See ConsumerOffsets. No group of the broker's own is a light one."""
        if not is_lmq(group):
            return super().commit(group, topic, queue_id, offset, now_ms, is_own=is_own)
        key = offset_key(topic, group)
        known = self._light.get(key)
        if known is None and not self._may_keep(self._light, key, group):
            return False
        if known != offset:
            self._light[key] = offset
            self._pairs_version += known is None
            self.is_dirty = True
        return True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """See ConsumerOffsets."""
        if not is_lmq(group):
            return super().query(group, topic, queue_id)
        return self._light.get(offset_key(topic, group), -1)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """See ConsumerOffsets."""
        if not is_lmq(group):
            return super().queues(group, topic)
        offset = self._light.get(offset_key(topic, group))
        return {} if offset is None else {LMQ_QUEUE_ID: offset}

    def is_known(self, group: str, topic: str) -> bool:
        """See ConsumerOffsets."""
        if not is_lmq(group):
            return super().is_known(group, topic)
        return offset_key(topic, group) in self._light

    @property
    def pair_count(self) -> int:
        """See ConsumerOffsets."""
        return super().pair_count + len(self._light)

    def _table_of(self, group: str) -> Mapping[str, object]:
        return self._light if is_lmq(group) else super()._table_of(group)

    def groups_of_topic(self, topic: str) -> list[str]:
        """See ConsumerOffsets."""
        start = f"{topic}@"
        light = [key[len(start) :] for key in keys_of_topic(self._light, topic)]
        return super().groups_of_topic(topic) + light

    def _pairs(self) -> list[str]:
        return [*self._offsets, *self._light]

    def _queues_of(self, key: str) -> dict[int, int] | None:
        offset = self._light.get(key)
        return super()._queues_of(key) if offset is None else {LMQ_QUEUE_ID: offset}

    def _tables(self) -> tuple[Mapping[str, object], ...]:
        return *super()._tables(), self._light

    def _delete(self, keys: list[str]) -> None:
        super()._delete(keys)
        for key in keys:
            if self._light.pop(key, None) is not None:
                self.is_dirty = True

    def to_body(self) -> dict[str, Any]:
        """See ConsumerOffsets."""
        return {**super().to_body(), _LIGHT: Shown(self._light, int)}

    def snapshot(self) -> Callable[[], bytes]:
        """See ConsumerOffsets. Numbers are quickly made text, so all of them are, each time."""
        ordinary, light = super().snapshot(), self._light.copy()

        def encode() -> bytes:
            entries = [f"\n\t\t{json.dumps(key)}:{offset}" for key, offset in light.items()]
            more = document_bytes({}, ((_LIGHT, entries),))
            # Both are one object; the second one's only field goes after the first one's.
            return ordinary()[: -len(b"\n}")] + b"," + more[more.index(b"\n") :]

        return encode

    def merge_in_slices(self, file: OffsetsFile) -> Iterator[None]:
        """See ConsumerOffsets."""
        if isinstance(file, LmqOffsetsFile):
            for number, (key, offset) in enumerate(file.lmq_offset_table.items(), 1):
                known = self._light.get(key)
                if known != offset:
                    self._light[key] = offset
                    self._pairs_version += known is None
                    self.is_dirty = True
                if not number % MERGED_A_TURN:
                    yield
        yield from super().merge_in_slices(file)

    @staticmethod
    def decoded(document: Any) -> LmqOffsetsFile:
        """See ConsumerOffsets; takes a consumerOffset.json too."""
        file = LmqOffsetsFile.from_json(document, "lmqConsumerOffset.json")
        for table in (file.offset_table, file.pull_offset_table, file.lmq_offset_table):
            drop_odd_keys(table, "lmqConsumerOffset.json")
        return file

    def _take(self, file: OffsetsFile) -> None:
        super()._take(file)
        self._light = dict(file.lmq_offset_table) if isinstance(file, LmqOffsetsFile) else {}
