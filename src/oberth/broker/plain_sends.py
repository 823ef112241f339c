"""PlainSends: the sends that compiled kernels serve from the frame to the answer.

What connections bring in one turn of the loop comes here first. The plain sends that it begins with
are appended together and answered. All else is given back, for the general way: other codes, topics
that are met for the first time, properties that mean something to the broker, what is refused.

A send that is served here is stored and answered byte for byte as `SendMessageProcessor` does it.
That has checked each topic before it comes here, and checks it again when anything about topics
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.broker.put_status import put_outcome
from oberth.formats.message import HOST_BITS, MAGIC_V1
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from oberth.kernels import runtime
from oberth.kernels.arguments import TALLY_BYTES
from oberth.kernels.memory import uninitialised
from oberth.kernels.sends import PlainSends
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.connection import RemotingConnection
from oberth.store.messages import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oberth.broker.dispatching import Dispatching
    from oberth.broker.send_topics import ClientAddresses, SendTopic
    from oberth.broker.stats import StatsItem
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.command import Buffer
    from oberth.remoting.rendered import SendResponses
    from oberth.store.message_store import MessageStore

    Bytes = bytes | bytearray

REFUSED_FLAGS: Final = INNER_BATCH | NEED_UNWRAP | HOST_BITS | TRANSACTION_MASK


class PlainSendService:
    """Serves plain sends. All methods belong to the loop's thread.

    Args:
        store_config: of the store.
        store: where messages go.
        dispatching: makes them readable.
        responses: renders the answers of the general way.
        names: properties that are not stored as they came.
        added: properties that the broker adds to each message, as stored.
        puts: counts messages.
        addresses: the hosts of messages from a channel.
        refuses: whether the general way takes no message now.

    Attributes:
        served: messages so far.
        frame_size: bytes of a send in the last turn, on average.
    """

    def __init__(
        self,
        *,
        store_config: MessageStoreConfig,
        store: MessageStore,
        dispatching: Dispatching,
        responses: SendResponses,
        names: Iterable[str],
        added: bytes,
        puts: StatsItem,
        addresses: Callable[[Channel], ClientAddresses],
        refuses: Callable[[], bool],
    ) -> None:
        self._store_config = store_config
        self._store = store
        self._dispatching = dispatching
        self._responses = responses
        self._names = frozenset(names)
        self._added = added
        self._puts = puts
        self._addresses = addresses
        self._refuses = refuses
        self._sends: PlainSends[SendTopic] | None = None
        self.served = 0
        self.frame_size = 1

    def topics_changed(self) -> None:
        """The general way looks at each topic again."""
        if self._sends is not None:
            self._sends.forget()

    def config_changed(self) -> None:
        """Limits may have changed, and topics."""
        self._sends = None

    def know(self, name: str, topic: SendTopic) -> None:
        """The general way has checked a topic."""
        if topic.is_special or topic.is_batch_queue or topic.led is not None:
            return
        if not runtime.available():
            return
        if self._sends is None:
            self._sends = PlainSends(
                frame_max=FRAME_SIZE_MAX,
                body_max=self._store_config.max_message_size,
                record_max=self._store.commit_log.record_max,
                refused_flags=REFUSED_FLAGS,
                names=self._names,
                added=self._added,
                pieces=self._responses.pieces,
                magic=MAGIC_V1,
            )
        self._sends.add(name, topic.queue_nums_max, topic)

    def serve(self, came: Mapping[Channel, Bytes]) -> tuple[int, list[tuple[Channel, Buffer]]]:
        """Serve the plain sends of one turn of the loop.

        Args:
            came: by channel whole frames and perhaps the beginning of one more.

        Returns:
            How many were served, and what is left of each channel's bytes.
        """
        sends = self._sends
        if sends is None or self._refuses():
            return 0, [*came.items()]
        waits = self._dispatching.waits_for_disk
        known = self._addresses
        hosts = [(channel.context or known(channel)).hosts_at for channel in came]
        if not sends.read(came.values(), hosts, waits=waits):
            return 0, [*came.items()]
        count = sends.count
        slots = sends.touched()
        try:
            is_stored = self._store.append_plain(sends, slots)
        finally:
            sends.drop()
        if not is_stored:
            return 0, [*came.items()]
        self._dispatching.soon()
        tallies = sends.slots
        for topic, _, _, messages, place in slots:
            puts, sizes = topic.puts, topic.sizes
            puts.value += messages
            puts.times += messages
            sizes.value += tallies[place + TALLY_BYTES]
            sizes.times += messages
        self._puts.add(count)
        self.served += count
        left: list[tuple[Channel, Buffer]] = []
        waiting: list[tuple[Channel, bytes]] = []
        size = 0
        for (channel, data), used, answer in zip(
            came.items(), sends.used(), sends.answers(), strict=True
        ):
            if used:
                size += used
                channel.context.sends = True
            if answer and waits:
                waiting.append((channel, answer))
            elif answer:
                channel.write_frames(answer)
            if used != len(data):
                left.append((channel, memoryview(data)[used:] if used else data))
        self.frame_size = max(size // count, 1)
        if waiting:
            self._dispatching.when_durable(
                self._store.max_phy_offset, lambda status: self._answer(waiting, status)
            )
        return count, left

    def memory(self, size: int) -> bytearray:
        """See DataTaker: what `serve` is handed later, without a copy on the way."""
        return uninitialised(size) if runtime.available() else bytearray(size)

    def _answer(self, waiting: list[tuple[Channel, bytes]], status: PutMessageStatus) -> None:
        """Send answers that waited for the disk, or what they become if it took too long."""
        if status is PutMessageStatus.PUT_OK:
            for channel, answers in waiting:
                channel.write_frames(answers)
            return
        config = self._store_config
        outcome = put_outcome(
            status,
            body_max=config.max_message_size,
            delay_max_ms=config.timer_max_delay_sec * 1000,
            congest_max=config.timer_congest_num_each_slot,
        )
        for channel, answers in waiting:
            for answer in RemotingConnection().receive_data(answers):
                answer.code, answer.remark = int(outcome.code), outcome.remark
                if not outcome.stored:
                    fields = answer.fields
                    answer.ext_fields = {name: fields[name] for name in ("MSG_REGION", "TRACE_ON")}
                channel.send(answer)
