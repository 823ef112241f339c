"""The brokers of a live query as planning sees them: topics, queues, offsets, times, groups.

Runs on the driver. Everything is asked through the client; the calls here wait for the answers.
What a broker tells may be old as soon as it is told, so ends only ever grow; a broker that does not
answer is not taken for one that lost its messages.

Sizes are not known: those of short ranges are guessed, of others the first messages are fetched and
the rest is taken to be like them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from oberth.client.admin import Admin
from oberth.client.blocking_face import LOOP
from oberth.client.instance import BROKER_NOT_EXIST, ClientInstance
from oberth.client.pulling import (
    SUBSCRIPTION_FLAG,
    PullStatus,
    PullTemplate,
    max_offset,
    min_offset,
    pull_raw,
    search_offset,
    update_consumer_offset,
)
from oberth.client.route import subscribe_queues
from oberth.client.subscriptions import build_subscription_data
from oberth.errors import (
    FormatError,
    MQBrokerError,
    MQClientError,
    NotFoundError,
    OberthError,
    RemotingError,
)
from oberth.formats.config_files import split_offset_key
from oberth.formats.config_json import parse_config
from oberth.formats.message import (
    COMMIT_LOG_OFFSET_POSITION,
    FIXED_SIZE_V1,
    QUEUE_OFFSET_POSITION,
    stated_size,
    store_timestamp_at,
)
from oberth.formats.names import is_lmq
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.headers.pull import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
)
from oberth.spark.connection import Patience, check_brokers, may_come_back
from oberth.spark.options import ReadOptions, SelectionKind
from oberth.spark.plan import BrokerView, Offsets, QueueKey, TopicFilter, by_broker

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

REQUESTS_MAX: Final = 64
"""Requests on their way at the same time."""
ROUTE_AGE_S: Final = 1.0
"""How old what is known of routes and of first offsets may be when a stream looks for new messages.
"""
PAUSE_S: Final = 0.1
"""The pauses before a question is asked again."""
PAUSE_MAX_S: Final = 1.0
SAMPLED_FROM: Final = 2_048
"""Ranges of fewer messages are taken to have RECORD_SIZE_GUESS bytes each."""
RECORD_SIZE_GUESS: Final = 1_024
SAMPLE_MESSAGES: Final = 16


@dataclass(frozen=True, slots=True)
class LiveTopics:
    """One broker as tasks know it: its name, and which topics are not plain.

    Attributes:
        broker: its name.
        where: the name servers that know it.
        batch: topics whose queues hold inner batches, or may.
        compacted: topics of which only the newest message of each key stays.
    """

    broker: str
    where: str
    batch: frozenset[str] = frozenset()
    compacted: frozenset[str] = frozenset()

    @property
    def root(self) -> str:
        """Where it is, for messages."""
        return f"broker {self.broker} of {self.where}"


@dataclass(slots=True)
class LiveBroker:
    """One broker as planning knows it."""

    broker: str
    where: str
    queues: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """Where it is, for messages."""
        return f"broker {self.broker} of {self.where}"

    def topics(self) -> Mapping[str, Any]:
        """The topics it has queues of, among those that are read."""
        return self.queues

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that may be read; none for an unknown topic."""
        return list(self.queues.get(topic, ()))


