"""PlainPulls: the pulls that compiled kernels serve from the frame to the answer.

What connections bring in one turn of the loop comes here behind the plain sends. The plain pulls
that it begins with are answered together: what a group may read of a topic is looked up once for
all that ask the same, and units once for those that read near each other. All else is given back,
for the general way: other codes, filters, what is refused, held, old, long, or at a queue's end.

A pull that is served here is answered byte for byte as `PullMessageProcessor` does it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.errors import OberthError
from oberth.kernels import runtime
from oberth.kernels.arguments import PULL_BRINGS_SUBSCRIPTION, PULL_COMMITS
from oberth.kernels.pulls import PlainPulls, Right
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.headers.pull import PullMessageRequestHeader
from oberth.remoting.rendered import FOUND_PULL_END, found_pull_pieces
from oberth.store.message_reader import COPIED_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.plain_sends import PlainSendService
    from oberth.broker.stats import StatsItem
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.command import Buffer
    from oberth.store.message_store import MessageStore

ASKS_KEPT_MAX: Final = 4096
"""What pulls ask that is kept parsed, some 2 KiB each at most; peers choose it."""

LOOK_UP_S: Final = 0.005
"""How long a turn of the loop looks up what pulls ask for; the rest goes the general way, which
puts off what it has no time for."""

LOOK_UPS_MIN: Final = 16
"""Stretches that are looked up however late it is: most turns have no more."""

LAG_MIN: Final = 2_000
"""Messages that a reader of a queue is behind its end before the senders of a turn give way."""

SENDS_MIN: Final = 64
"""Sends that a turn takes in any case: with fewer its own cost is felt."""

SHARED_TURNS: Final = 8
"""Turns in which groups are counted: an answered reader comes back in some later one."""

SENDS_OWED_MAX: Final = 4
"""Turns without a send at most, behind one with more than its share."""

DEFERRED_BYTES_MAX: Final = 1 << 20
"""Bytes of sends that wait for the next turn: their connections are read on meanwhile."""


class Ask(NamedTuple):
    """What pulls have in common that ask the same of a topic.

    Attributes:
        code: of the request.
        header: of the pull; what it says of queue, offsets and sizes is no one's.
    """

    code: int
    header: PullMessageRequestHeader

    @classmethod
    def of_key(cls, key: bytes) -> Ask:
        """What a key of `PlainPulls.asked` stands for."""
        right = Right.of_key(key)
        header = PullMessageRequestHeader(
            consumer_group=right.group,
            topic=right.topic,
            queue_id=0,
            queue_offset=0,
            max_msg_nums=0,
            sys_flag=PULL_BRINGS_SUBSCRIPTION if right.brings_subscription else 0,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=right.subscription,
            sub_version=int(right.sub_version),
            expression_type=right.expression_type,
        )
        return cls(right.code, header)


class Allowed(NamedTuple):
    """What is read without a filter by those who ask the same.

    Attributes:
        read_queue_nums: queue ids 0 to below this may be read.
        suggested: the broker id that they are told to pull from next.
        group_sys_flag: of the group.
        topic_sys_flag: of the topic.
        counts: messages and bytes that the group got of the topic.
    """

    read_queue_nums: int
    suggested: int
    group_sys_flag: int
    topic_sys_flag: int
    counts: Callable[[], tuple[StatsItem, StatsItem]]


class PlainPullService:
    """Serves plain pulls. All methods belong to the loop's thread.

    Args:
        store_config: of the store.
        store: where messages are.
        offsets: of the groups.
        gets: counts messages.
        now_ms: the time.
        dispatch_now: makes all that was appended readable.
        read_ahead: is told topic, queue id and offset of who reads.
        allows: what the general way allows those who ask something; None: it has to look itself.
        refuses: whether the general way has to look at all pulls now.

    Attributes:
        served: pulls so far.
        lagging: by group and topic, how far these turns have brought those that read what lies far
            before the end of a queue, in messages; who shares turns clears it. None: nobody does.
    """

    def __init__(
        self,
        *,
        store_config: MessageStoreConfig,
        store: MessageStore,
        offsets: ConsumerOffsets,
        gets: StatsItem,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        read_ahead: Callable[[str, int, int], None],
        allows: Callable[[Ask], Allowed | None],
        refuses: Callable[[], bool],
    ) -> None:
        self._store_config = store_config
        self._store = store
        self._offsets = offsets
        self._gets = gets
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._read_ahead = read_ahead
        self._allows = allows
        self._refuses = refuses
        self._pulls: PlainPulls | None = None
        self._asks: dict[bytes, Ask] = {}
        self.served = 0
        self.lagging: dict[tuple[str, str], int] | None = None

    def config_changed(self, changes: Mapping[str, str]) -> None:
        """Limits may have changed."""
        del changes
        self._pulls = None

    def note_progress(self, group: str, topic: str, count: int, left: int) -> None:
        """A group was brought some messages further; so many are left to its queue's end."""
        if self.lagging is not None and left > LAG_MIN:
            key = group, topic
            if len(self.lagging) >= ASKS_KEPT_MAX:
                self.lagging.clear()
            self.lagging[key] = self.lagging.get(key, 0) + count

    def serve(self, came: list[tuple[Channel, Buffer]]) -> tuple[int, list[tuple[Channel, Buffer]]]:
        """Serve the plain pulls of one turn of the loop.

        Args:
            came: by channel what is left of its bytes, from the beginning of a frame on.

        Returns:
            How many were served, and what is left of each channel's bytes.
        """
        pulls = self._pulls
        if pulls is None:
            pulls = self._make()
        if pulls is None or self._refuses() or not pulls.read([data for _, data in came]):
            return 0, came
        self._dispatch_now()
        since_s = time.monotonic()
        asks = [self._ask(key) for key in pulls.asked()]
        given = self._give(pulls, asks, since_s + LOOK_UP_S)
        served = pulls.answer(self._store.reader.young_from) if given else 0
        if not served:
            return 0, came
        self._store.reader.note_found(served, time.monotonic() - since_s)
        self._note(pulls, asks, given)
        self.served += served
        left: list[tuple[Channel, Buffer]] = []
        for (channel, data), used, answer in zip(came, pulls.used(), pulls.answers(), strict=True):
            if answer:
                channel.write_frames(answer)
            if used != len(data):
                left.append((channel, memoryview(data)[used:] if used else data))
        return served, left

    def _make(self) -> PlainPulls | None:
        config = self._store_config
        count_max = config.max_transfer_count_on_message_in_memory
        if count_max <= 0 or not runtime.available():
            return None
        self._pulls = pulls = PlainPulls(
            frame_max=FRAME_SIZE_MAX,
            count_max=count_max,
            bytes_max=min(config.max_transfer_bytes_on_message_in_memory, COPIED_BYTES_MAX),
            end=FOUND_PULL_END,
        )
        return pulls

    def _ask(self, key: bytes) -> Ask:
        asks = self._asks
        ask = asks.get(key)
        if ask is None:
            if len(asks) >= ASKS_KEPT_MAX:
                asks.clear()
            ask = asks[key] = Ask.of_key(key)
        return ask

    def _give(
        self, pulls: PlainPulls, asks: list[Ask], until_s: float
    ) -> dict[int, tuple[int, int, Allowed, int]]:
        """Have answered what may be, as far as the time goes.

        Returns:
            By stretch: the number of who asks, queue id, right, and where the queue ends.
        """
        given: dict[int, tuple[int, int, Allowed, int]] = {}
        allowed: dict[int, Allowed | None] = {}
        for number, by, queue_id, low, high in pulls.stretches():
            if number >= LOOK_UPS_MIN and time.monotonic() >= until_s:
                break
            ask = asks[by]
            header = ask.header
            group, topic = header.consumer_group, header.topic
            try:
                found = self._store.plain_stretch(topic, queue_id, low, high)
            except (OberthError, OSError):
                continue  # each of them hears of it from the general way
            # Most pulls that find nothing wait: they cost no more than this.
            if found is None or self._offsets.has_reset(group, topic, queue_id):
                continue
            if by not in allowed:
                allowed[by] = self._allows(ask)
            right = allowed[by]
            if right is None or not 0 <= queue_id < right.read_queue_nums:
                continue
            start, middle = found_pull_pieces(
                found.min_offset,
                found.max_offset,
                suggest_which_broker_id=right.suggested,
                group_sys_flag=right.group_sys_flag,
                topic_sys_flag=right.topic_sys_flag,
            )
            pulls.give(number, *found[:5], start, middle)
            self._read_ahead(topic, queue_id, low)
            given[number] = by, queue_id, right, found.max_offset
        return given

    def _note(
        self,
        pulls: PlainPulls,
        asks: list[Ask],
        given: Mapping[int, tuple[int, int, Allowed, int]],
    ) -> None:
        """Count what was handed out, and keep how far groups have come."""
        for number, (_, _, right, _) in given.items():
            count, messages, size = pulls.served(number)
            if count:
                nums, sizes = right.counts()
                nums.add(messages, count)
                sizes.add(size, count)
                self._gets.add(messages, count)
        offsets, now_ms = self._offsets, self._now_ms()
        reached: dict[tuple[int, int], int] = {}
        left: dict[int, int] = {}
        for number, sys_flag, commit_offset, next_offset in pulls.answered():
            by, queue_id, _, end = given[number]
            if sys_flag & PULL_COMMITS and commit_offset >= 0:
                header = asks[by].header
                group, topic = header.consumer_group, header.topic
                offsets.commit(group, topic, queue_id, commit_offset, now_ms)
            reached[by, queue_id] = next_offset
            left[number] = end - next_offset
        for (by, queue_id), next_offset in reached.items():
            header = asks[by].header
            offsets.commit_pull(header.consumer_group, header.topic, queue_id, next_offset)
        for number, count in left.items():
            header = asks[given[number][0]].header
            messages = pulls.served(number)[1]
            self.note_progress(header.consumer_group, header.topic, messages, count)


