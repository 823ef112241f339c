"""Topics that were deleted, whose records the log still has: a start gives them no queues.

Where nothing says what queues held, or some are missing, a start dispatches the log from its
beginning. Records of a topic that was deleted lie there as before, and look like those of one whose
queues were lost. The topic table tells the two apart: deleting a topic writes it anew. So a topic
was deleted if

* the table does not have it, and was written after the topic's last message was stored,
* nothing is left of its queues, no directory either, and
* queues of topics that the table has are there. Where none is, all were lost.

What was deleted here is in `oberth.state`, too, with the log's end at that time: while that file is
there, the topic's records below it get no queues, whatever else was lost.

In every other case the queues are built: a message too many can be passed over, one too few cannot
be read. So what was deleted comes back in queues of a topic that was made again and that have had
no message since, and where no other topic has messages. System topics and light queues need not be
in the table, and are never taken for deleted ones.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from oberth.errors import ConfigFormatError
from oberth.formats.names import is_lmq, is_system_topic
from oberth.formats.paths import CONFIG
from oberth.formats.topic_config import TopicConfigs
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)


class DeletedTopics:
    """Says of records that are dispatched at a start whether their topic was deleted.

    The last message of a topic is known at the log's end only. A topic that turns out to have one
    that is younger than the table is in `lost`: then the log is to be dispatched once more.
    """

    def __init__(
        self, queues: ConsumeQueueStore, known: Collection[str], changed_ms: int, root: str
    ) -> None:
        """Of a store's topic table.

        Args:
            queues: recovered.
            known: the topics of the table.
            changed_ms: when it was changed last.
            root: the store's directory, for messages.
        """
        self._queues = queues
        self._known = frozenset(known)
        self._changed_ms = changed_ms
        self._root = root
        self._hidden: set[str] = set()
        self._kept: set[str] = set()
        self.lost: set[str] = set()

    def may_hide(self, topic: str) -> bool:
        """Whether a topic could be a deleted one, whatever its records' times say."""
        return not (
            topic in self._known
            or topic in self._kept
            or topic in self._queues.table
            or is_lmq(topic)
            or is_system_topic(topic)
        )

    def hides(self, topic: str, newest_ms: int) -> bool:
        """Whether records of a topic are to get no queue.

        Args:
            topic: of the queue.
            newest_ms: store time of the newest of the records.
        """
        if not self.may_hide(topic):
            return False
        if newest_ms < self._changed_ms:
            self._hidden.add(topic)
        elif topic in self._hidden:
            self.lost.add(topic)
        else:
            self._kept.add(topic)
        return topic in self._hidden

    def keep_lost(self) -> bool:
        """Gives the topics in `lost` their queues from now on; whether there are any."""
        found, self.lost = self.lost, set()
        self._kept |= found
        self._hidden -= found
        return bool(found)

    def report(self) -> list[str]:
        """Names the deleted topics in the log, and returns them."""
        for topic in sorted(self._hidden):
            _LOG.warning(
                "%s: topic %s was deleted and has messages in the log: they are in no queue "
                "(`oberth store rebuild` makes queues for all that the log has)",
                self._root, topic,
            )  # fmt: skip
        return sorted(self._hidden)


def find_deleted_topics(
    files: FileSystem, root: str, queues: ConsumeQueueStore
) -> DeletedTopics | None:
    """What tells deleted topics from lost ones; None where nothing does.

    Args:
        files: the store's.
        root: its directory.
        queues: recovered.
    """
    path = f"{root}/{CONFIG}/topics.json"
    data = files.read_file(path)
    if not data:
        return None
    try:
        table = TopicConfigs.decode(data, name=path)
    except ConfigFormatError as error:
        _LOG.warning(
            "%s; every topic with messages in the log is taken for one that is there", error
        )
        return None
    known = table.topic_config_table
    if not any(
        queue.max_offset > 0
        for queue in queues.all_queues()
        if queue.topic in known and not is_system_topic(queue.topic)
    ):
        return None
    return DeletedTopics(queues, known, table.data_version.timestamp, root)