class LiveQueue:
    """One queue of a live broker."""

    def __init__(self, stores: LiveStores, key: QueueKey) -> None:
        self._stores = stores
        self._key = key

    def record_bytes(self, start: int, end: int) -> int:
        """About how many bytes of records the queue offsets [start, end) have."""
        return self._stores.average_size(self._key, start, end) * max(end - start, 0)

    def count_within(self, first: int, count: int, room: int) -> int:
        """About how many messages from an offset on have at most ``room`` bytes of records."""
        return min(room // self._stores.average_size(self._key, first, first + count), count)

    def first_at_or_after(self, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time, or None."""
        return self._stores.offset_at(self._key, timestamp_ms)

    def narrow_by_time(
        self, start: int, end: int, from_ms: int | None, to_ms: int | None
    ) -> tuple[int, int]:
        """Everything: that a queue's times are in order is not known without reading them."""
        return start, end


class LiveStores:
    """The brokers of a query, for the functions of `oberth.spark.plan`.

    Lifecycle: connects with the first question; ``close``, or ``with``, ends it. Pickles without
    its connections. One thread at a time.

    Attributes:
        lost, where, missing_is_lost: see `oberth.spark.plan.QueueStores`.
    """

    def __init__(self, options: ReadOptions) -> None:
        assert options.connection is not None
        self._options = options
        self._connection = options.connection
        self._filter = TopicFilter(options.selection)
        self.lost: list[str] = []
        self.where = f"the brokers of {self._connection.name_servers}"
        self.missing_is_lost = False
        self._admin: Admin | None = None
        self._client: ClientInstance | None = None  # what the admin uses too
        self._brokers: dict[str, LiveBroker] | None = None
        self._looked_at = 0.0
        self._bounds: dict[QueueKey, tuple[int, int]] = {}
        self._lows: dict[QueueKey, tuple[int, float]] = {}
        self._sizes: dict[tuple[QueueKey, int], int] = {}
        self._traits: dict[tuple[str, str], tuple[bool, bool]] = {}
        self._silent: set[str] = set()
        self._away: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        admin, client = self._admin, self._client
        self._admin = self._client = None
        if admin is not None:
            LOOP.call(admin.shutdown)
        if client is not None:
            LOOP.call(client.release)

    # Asking

    def _instance(self) -> ClientInstance:
        assert self._client is not None
        return self._client

    def _call(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """The answer to a question, which is asked again while nobody answers.

        Raises:
            RemotingError, MQClientError: nobody did for the option ``rocketmq.read.timeout``.
        """

        async def ask() -> _T:
            if self._client is None:
                config = self._connection.client_config()
                self._client = await ClientInstance.acquire(config)
                self._admin = Admin(config=config, timeout_ms=self._connection.timeout_ms)
                await self._admin.start()
            patience = Patience(self._connection.read_timeout_ms, PAUSE_S, PAUSE_MAX_S)
            told = ""
            while True:
                try:
                    return await make()
                except (RemotingError, MQClientError) as error:
                    if not may_come_back(error) or not await patience.wait():
                        raise
                    if str(error) != told:
                        told = str(error)
                        _LOG.warning("%s, asking again", error)

        return LOOP.call(ask)

    async def _each(self, items: Iterable[_T], work: Callable[[_T], Awaitable[None]]) -> None:
        """Does something for each item, REQUESTS_MAX at a time; the first error ends it."""
        room = asyncio.Semaphore(REQUESTS_MAX)

        async def one(item: _T) -> None:
            async with room:
                await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                for item in items:
                    group.create_task(one(item))
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__

    # Topics and queues

    @property
    def brokers(self) -> Sequence[LiveBroker]:
        """One per broker name, sorted."""
        known = self._known()
        return [known[name] for name in sorted(known)]

    def _known(self) -> dict[str, LiveBroker]:
        if self._brokers is None:
            self._look()
        assert self._brokers is not None
        return self._brokers

    def refresh(self) -> None:
        """Looks at routes again if it has been a while."""
        self._bounds.clear()
        if self._brokers is not None and time.monotonic() - self._looked_at >= ROUTE_AGE_S:
            self._look()

    def _look(self) -> None:
        routes = self._call(self._routes if self._brokers is not None else self._first_routes)
        found = dict(self._brokers or {})
        for broker in found.values():
            # What is not in a route any more may only be away: offsets stay, ends are not asked.
            broker.queues.clear()
        servers: set[str] = set()
        for route in routes.values():
            for data in route.broker_datas:
                servers |= {data.broker_name, data.cluster}
        everything = self._options.selection.kind in (SelectionKind.ALL, SelectionKind.PATTERN)
        for topic, route in routes.items():
            if everything and topic in servers:
                continue  # every broker announces a topic of its own and its cluster's name
            by_broker: dict[str, list[int]] = {}
            for queue in subscribe_queues(topic, route):
                by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
            for name, ids in by_broker.items():
                broker = found.setdefault(name, LiveBroker(name, self._connection.name_servers))
                broker.queues[topic] = tuple(sorted(ids))
        self._brokers = found
        self._looked_at = time.monotonic()

    async def _first_routes(self) -> dict[str, TopicRouteData]:
        """The routes, once the brokers that the options name are there.

        Raises:
            MQClientError: one is not.
        """
        assert self._admin is not None
        await check_brokers(self._admin, self._connection)
        routes = await self._routes()
        await check_brokers(self._admin, self._connection)  # one that left meanwhile is in no route
        return routes

    async def _routes(self) -> dict[str, TopicRouteData]:
        selection = self._options.selection
        topics = selection.topics or tuple(selection.queues)
        if selection.kind in (SelectionKind.ALL, SelectionKind.PATTERN):
            assert self._admin is not None
            topics = tuple(t for t in await self._admin.topic_list() if self._filter.allows(t))
        routes: dict[str, TopicRouteData] = {}

        async def route_of(topic: str) -> None:
            route = await self._instance().update_route(topic)
            if route is not None:
                routes[topic] = route

        await self._each(dict.fromkeys(topics), route_of)
        return routes

    def clusters(self, wanted: Collection[str] = ()) -> list[str]:
        """The names of the clusters that the name servers know.

        Args:
            wanted: one of these is waited for; without any whatever there is.

        Raises:
            MQClientError: there was none for the option ``rocketmq.read.timeout``.
        """

        async def names() -> list[str]:
            assert self._admin is not None
            found = sorted((await self._admin.cluster_info()).cluster_addr_table)
            # A cluster leaves with its last broker.
            if not found or (wanted and set(wanted).isdisjoint(found)):
                raise MQClientError(f"{self.where}: there are none", BROKER_NOT_EXIST)
            return found

        return self._call(names)

    def absent(self, brokers: Iterable[str]) -> set[str]:
        """Which of some brokers have no queue here, after a wait for them.

        They may come back for as long as the option ``rocketmq.read.timeout`` says.
        """
        patience = Patience(self._connection.read_timeout_ms, PAUSE_S, PAUSE_MAX_S)
        wanted, told = set(brokers), False
        while away := wanted - set(self._known()):
            if not told:
                told = True
                _LOG.warning("%s: waiting for %s", self.where, ", ".join(sorted(away)))
            if not LOOP.call(patience.wait):
                break
            self._look()
        return away

    def known_topics(self) -> set[str]:
        """Every topic that the name servers know."""

        async def topics() -> list[str]:
            assert self._admin is not None
            return await self._admin.topic_list()

        present = {topic for broker in self.brokers for topic in broker.queues}
        wanted = set(self._options.selection.topics or self._options.selection.queues)
        return present if wanted <= present else present | set(self._call(topics))

    def must_know_topics(self) -> bool:
        """A topic that no name server knows cannot be read."""
        return True

    def queue(self, key: QueueKey) -> LiveQueue:
        """A queue.

        Raises:
            NotFoundError: no broker of that name is known.
        """
        if key.broker not in self._known():
            raise NotFoundError(f"{key}: no broker of that name at {self.where}")
        return LiveQueue(self, key)

    def narrow_by_time(
        self, ranges: Mapping[QueueKey, tuple[int, int]], from_ms: int | None, to_ms: int | None
    ) -> dict[QueueKey, tuple[int, int]]:
        """See `QueueStores`."""
        return {k: self.queue(k).narrow_by_time(*r, from_ms, to_ms) for k, r in ranges.items()}

    def for_tasks(self) -> list[LiveTopics]:
        """The brokers as tasks know them."""
        made = []
        for broker in self.brokers:
            plain = (False, False)
            traits = {t: self._traits.get((broker.broker, t), plain) for t in broker.queues}
            made.append(
                LiveTopics(
                    broker.broker,
                    self._connection.name_servers,
                    frozenset(topic for topic, (batch, _) in traits.items() if batch),
                    frozenset(topic for topic, (_, compacted) in traits.items() if compacted),
                )
            )
        return made

    # Offsets

    def queue_ids(self, store: BrokerView, topics: Sequence[str]) -> Sequence[list[int]]:
        """See `QueueStores`; routes name the queues of all topics already."""
        return [store.queue_ids(topic) for topic in topics]

    def bounds(
        self, keys: Iterable[QueueKey], *, may_miss: bool = False
    ) -> dict[QueueKey, tuple[int, int]]:
        """The first and the next offset of every queue, asked at the brokers' masters.

        Raises:
            RemotingError: a broker does not answer, unless ``may_miss``: then its queues are left
                out.
        """
        wanted = list(keys)
        self._known()
        found: dict[QueueKey, tuple[int, int]] = {}
        silent: dict[str, OberthError] = {}

        async def ask(key: QueueKey) -> None:
            if key.broker in silent:
                return
            try:
                found[key] = await self._bounds_of(key, cached_low=may_miss)
            except (RemotingError, MQClientError) as error:
                if not may_miss or not may_come_back(error):
                    raise
                silent[key.broker] = error

        async def ask_all() -> None:
            found.clear()
            await self._each(wanted, ask)

        self._call(ask_all)
        known = self._known()
        if any(k.broker not in known or k.topic not in known[k.broker].queues for k in found):
            self._look()  # they were away when routes were looked at
        for name, error in silent.items():
            if name not in self._silent:
                _LOG.warning("broker %s does not answer, its queues wait: %s", name, error)
        self._silent = set(silent)
        if silent:
            found = {key: each for key, each in found.items() if key.broker not in silent}
        self._bounds.update(found)
        return found

    def tell_away(self, known: Iterable[QueueKey], there: Iterable[QueueKey]) -> None:
        """Warn, once, of brokers that were read from before and are at no name server now.

        `bounds` has told of those that are and do not answer.

        Args:
            known: the queues that were read from.
            there: those that there are.
        """
        away = {key.broker for key in known} - {key.broker for key in there} - self._silent
        for name in sorted(away - self._away):
            _LOG.warning(
                "broker %s, which was read from before, is not there: what is new in its queues "
                "is read when it is back",
                name,
            )
        self._away = away

    async def _bounds_of(self, key: QueueKey, *, cached_low: bool) -> tuple[int, int]:
        queue = _message_queue(key)
        instance = self._instance()
        if instance.master_address(key.broker) is None:
            await instance.update_route(key.topic)
            if instance.master_address(key.broker) is None:
                # A slave may not have everything yet, and must not be taken for the truth.
                raise _NoMasterError(f"{key}: the broker has no master at {self.where}")
        now = time.monotonic()
        low, asked_at = self._lows.get(key, (0, -ROUTE_AGE_S))
        try:
            if not cached_low or now - asked_at >= ROUTE_AGE_S:
                low = max(await min_offset(instance, queue), 0)
                self._lows[key] = (low, now)
            high = max(await max_offset(instance, queue), 0)
        except MQBrokerError as error:
            if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                return 0, 0
            raise
        return min(low, high), high

    def group_offsets(self, group: str, keys: Iterable[QueueKey]) -> Offsets:
        """Where a consumer group stands in queues; without those it has no offset of."""
        wanted = list(keys)
        found: Offsets = {}
        zeros: set[QueueKey] = set()

        async def ask(key: QueueKey) -> None:
            instance = self._instance()
            header = QueryConsumerOffsetRequestHeader(
                consumer_group=group,
                topic=key.topic,
                queue_id=key.queue,
                set_zero_if_not_found=False,
            )
            response = await instance.ask(
                await instance.require_address(_message_queue(key)),
                RequestCode.QUERY_CONSUMER_OFFSET,
                header,
                allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            if response.code == ResponseCode.SUCCESS:
                found[key] = response.header(QueryConsumerOffsetResponseHeader).offset
                if found[key] == 0:
                    zeros.add(key)

        self._call(lambda: self._each(wanted, ask))
        if zeros and self._options.group_fallback != "earliest":
            # Brokers before 5.0 say 0 for a group that they do not know; their table does not.
            for name, own in by_broker(dict.fromkeys(zeros)).items():
                known = self._offset_table(name, group)
                for key in own:
                    if known is not None and (key.topic, key.queue) not in known:
                        del found[key]
        return found

    def _offset_table(self, broker: str, group: str) -> set[tuple[str, int]] | None:
        """The queues that a group has offsets of, by the broker's own table."""

        async def fetch() -> bytes | None:
            instance = self._instance()
            addr = instance.master_address(broker)
            if addr is None:
                return None
            try:
                response = await instance.ask(addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
            except MQBrokerError:
                return None  # not everybody may ask for it
            return response.body_bytes()

        raw = self._call(fetch)
        try:
            parsed = parse_config(raw, name=f"offsets of broker {broker}") if raw else None
        except FormatError:
            return None
        table = parsed.get("offsetTable") if isinstance(parsed, dict) else None
        if not isinstance(table, dict):
            return None
        return {
            (pair[0], int(queue))
            for name, queues in table.items()
            if (pair := split_offset_key(str(name))) is not None and pair[1] == group
            if isinstance(queues, dict)
            for queue in queues
            if str(queue).isdigit()
        }

    def publish(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Gives a group the offsets of the messages that it reads next.

        A broker that does not take them is logged: the next batch brings later ones.
        """

        async def tell(item: tuple[QueueKey, int]) -> None:
            key, offset = item
            try:
                await update_consumer_offset(self._instance(), group, _message_queue(key), offset)
            except OberthError as error:
                _LOG.warning("offset %d of %s for group %s: %s", offset, key, group, error)

        self._known()
        self._call(lambda: self._each(list(offsets.items()), tell))

    # Times and sizes

    async def _first_record(self, key: QueueKey, offset: int, count: int) -> bytes:
        """The records from an offset on as they were stored; empty where there are none."""
        template = PullTemplate(
            self._options.pull_group,
            _message_queue(key),
            build_subscription_data(key.topic, "*", 0),
            max_msg_nums=count,
            with_subscription=True,
            suspend_timeout_ms=0,
        )
        answer = await pull_raw(
            self._instance(),
            template,
            offset,
            sys_flag=SUBSCRIPTION_FLAG,
            timeout_s=self._connection.timeout_ms / 1000,
        )
        return answer.records if answer.status is PullStatus.FOUND else b""

    def places(
        self, offsets: Mapping[QueueKey, int], *, may_miss: bool
    ) -> dict[QueueKey, int | None]:
        """See `QueueStores`; each takes one pull of the master."""
        found: dict[QueueKey, int | None] = {}

        async def ask(key: QueueKey) -> None:
            try:
                record = await self._first_record(key, offsets[key], 1)
            except (MQBrokerError, MQClientError, RemotingError) as error:
                if not may_come_back(error):
                    found[key] = None  # who reads the queue will hear the same
                elif not may_miss:
                    raise
                return
            found[key] = _place_of(record, key.topic, offsets[key])

        self._known()
        self._call(lambda: self._each(offsets, ask))
        return found

    async def _time_at(self, key: QueueKey, offset: int) -> int | None:
        record = await self._first_record(key, offset, 1)
        return store_timestamp_at(record, 0) if len(record) >= FIXED_SIZE_V1 else None

    def offset_at(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """The first offset stored at or after a time, or None."""
        return self.first_at_or_after({key: timestamp_ms})[key]

    def first_at_or_after(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int | None]:
        """See `QueueStores`; many questions are on their way at once."""
        found: dict[QueueKey, int | None] = {}

        async def ask(key: QueueKey) -> None:
            found[key] = await self._offset_at(key, times[key])

        self._call(lambda: self._each(times, ask))
        return found

    async def _offset_at(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """The first offset stored at or after a time, or None.

        Releases differ in what they answer between two messages and after the last one, so the
        answer is only where the search begins.
        """
        low, high = self._bounds.get(key) or await self._bounds_of(key, cached_low=False)
        if low >= high:
            return None

        async def is_early(offset: int) -> bool:
            found = await self._time_at(key, offset)
            return found is None or found < timestamp_ms

        queue = _message_queue(key)
        hint = min(max(await search_offset(self._instance(), queue, timestamp_ms), low), high)
        if (hint == high or not await is_early(hint)) and (hint == low or await is_early(hint - 1)):
            return hint if hint < high else None
        first, last = low, high
        while first < last:
            middle = (first + last) // 2
            if await is_early(middle):
                first = middle + 1
            else:
                last = middle
        return first if first < high else None

    def prepare(self, ranges: Mapping[QueueKey, tuple[int, int]]) -> None:
        """Fetches samples of the ranges and what is special about their topics."""
        wanted = [
            (key, start)
            for key, (start, end) in ranges.items()
            if self._is_sampled(start, end) and (key, start) not in self._sizes
        ]
        topics = {
            (key.broker, key.topic) for key, (start, end) in ranges.items() if start < end
        } - self._traits.keys()
        if not wanted and not topics:
            return

        async def sample(item: tuple[QueueKey, int]) -> None:
            self._sizes[item] = _average(await self._first_record(*item, SAMPLE_MESSAGES))

        async def look_up(item: tuple[str, str]) -> None:
            self._traits[item] = await self._traits_of(*item)

        async def both() -> None:
            await self._each(wanted, sample)
            await self._each(topics, look_up)

        self._call(both)

    async def _traits_of(self, broker: str, topic: str) -> tuple[bool, bool]:
        """Whether a topic's queues hold inner batches, and whether it is compacted."""
        assert self._admin is not None
        addr = self._instance().broker_address(broker)
        if addr is None:
            return True, False
        try:
            config = await self._admin.topic_config(addr, topic)
        except MQBrokerError as error:
            # Brokers before 5.0 do not know the question, and have neither. Who may not ask it
            # reads more carefully than may be needed.
            return error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False
        return config.is_batch_queue, config.is_compacted

    def _is_sampled(self, start: int, end: int) -> bool:
        least = 1 if self._options.max_bytes_per_trigger is not None else SAMPLED_FROM
        return end - start >= least

    def average_size(self, key: QueueKey, start: int, end: int) -> int:
        """Bytes of a record in a range, by its first ones."""
        if not self._is_sampled(start, end):
            return RECORD_SIZE_GUESS
        if (key, start) not in self._sizes:
            self.prepare({key: (start, end)})
        return self._sizes[key, start]


class _NoMasterError(RemotingError):
    """A broker whose master is away."""


def _message_queue(key: QueueKey) -> MessageQueue:
    return MessageQueue(topic=key.topic, broker_name=key.broker, queue_id=key.queue)


def _place_of(record: bytes, topic: str, offset: int) -> int | None:
    """Where a record that was pulled from an offset lies in its broker's log.

    A compacted topic may give a later one; a record in a light queue has its topic's offset.
    """
    if len(record) < FIXED_SIZE_V1:
        return None
    own = int.from_bytes(record[QUEUE_OFFSET_POSITION:][:8], "big", signed=True)
    if own > offset and not is_lmq(topic):
        return None
    return int.from_bytes(record[COMMIT_LOG_OFFSET_POSITION:][:8], "big", signed=True)


def _average(records: bytes) -> int:
    """The average size of records that lie one after the other."""
    at = count = 0
    while at + 4 <= len(records):
        size = stated_size(records, at)
        if size < FIXED_SIZE_V1:
            break
        at += size
        count += 1
    return max(len(records) // count, 1) if count else RECORD_SIZE_GUESS
