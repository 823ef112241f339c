"""Cluster: what the console knows of a cluster, and the task that asks its brokers again and again.

Brokers are asked with requests that Apache's answer too: 106, 28, 21, 201, 43, 202, 203, 328. One
round of questions is called a look. It asks little, few questions at a time, so that those of pages
do not queue behind them: the lists of topics, groups and offsets, one after the other (with more
than LISTS_LARGE topics the first two only every LISTS_PAUSE_S), both ends of at most ENDS_ASKED_MAX
topics and the members of at most GROUPS_ASKED_MAX groups, those first that were asked longest ago.
Of a broker that does not answer the last that it told stays. The pause after a look is long enough
that looks take at most BUSY_PART_MAX of the time.

A page does not wait for a look: before the first one has ended it waits for the lists that it shows
and for no others, later for PATIENCE_S at most, and then shows what is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from oberth.client.admin import Admin
from oberth.console.history import History
from oberth.errors import MQBrokerError, OberthError, RemotingError
from oberth.formats import names
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.route import MASTER_ID, ClusterInfo
from oberth.remoting.bodies.stats import TopicOffset

QUESTIONS_MAX: Final = 4
"""Requests of a page on their way to one broker: it may serve all of them in one turn of its loop,
and its senders wait for that."""

LOOK_QUESTIONS_MAX: Final = 2
"""The same of looks."""

PATIENCE_S: Final = 0.5
"""How long a page waits for a look when something is known already."""

ENDS_ASKED_MAX: Final = 200
GROUPS_ASKED_MAX: Final = 64
BUSY_PART_MAX: Final = 0.1
RATE_SPAN_S: Final = 5.0
"""Rates are taken over at least half of this, or of the pause between two looks if that is less."""

LISTS_LARGE: Final = 1000
"""In a cluster with more topics, not every look asks for the lists of topics and groups."""

LISTS_PAUSE_S: Final = 30.0
"""How old these lists may become then, unless this console has changed something."""

FRESH_S: Final = 1.0
"""A page shows lists that are at most so old, if a look does not take long."""

T = TypeVar("T")
U = TypeVar("U")
Place = tuple[str, int]
"""Broker name and queue id."""


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """One broker process."""

    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return self.broker_id == MASTER_ID


class Part(enum.IntEnum):
    """The parts of a look, in the order in which it reads them."""

    NOTHING = 0
    BROKERS = 1
    TOPICS = 2
    GROUPS = 3
    OFFSETS = 4
    WHOLE = 5


@dataclass(slots=True)
class State:
    """What the console knew of the cluster at one time.

    Attributes:
        has: how far it was read.
        at_s: of which time; 0: nothing is known yet.
        clusters: as the name servers tell.
        brokers: runtime tables; an empty one: it did not answer.
        failures: broker's address → the error it answered with.
        silent: broker's address → why it did not answer at all.
        topics: topic → broker name → settings.
        groups: group → broker name → settings.
        offsets: group → topic → offsets.
        ends: topic → both ends of its queues, for topics whose ends were asked for.
        asked_s: topic → when its ends were asked for.
        members: group → number of connected members, for groups that were asked about.
        producers: producer group → clients.
    """

    has: Part = Part.NOTHING
    at_s: float = 0.0
    clusters: ClusterInfo = field(default_factory=ClusterInfo)
    brokers: dict[BrokerKey, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    groups: dict[str, dict[str, SubscriptionGroupConfig]] = field(default_factory=dict)
    offsets: dict[str, dict[str, dict[Place, int]]] = field(default_factory=dict)
    ends: dict[str, dict[Place, TopicOffset]] = field(default_factory=dict)
    asked_s: dict[str, float] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)

    @property
    def masters(self) -> dict[str, str]:
        """Addresses of the masters by broker name."""
        return {key.name: key.address for key in self.brokers if key.is_master}

    @property
    def addresses(self) -> frozenset[str]:
        """Every broker's: nothing else is ever asked because a page's address says so."""
        return frozenset(key.address for key in self.brokers)

    def own_topics(self) -> set[str]:
        """Topics that brokers make for themselves and name after themselves and their cluster."""
        clusters = set(self.clusters.cluster_addr_table)
        return {
            *self.clusters.broker_addr_table,
            *clusters,
            *map(names.reply_topic, clusters),
        }

    def is_system_topic(self, topic: str) -> bool:
        """Whether a topic is the brokers' own, retry topics and dead letters too."""
        return (
            names.is_system_topic(topic)
            or topic in self.own_topics()
            or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        )

    def user_topics(self) -> list[str]:
        """Topics that people made, sorted."""
        own = self.own_topics()
        return sorted(
            topic
            for topic in self.topics
            if topic not in own
            and not names.is_system_topic(topic)
            and not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        )

    def user_groups(self) -> list[str]:
        """Groups that people made, also those that only have offsets, sorted."""
        return sorted(group for group in {*self.groups, *self.offsets} if not is_own_group(group))

    def lag(self, group: str) -> int | None:
        """Messages that a group has not committed; None: not all ends are known yet."""
        total = 0
        for topic, offsets in self.offsets.get(group, {}).items():
            ends = self.ends.get(topic)
            if ends is None:
                if topic in self.topics:
                    return None
                continue
            for place, offset in offsets.items():
                end = ends.get(place)
                if end is not None:
                    total += max(end.max_offset - max(offset, end.min_offset), 0)
        return total