class PlainRequests:
    """What compiled kernels serve, sends before pulls. A DataTaker.

    Args:
        sends: serves sends.
        pulls: serves pulls.
    """

    def __init__(self, sends: PlainSendService, pulls: PlainPullService) -> None:
        self._sends = sends
        self._pulls = pulls
        self._room = self._share = self._turns = 0
        self._lagging = pulls.lagging = {}
        self.memory = sends.memory

    def defer(self, came: dict[Channel, bytes | bytearray]) -> dict[Channel, bytes | bytearray]:
        """Takes out of what came the sends that wait for the next turn, if readers lag.

        A reader has one request for each queue on its way and gets 32 messages for it, so how fast
        it is follows from how many turns there are, and senders make them long. So while groups
        read what lies far behind, a turn takes about as many sends as the turns before handed
        messages to that group of them which got fewest. Nobody waits for readers: the loop has as
        much to do as before, in shorter turns.
        """
        self._turns += 1
        if self._turns >= SHARED_TURNS:
            self._share = -(-min(self._lagging.values(), default=0) // self._turns)
            self._turns = 0
            self._lagging.clear()
        share = self._share
        later: dict[Channel, bytes | bytearray] = {}
        if not share:
            self._room = 0
            return later
        share = max(share, SENDS_MIN) * self._sends.frame_size
        self._room = max(min(self._room, 0), -SENDS_OWED_MAX * share) + share
        deferred = 0
        for channel, data in came.items():
            if channel.context is None or not channel.context.sends:
                continue
            size = len(data)
            if self._room <= 0 and deferred + size <= DEFERRED_BYTES_MAX:
                later[channel] = data
                deferred += size
            else:
                self._room -= size
        for channel in later:
            del came[channel]
        return later

    def serve(
        self, came: Mapping[Channel, bytes | bytearray]
    ) -> tuple[int, list[tuple[Channel, Buffer]]]:
        """See DataTaker."""
        sent, left = self._sends.serve(came)
        if not left:
            return sent, left
        pulled, left = self._pulls.serve(left)
        return sent + pulled, left