def is_own_group(group: str) -> bool:
    """Whether a group is the brokers' own."""
    return names.is_system_group(group) or group in names.PREDEFINED_GROUPS


class _Gate:
    """Lets some questions at a time through to each broker.

    Args:
        questions_max: on their way to one broker.
    """

    def __init__(self, questions_max: int) -> None:
        self._questions_max = questions_max
        self._of: dict[str, asyncio.Semaphore] = {}

    def to(self, address: str) -> asyncio.Semaphore:
        """What a question to the broker at an address waits for."""
        found = self._of.get(address)
        if found is None:
            found = self._of[address] = asyncio.Semaphore(self._questions_max)
        return found


class Cluster:
    """Looks at a cluster, again and again.

    Lifecycle: ``async with``; the task that looks belongs to it.

    Args:
        admin: asks, as the console itself.
        interval_s: between two looks, at least.
        now_s: the time.

    Attributes:
        state: the last look; only what `with_ends` asks for is put into it later.
        history: an hour of figures.
        error: why the last look failed, or None.
    """

    def __init__(
        self, admin: Admin, interval_s: float, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self.admin = admin
        self.state = State()
        self.history = History()
        self.error: OberthError | None = None
        self._interval_s = interval_s
        self._now_s = now_s
        self._gate = _Gate(QUESTIONS_MAX)
        self._look_gate = _Gate(LOOK_QUESTIONS_MAX)
        self._looking = asyncio.Lock()
        self._cost_s = 0.0
        self._reads_since_s = 0.0
        self._stale = False
        self._lists_at_s = 0.0
        self._noted = State()
        self._first = State()
        self._first_has = {part: asyncio.Event() for part in Part}
        self._members_asked_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Task[State] | None = None

    async def __aenter__(self) -> Cluster:
        self._task = asyncio.create_task(self._run(), name="console looks at the cluster")
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in (self._task, self._current):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OberthError):
                    await task
        self._task = self._current = None

    async def _run(self) -> None:
        while True:
            await asyncio.wait({self._look_now()})
            await asyncio.sleep(max(self._interval_s, self._cost_s / BUSY_PART_MAX))

    def _look_now(self) -> asyncio.Task[State]:
        """The look that is going on, or a new one; its error is kept in `error` for the pages."""
        if self._current is None or self._current.done():
            self._current = asyncio.create_task(self.look(), name="console looks")
            self._current.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._current

    def _is_old(self) -> bool:
        age_max_s = max(FRESH_S, self._cost_s / BUSY_PART_MAX)
        return self._now_s() - self.state.at_s > age_max_s

    async def fresh(self) -> State:
        """The state, at most FRESH_S old unless a look takes long: for code that decides by it.

        Raises:
            OberthError: nothing is known, since no name server answers.
        """
        if self._stale or self._is_old():
            try:
                await self.look()
            except OberthError:
                if not self.state.at_s:
                    raise
        return self.state

    async def soon(self, part: Part) -> State:
        """The state, for a page: as `fresh` after a change, else without waiting for a look.

        Before the first look has ended it has that part, and others perhaps not yet.

        Raises:
            OberthError: nothing is known, since no name server answers.
        """
        if not self.state.at_s:
            known = asyncio.ensure_future(self._first_has[part].wait())
            look = self._look_now()
            try:
                await asyncio.wait({known, look}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                known.cancel()
            if not look.done():
                return self._first
            return look.result()
        if self._stale:
            return await self.fresh()
        if self._is_old():
            await asyncio.wait({self._look_now()}, timeout=PATIENCE_S)
        return self.state

    def silent(self) -> dict[str, str]:
        """Brokers that did not answer the last look or a page since, and why, by their labels."""
        state = self.state if self.state.at_s else self._first
        return {
            broker_label(key): state.silent[key.address]
            for key in state.brokers
            if key.address in state.silent
        }

    def forget(self) -> None:
        """Have the next page ask the brokers again, since this console has changed something."""
        self._stale = True

    async def look(self) -> State:
        """Ask now. A caller that comes during a look waits for it and gets its answer.

        Raises:
            OberthError: no name server answers.
        """
        waited_from_s = self._now_s()
        async with self._looking:
            if self.state.at_s >= waited_from_s:
                return self.state
            was_changed, self._stale = self._stale, False
            try:
                state = await self._look(was_changed=was_changed)
            except OberthError as error:
                self.error = error
                raise
            self.error = None
            # Two looks in one moment, for a page that wants to be fresh, say nothing of a rate.
            if state.at_s - self._noted.at_s >= min(self._interval_s, RATE_SPAN_S) / 2:
                self._note(self._noted, state)
                self._noted = state
            self.state = state
            self._cost_s = time.monotonic() - self._reads_since_s
            return state

    # One look

    async def _look(self, *, was_changed: bool = False) -> State:
        now_s = self._now_s()
        info = await self.admin.cluster_info()
        made = State(at_s=now_s, clusters=info)
        keys = [
            BrokerKey(name, int(broker_id), address)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        made.brokers = {key: {} for key in keys}
        if not self.state.at_s:
            self._first = made
        await asyncio.gather(*(self._runtime(made, key) for key in keys))
        # Waiting for a broker that does not answer costs nobody anything.
        self._reads_since_s = time.monotonic()
        self._reached(made, Part.BROKERS)
        masters = [key for key in keys if key.is_master]
        if self._may_keep_lists(made, was_changed=was_changed):
            made.topics, made.groups = self.state.topics, self.state.groups
            parts = [(Part.OFFSETS, self._offsets)]
        else:
            parts = [
                (Part.TOPICS, self._topics),
                (Part.GROUPS, self._groups),
                (Part.OFFSETS, self._offsets),
            ]
            self._lists_at_s = now_s
        for part, ask in parts:
            await asyncio.gather(*(ask(made, key) for key in masters))
            self._reached(made, part)
        await asyncio.gather(*(self._producers(made, key) for key in masters))
        before = self.state
        for topic, ends in before.ends.items():
            if topic in made.topics and topic not in made.ends:
                made.ends[topic] = ends
                made.asked_s[topic] = before.asked_s[topic]
        for group, count in before.members.items():
            if group in made.offsets:
                made.members.setdefault(group, count)
        await asyncio.gather(self._all_ends(made), self._all_members(made))
        self._reached(made, Part.WHOLE)
        return made

    def _may_keep_lists(self, made: State, *, was_changed: bool) -> bool:
        """Whether the lists of topics and groups of the last look will do for this one.

        With 10 000 topics these lists were 60 % of the processor time that looks cost a broker.
        """
        last = self.state
        return (
            not was_changed
            and len(last.topics) > LISTS_LARGE
            and not last.failures
            and made.at_s - self._lists_at_s < LISTS_PAUSE_S
            and last.brokers.keys() == made.brokers.keys()
        )

    def _reached(self, made: State, part: Part) -> None:
        made.has = part
        self._first_has[part].set()

    async def _answer(
        self,
        made: State,
        address: str,
        question: Callable[[], Awaitable[None]],
        gate: _Gate | None = None,
    ) -> bool:
        """Whether a broker could answer; else the error is kept."""
        async with (gate or self._look_gate).to(address):
            try:
                await question()
            except OberthError as error:
                text = str(error).splitlines()[0][:300]
                made.failures.setdefault(address, text)
                if isinstance(error, RemotingError):
                    made.silent.setdefault(address, text)
                return False
        return True

    async def _runtime(self, made: State, key: BrokerKey) -> None:
        async def question() -> None:
            made.brokers[key] = await self.admin.broker_runtime_info(key.address)

        await self._answer(made, key.address, question)

    async def _topics(self, made: State, key: BrokerKey) -> None:
        async def question() -> None:
            for topic, config in (await self.admin.all_topic_configs(key.address)).items():
                made.topics.setdefault(topic, {})[key.name] = config

        if not await self._answer(made, key.address, question):
            _keep(made.topics, self.state.topics, key.name)

    async def _groups(self, made: State, key: BrokerKey) -> None:
        async def question() -> None:
            for group, config in (await self.admin.all_groups(key.address)).items():
                made.groups.setdefault(group, {})[key.name] = config

        if not await self._answer(made, key.address, question):
            _keep(made.groups, self.state.groups, key.name)

    async def _offsets(self, made: State, key: BrokerKey) -> None:
        async def question() -> None:
            for pair, queues in (await self.admin.all_consumer_offsets(key.address)).items():
                topic, group = pair
                table = made.offsets.setdefault(group, {}).setdefault(topic, {})
                for queue_id, offset in queues.items():
                    table[key.name, queue_id] = offset

        if await self._answer(made, key.address, question):
            return
        for group, topics in self.state.offsets.items():
            for topic, places in topics.items():
                known = {place: at for place, at in places.items() if place[0] == key.name}
                if known:
                    made.offsets.setdefault(group, {}).setdefault(topic, {}).update(known)

    async def _producers(self, made: State, key: BrokerKey) -> None:
        async def question() -> None:
            try:
                found = await self.admin.all_producers(key.address)
            except MQBrokerError:
                return  # brokers before 4.9.3 do not know the question
            for group, count in found.items():
                made.producers[group] = max(made.producers.get(group, 0), count)

        await self._answer(made, key.address, question)

    async def _all_ends(self, made: State) -> None:
        own = made.own_topics()
        consumed = {topic for topics in made.offsets.values() for topic in topics}
        wanted = sorted(
            (topic for topic in made.topics if topic not in own),
            key=lambda topic: (made.asked_s.get(topic, 0.0), topic not in consumed, topic),
        )
        gate = self._look_gate
        await asyncio.gather(*(self._ask_ends(made, t, gate) for t in wanted[:ENDS_ASKED_MAX]))

    async def with_ends(self, made: State, topics: list[str]) -> None:
        """Ask for the ends of those topics whose ends in a state are older than FRESH_S."""
        old = [name for name in topics if self._now_s() - made.asked_s.get(name, 0.0) > FRESH_S]
        await asyncio.gather(*(self._ask_ends(made, name, self._gate) for name in old))

    async def _ask_ends(self, made: State, topic: str, gate: _Gate) -> None:
        found: dict[Place, TopicOffset] = {}
        masters = made.masters

        async def one(broker: str, address: str) -> None:
            async def question() -> None:
                try:
                    stats = await self.admin.broker_topic_stats(address, topic)
                except MQBrokerError:
                    return  # deleted meanwhile
                for queue, ends in stats.offset_table.items():
                    found[broker, queue.queue_id] = ends

            if not await self._answer(made, address, question, gate):
                known = self.state.ends.get(topic, {})
                found.update({place: each for place, each in known.items() if place[0] == broker})

        await asyncio.gather(
            *(one(name, masters[name]) for name in made.topics.get(topic, {}) if name in masters)
        )
        made.ends[topic] = found
        made.asked_s[topic] = self._now_s()

    async def _all_members(self, made: State) -> None:
        groups = sorted(made.offsets, key=lambda group: self._members_asked_s.get(group, 0.0))
        groups = groups[:GROUPS_ASKED_MAX]
        for group in groups:
            self._members_asked_s[group] = made.at_s
        if len(self._members_asked_s) > 2 * len(made.offsets) + GROUPS_ASKED_MAX:
            self._members_asked_s = {
                group: at for group, at in self._members_asked_s.items() if group in made.offsets
            }
        await asyncio.gather(*(self._ask_members(made, g, self._look_gate) for g in groups))

    async def with_members(self, made: State, groups: list[str]) -> None:
        """Have the members of these groups counted in a state, if that is not fresh."""
        for_s = self._members_asked_s
        old = [name for name in groups if self._now_s() - for_s.get(name, 0.0) > FRESH_S]
        for name in old:
            for_s[name] = self._now_s()
        await asyncio.gather(*(self._ask_members(made, name, self._gate) for name in old))

    async def _ask_members(self, made: State, group: str, gate: _Gate) -> None:
        most = 0

        async def one(address: str) -> None:
            async def question() -> None:
                nonlocal most
                try:
                    answer = await self.admin.consumer_connection(group, address)
                except MQBrokerError:
                    return  # nobody of the group is connected there
                most = max(most, len(answer.connection_set))

            await self._answer(made, address, question, gate)

        await asyncio.gather(*(one(address) for address in made.masters.values()))
        made.members[group] = most

    # The history

    def _note(self, before: State, now: State) -> None:
        history, at_s = self.history, now.at_s
        span_s = at_s - before.at_s
        for key, table in now.brokers.items():
            if not table:
                continue
            was = before.brokers.get(key, {})
            if was and span_s > 0 and was.get("bootTimestamp") == table.get("bootTimestamp"):
                label = broker_label(key)
                for kind, name in (("in", "msgPutTotalTodayNow"), ("out", "msgGetTotalTodayNow")):
                    grown = (number_of(table, name) or 0) - (number_of(was, name) or 0)
                    if grown >= 0:  # Apache's counts begin anew at midnight
                        history.add((kind, label), at_s, grown / span_s)
            disk = number_of(table, "commitLogDiskRatio")
            if disk is not None:
                history.add(("disk", broker_label(key)), at_s, disk)
        for topic, asked_s in now.asked_s.items():
            was_s = before.asked_s.get(topic)
            if was_s is None or asked_s <= was_s:
                continue
            grown = sum(
                max(ends.max_offset - old.max_offset, 0)
                for place, ends in now.ends[topic].items()
                if (old := before.ends.get(topic, {}).get(place)) is not None
            )
            if grown or history.has(("topic", topic)):
                history.add(("topic", topic), asked_s, grown / (asked_s - was_s))
        for group in now.offsets:
            lag = now.lag(group)
            if lag is not None and (lag or history.has(("lag", group))):
                history.add(("lag", group), at_s, lag)


async def some_at_a_time(ask: Callable[[T], Awaitable[U]], about: Iterable[T]) -> list[U]:
    """What a page hears about each, QUESTIONS_MAX questions on their way at a time."""
    gate = asyncio.Semaphore(QUESTIONS_MAX)

    async def one(each: T) -> U:
        async with gate:
            return await ask(each)

    return await asyncio.gather(*map(one, about))


def _keep(table: dict[str, dict[str, T]], known: dict[str, dict[str, T]], broker: str) -> None:
    """Take what a broker told before into a table by name and broker."""
    for name, by_broker in known.items():
        if broker in by_broker:
            table.setdefault(name, {})[broker] = by_broker[broker]


def broker_label(key: BrokerKey) -> str:
    """A broker as plots name it."""
    return key.name if key.is_master else f"{key.name} #{key.broker_id}"


def number_of(table: dict[str, str], name: str) -> float | None:
    """A figure of a runtime table; the first of several, None if there is none that is finite."""
    words = table.get(name, "").split()
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
