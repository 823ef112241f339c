"""LiteService: lite topics of a broker: who takes which, what is handed out, what has expired.

    200071 --> LiteSubscriptions --.
    an arrival, an ack, a time -----+--> LiteEvents: a list per client --> pop by client
    200070, nothing there --> waits by client id, woken by the next entry of its list

A lite topic is one light queue. Whatever of it is handed out blocks it for the group until it is
acknowledged or its invisible time has ended, as with ordered POP; unlike there, nothing of this is
kept in a file, so that after a restart what was not acknowledged is handed out again at once. There
is no retry topic: the same place of the queue is handed out again.

Everything runs on the broker's loop. RocketMQ: LiteEventDispatcher, LiteSubscriptionRegistryImpl,
AbstractLiteLifecycleManager, PopLiteLongPollingService.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Final

from oberth.broker.attributes import (
    EXCLUSIVE,
    LITE,
    LITE_BIND_TOPIC,
    LITE_EVENTS_MAX,
    LITE_EXPIRATION,
    LITE_RESET_EXCLUSIVE,
    LITE_RESET_UNSUBSCRIBE,
    LITE_SUB_MODEL,
    LITE_WILDCARD,
    MESSAGE_TYPE,
)
from oberth.broker.held_requests import HoldLimits, InTurns
from oberth.broker.lite.events import ClientEvents, LiteEvents
from oberth.broker.lite.sharding import broker_of, writable_queues
from oberth.broker.lite.subscriptions import LiteSubscription, LiteSubscriptions, wildcard_queue
from oberth.broker.pop.order_infos import OrderInfos
from oberth.broker.pop.polling import PopPolling, Waiting
from oberth.errors import OberthError, RemotingError
from oberth.formats import names
from oberth.formats.java_numbers import java_long
from oberth.remoting.bodies.lite import OffsetOption
from oberth.remoting.code import RequestCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.pop import NotifyUnsubscribeLiteRequestHeader

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.dispatching import ArrivalListener
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.topic_config import TopicConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

ROUTES_PERIOD_MS: Final = 30_000
WILDCARD_TURN_MS: Final = 5_000
"""A client that joins a wildcard group leads to a full turn this much later."""

TURN_SPREAD_MS: Final = 15_000
"""Full turns of clients that do not come are spread by up to so much."""

TURN_WAKE_EVERY: Final = 10
CLIENTS_TRIED_MAX: Final = 32
"""Clients of a group whose lists one message of a lite topic looks at."""

LOOKS_A_TURN: Final = 500
"""Lite topics that full turns, and what follows a client that is gone, look at before the loop
turns."""

QUEUES_A_TURN: Final = 200
"""Lite topics that one turn of the loop adds to what a client takes, or removes from it."""

NAME_LENGTH_MAX: Final = 255
"""Characters of a client id, or of the name of a parent topic, that is kept."""

EXPIRED_AT_ONCE: Final = 50
"""Expired lite topics that one turn of the loop deletes, each with its file."""

_DONE: Final = object()
_TURN: Final = "turn"
_TURN_OF_GROUP: Final = "turn of a group"
_GONE: Final = "gone"
_EXPIRY: Final = "expiry"
_SCAN: Final = "scan"
_SILENT: Final = "silent clients"
_UNLOCKS: Final = "unlocks"
_FROM_BEGINNING: Final = 1
_FROM_END: Final = 2


def pieces(queues: Iterable[str]) -> list[list[str]]:
    """Queues, as many as one turn of the loop adds or removes."""
    listed = list(queues)
    return [listed[first : first + QUEUES_A_TURN] for first in range(0, len(listed), QUEUES_A_TURN)]


class QuotaExceededError(OberthError):
    """More lite subscriptions than the broker may have."""


class IllegalSubscriptionError(OberthError):
    """A group that may not take lite topics, or not in this way."""


class LiteService:
    """Lite topics of a broker.

    Args:
        broker: whose.
        resume: called with requests that are to be tried again.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        peers: PeerBrokers,
        is_slave: bool,
        hold_limits: HoldLimits,
        now_ms: Callable[[], int],
        arrival_listeners: list[ArrivalListener],
        start_task: StartTask,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._peers = peers
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._arrival_listeners = arrival_listeners
        self._start_task = start_task
        self.subscriptions = LiteSubscriptions()
        self.events = LiteEvents()
        self.orders = OrderInfos()
        self.waiting = PopPolling(config.pop_polling_size, config.max_pop_polling_size, hold_limits)
        self._channels: dict[str, Channel] = {}  # by client id
        self._clients_on: dict[Channel, dict[str, None]] = {}  # the same ones
        self._woken: InTurns[Waiting]
        self._works: dict[tuple[str, str], Iterator[None]] = {}  # see _work
        self._work_in_turns = InTurns(self._go_on)
        self._listens = False
        self._routes: dict[str, list[str]] = {}  # parent → the broker of each writable queue
        started_at_ms = now_ms()
        self._next_routes_ms = started_at_ms
        self._next_scan_ms = started_at_ms + config.lite_event_check_interval_ms
        self._next_silent_ms = started_at_ms + config.lite_subscription_check_interval_ms
        # Whatever a topic says, nothing expires so soon after a start: clients must come back.
        self._next_expiry_ms = started_at_ms + config.min_lite_ttl_ms

    def start(self, resume: Callable[[Waiting], None]) -> None:
        """Requests that are woken go to ``resume``. To be called before the first one waits."""
        self._woken = InTurns(resume)

    # What may look at very many lite topics

    @property
    def is_at_work(self) -> bool:
        """Whether lite topics are yet to be looked at."""
        return bool(self._works)

    def _work(self, key: tuple[str, str], steps: Iterator[None], *, at_once: bool = True) -> None:
        """Go through what looks at one lite topic a step: some now, the rest in turns of the loop.

        What is under way under the same key goes on first. Unless ``at_once`` all of it has later
        turns, which those share that very many works begin for.
        """
        under_way = self._works.get(key)
        if under_way is not None:
            self._works[key] = chain(under_way, steps)
            return
        self._works[key] = steps
        if at_once:
            self._go_on(key)
        else:
            self._work_in_turns.soon([key])

    def _go_on(self, key: tuple[str, str]) -> None:
        steps = self._works.get(key)
        if steps is None:
            return  # the broker stops
        try:
            has_more = next(islice(steps, LOOKS_A_TURN - 1, None), _DONE) is not _DONE
        except BaseException:
            del self._works[key]
            raise
        if has_more:
            self._work_in_turns.soon([key])
        else:
            del self._works[key]

    # Topics and groups

    def is_parent(self, topic: str) -> bool:
        """Whether a topic is a parent of lite topics."""
        topic_config = self._topics.get(topic)
        return topic_config is not None and topic_config.attributes.get(MESSAGE_TYPE) == LITE

    def attribute(self, group: str, name: str) -> str | None:
        """An attribute of a group."""
        config = self._groups.get(group)
        return None if config is None else config.attributes.get(name)

    def parent_of(self, group: str) -> str | None:
        """The parent topic that a group is bound to."""
        return self.attribute(group, LITE_BIND_TOPIC)

    def takes_all(self, group: str) -> bool:
        """Whether a group's clients take every lite topic of its parent."""
        return self.attribute(group, LITE_WILDCARD) is not None

    def _is_true(self, group: str, name: str) -> bool:
        return (self.attribute(group, name) or "").lower() == "true"

    @staticmethod
    def minutes_to_live(topic_config: TopicConfig) -> int:
        """After how many minutes without a message a parent's lite topics expire; -1: never."""
        text = topic_config.attributes.get(LITE_EXPIRATION, "")
        return java_long(text, -1)

    def parents(self) -> dict[str, int]:
        """All parent topics and after how many minutes their lite topics expire, -1: never."""
        return {
            str(each.topic_name): self.minutes_to_live(each)
            for each in self._topics
            if each.attributes.get(MESSAGE_TYPE) == LITE
        }

    def groups_of_parents(self) -> dict[str, list[str]]:
        """Parent topic → the groups that are bound to it."""
        found: dict[str, list[str]] = {}
        for each in self._groups:
            parent = each.attributes.get(LITE_BIND_TOPIC)
            if parent is not None:
                found.setdefault(parent, []).append(str(each.group_name))
        return found

    def queues(self, parent: str) -> list[str]:
        """The light queues of a parent's lite topics. Looks at every topic of the store."""
        start = names.lite_queue(parent, "")
        return [each for each in self._store.topics() if each.startswith(start)]

    def end(self, queue: str) -> int:
        """The offset behind a lite topic's last message; 0 if there never was one."""
        return max(self._store.max_offset_in_queue(queue, names.LMQ_QUEUE_ID), 0)

    # Sharding

    def is_here(self, parent: str, lite_topic: str) -> bool:
        """Whether producers send a lite topic to this broker; yes while no route is known."""
        found = broker_of(lite_topic, self._routes.get(parent, ()))
        return found is None or found == self._config.broker_name

    async def learn_route(self, parent: str) -> None:
        """Ask a name server which queues a parent topic has."""
        try:
            route = await self._peers.route(parent)
        except RemotingError as error:
            _LOG.debug("route of %s: %s", parent, error)
            return
        if route is not None:
            self._routes[parent] = writable_queues(route)

    async def _learn_routes(self) -> None:
        parents = self.parents()
        for parent in list(self._routes):
            if parent not in parents:
                del self._routes[parent]
        for parent in parents:
            await self.learn_route(parent)

    def _may_take(self, parent: str, queue: str) -> bool:
        lite = names.split_lite_queue(queue)
        if lite is None or not names.is_stored_topic(queue):
            return False
        return self.is_here(parent, lite[1]) or self.end(queue) > 0

    # Subscriptions

    def _check_group(self, group: str) -> None:
        config = self._groups.find(group)
        if config is None or not config.consume_enable:
            raise IllegalSubscriptionError("Consumer group is not allowed to consume.")

    def _check_client(self, client_id: str, group: str, topic: str) -> None:
        """Who may use one group has no say about the clients of another, whose ids he may know."""
        for what, text in (("client id", client_id), ("topic", topic)):
            if len(text) > NAME_LENGTH_MAX:
                raise IllegalSubscriptionError(
                    f"a {what} of {len(text)} characters, allowed {NAME_LENGTH_MAX}"
                )
        known = self.subscriptions.get(client_id)
        if known is not None and known.group != group:
            raise IllegalSubscriptionError(f"client {client_id} is of another group than {group}")

    def _check_room(self, client_id: str, more: int) -> None:
        limit = self._config.max_lite_subscription_count
        held = self.subscriptions
        if (more > 0 and len(held) + more > limit) or (
            held.get(client_id) is None and held.client_count >= limit
        ):
            raise QuotaExceededError(f"lite subscription quota exceeded {limit}")

    def subscribe(
        self,
        channel: Channel,
        client_id: str,
        group: str,
        topic: str,
        queues: Sequence[str],
        option: OffsetOption | None,
    ) -> None:
        """PARTIAL_ADD: a client takes more lite topics.

        Raises:
            QuotaExceededError: the broker has as many subscriptions as it may.
            IllegalSubscriptionError: the group may not.
        """
        self._check_group(group)
        self._check_client(client_id, group, topic)
        self._check_room(client_id, 1)
        if self.takes_all(group):
            raise IllegalSubscriptionError(
                "subscribe lite operation is not supported for this group"
            )
        mine = self.subscriptions.of_client(client_id, group, topic, self._now_ms())
        self._came_on(channel, client_id)
        is_exclusive = self.attribute(group, LITE_SUB_MODEL) == EXCLUSIVE
        for queue in queues:
            if not self._may_take(topic, queue):
                continue
            if is_exclusive:
                self._take_from_others(client_id, mine.group, queue)
            self._reset_offset(group, queue, option)
            self._add(client_id, mine.group, queue)

    def _came_on(self, channel: Channel, client_id: str) -> None:
        if self._channels.get(client_id) is not channel:
            self._left_channel(client_id)
            self._channels[client_id] = channel
            self._clients_on.setdefault(channel, {})[client_id] = None

    def _left_channel(self, client_id: str) -> None:
        channel = self._channels.pop(client_id, None)
        if channel is not None:
            clients = self._clients_on[channel]
            del clients[client_id]
            if not clients:
                del self._clients_on[channel]

    def unsubscribe(self, client_id: str, group: str, topic: str, queues: Sequence[str]) -> None:
        """PARTIAL_REMOVE: a client gives lite topics up.

        Raises:
            IllegalSubscriptionError: it is another group's client.
        """
        self._check_client(client_id, group, topic)
        if self.subscriptions.get(client_id) is None:
            return
        mine = self.subscriptions.of_client(client_id, group, topic, self._now_ms())
        begins_anew = self._is_true(group, LITE_RESET_UNSUBSCRIBE)
        for queue in queues:
            if self.subscriptions.discard(client_id, queue) and begins_anew:
                self._reset_offset(mine.group, queue, _BEGINNING)
        self._listen_as_needed()

    def subscribe_to_exactly(
        self, channel: Channel, client_id: str, group: str, topic: str, queues: Sequence[str]
    ) -> Generator[None, None, None]:
        """COMPLETE_ADD: all that a client takes; it says so every now and then. In slices.

        Raises:
            QuotaExceededError: the broker would have more subscriptions than it may.
            IllegalSubscriptionError: the group may not.
        """
        self._check_group(group)
        self._check_client(client_id, group, topic)
        if self.takes_all(group):
            wanted = [wildcard_queue(topic, group)]
        else:
            wanted = []
            for number, piece in enumerate(pieces(queues)):
                if number:
                    yield
                wanted += [queue for queue in piece if self._may_take(topic, queue)]
        known = self.subscriptions.get(client_id)
        self._check_room(client_id, len(wanted) - (0 if known is None else len(known.queues)))
        for piece in pieces(() if known is None else known.queues.keys() - wanted):
            for queue in piece:
                self.subscriptions.discard(client_id, queue)
            yield
        for number, piece in enumerate(pieces(wanted) or [[]]):
            if number:
                yield
                self._check_client(client_id, group, topic)
            known = self.subscriptions.get(client_id)
            self._check_room(client_id, len(set(piece).difference(known.queues if known else ())))
            mine = self.subscriptions.of_client(client_id, group, topic, self._now_ms())
            self._came_on(channel, client_id)
            for queue in piece:
                self._add(client_id, mine.group, queue)
        self._listen_as_needed()

    def unsubscribe_client(self, client_id: str, group: str, topic: str) -> None:
        """COMPLETE_REMOVE: a client takes nothing any more.

        Raises:
            IllegalSubscriptionError: it is another group's client.
        """
        self._check_client(client_id, group, topic)
        self.forget_client(client_id)

    def forget_client(self, client_id: str) -> None:
        """A client is gone; what was noted for it goes to others."""
        self._work((_GONE, client_id), self._forgotten(client_id))

    def _forgotten(self, client_id: str) -> Iterator[None]:
        """Forget a client now; what is to be done about its lite topics."""
        self._left_channel(client_id)
        gone = self.subscriptions.remove_client(client_id)
        self._listen_as_needed()
        return self._leaving(client_id, gone, self.events.remove(client_id))

    def _leaving(
        self, client_id: str, gone: LiteSubscription | None, events: ClientEvents | None
    ) -> Iterator[None]:
        if gone is not None:
            yield from self.subscriptions.release(client_id, gone)
            if events is not None:
                yield from self._hand_over(client_id, events)

    def _hand_over(self, client_id: str, events: ClientEvents) -> Iterator[None]:
        for queue in events.queues:
            self.dispatch(queue, events.group, avoided=client_id)
            yield

    def _add(self, client_id: str, group: str, queue: str) -> None:
        if not self.subscriptions.add(client_id, queue):
            return
        self._listen_as_needed()
        if self.takes_all(group):
            at_ms = self._now_ms() + WILDCARD_TURN_MS
            self.events.schedule_turn(f"${group}$", group, at_ms)
        elif self.end(queue) > 0:
            self.dispatch(queue, group)

    def _take_from_others(self, client_id: str, group: str, queue: str) -> None:
        for other, its_group in self.subscriptions.takers(queue).items():
            if its_group != group:
                continue
            if other != client_id:
                self._tell_unsubscribed(other, group, queue)
            self.subscriptions.discard(other, queue)
            left = self.subscriptions.get(other)
            if other != client_id and left is not None and not left.queues:
                self.subscriptions.remove_client(other)
                self._left_channel(other)
            if other != client_id and self._is_true(group, LITE_RESET_EXCLUSIVE):
                self._reset_offset(group, queue, _BEGINNING)

    def _tell_unsubscribed(self, client_id: str, group: str, queue: str) -> None:
        """200073: a client is to forget that it takes a lite topic."""
        channel = self._channels.get(client_id)
        lite = names.split_lite_queue(queue)
        if channel is None or lite is None:
            return
        header = NotifyUnsubscribeLiteRequestHeader(
            lite_topic=lite[1], consumer_group=group, client_id=client_id
        )
        try:
            channel.invoke_oneway(create_request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header))
        except RemotingError as error:
            _LOG.warning("client %s could not be told that it lost %s: %s", client_id, queue, error)

    def _reset_offset(self, group: str, queue: str, option: OffsetOption | None) -> None:
        if option is None:
            return
        offsets = self._offsets
        current = offsets.query(group, queue, names.LMQ_QUEUE_ID)
        target: int | None = None
        if option.type == "POLICY":
            if option.value == _FROM_BEGINNING:
                target = 0
            elif option.value == _FROM_END:
                target = self.end(queue)
        elif option.type == "OFFSET":
            target = max(option.value, 0)
        elif option.type == "TAIL_N" and current >= 0:
            target = max(current - option.value, 0)
        if target is None or target == current:
            return
        offsets.assign_reset(group, queue, names.LMQ_QUEUE_ID, target, self._now_ms())
        self.orders.clear(queue, group, names.LMQ_QUEUE_ID)

    def on_reset(self, group: str, topic: str, queue_id: int) -> None:
        if topic.startswith(names.LITE_PREFIX):
            self.orders.clear(topic, group, queue_id)
            self.dispatch(topic, group)

    # Events

    def _listen_as_needed(self) -> None:
        """Arrivals are only looked at while somebody takes lite topics."""
        wanted = len(self.subscriptions) > 0
        if wanted == self._listens:
            return
        self._listens = wanted
        if wanted:
            self._arrival_listeners.append(self._on_arrival)
        else:
            self._arrival_listeners.remove(self._on_arrival)

    def _on_arrival(
        self, topic: str, queue_id: int, max_offset: int, tags_code: int | None, raw: bytes
    ) -> None:
        if topic.startswith(names.LITE_PREFIX):
            self.dispatch(topic)

    def dispatch(self, queue: str, group: str | None = None, *, avoided: str | None = None) -> None:
        """A queue has something: one client of each group (or of one) shall come for it."""
        lite = names.split_lite_queue(queue)
        takers = self.subscriptions.takers_by_group(lite[0] if lite else None, queue)
        for each, clients in takers.items():
            if group is None or group == each:
                self._give_out(queue, each, clients, avoided)

    def _give_out(self, queue: str, group: str, clients: list[str], avoided: str | None) -> bool:
        """Put a queue into the list of one of these clients; False if all of them are full.

        Of very many some are tried; each that was full looks at all that it takes when it is not.
        """
        now_ms = self._now_ms()
        limit = self._events_max(group)
        takes_all = self.takes_all(group)
        start = random.randrange(len(clients))
        last_resort = []
        for number in range(min(len(clients), CLIENTS_TRIED_MAX)):
            client_id = clients[(start + number) % len(clients)]
            if client_id == avoided:
                last_resort.append(client_id)
            elif self.events.is_avoided(client_id, now_ms):
                if not takes_all:
                    last_resort.append(client_id)
            elif self._offer(client_id, group, queue, limit, now_ms, turn=not takes_all):
                return True
        for client_id in last_resort:
            if self._offer(client_id, group, queue, limit, now_ms, turn=not takes_all):
                return True
        if takes_all:
            delay_ms = self._config.lite_event_full_dispatch_delay_wildcard_ms
            self.events.schedule_turn(f"${group}$", group, now_ms + delay_ms)
        return False

    def _offer(
        self, client_id: str, group: str, queue: str, limit: int, now_ms: int, *, turn: bool
    ) -> bool:
        if self.events.offer(client_id, group, queue, limit, now_ms):
            self._wake_client(client_id)
            return True
        if turn:
            self._schedule_turn(client_id, group, now_ms)
        return False

    def _events_max(self, group: str) -> int:
        text = self.attribute(group, LITE_EVENTS_MAX) or ""
        return java_long(text, self._config.max_client_event_count)

    def _schedule_turn(self, client_id: str, group: str, now_ms: int) -> None:
        delay_ms = self._config.lite_event_full_dispatch_delay_ms
        if self.events.is_avoided(client_id, now_ms):
            delay_ms += random.randrange(TURN_SPREAD_MS)
        self.events.schedule_turn(client_id, group, now_ms + delay_ms)

    def full_turn(self, client_id: str, group: str, *, at_once: bool = True) -> None:
        """Look at everything that a client takes, and note what has something."""
        key = (_TURN, client_id)
        if key in self._works:
            self._schedule_turn(client_id, group, self._now_ms())
        else:
            self._work(key, self._turn(client_id, group), at_once=at_once)

    def full_turn_of_group(self, group: str, *, at_once: bool = True) -> None:
        """The same for all clients of a group."""
        key = (_TURN_OF_GROUP, group)
        if key not in self._works:
            takes_all = self.takes_all(group)
            turns = self._turn_of_all(group) if takes_all else self._turns_of(group)
            self._work(key, turns, at_once=at_once)
        elif self.takes_all(group):
            self.events.schedule_turn(f"${group}$", group, self._now_ms() + WILDCARD_TURN_MS)

    def _turn(self, client_id: str, group: str) -> Iterator[None]:
        subscription = self.subscriptions.get(client_id)
        if subscription is None or not subscription.queues:
            return
        now_ms = self._now_ms()
        events = self.events.of_client(client_id, group, now_ms)
        limit = self._events_max(group)
        if events.is_stuck(now_ms) or not events.is_low(limit):
            self._schedule_turn(client_id, group, now_ms)
            return
        count = 0
        for queue in list(subscription.queues):
            yield
            if queue not in subscription.queues or not self._has_more(group, queue):
                continue
            if self.subscriptions.get(client_id) is not subscription:
                return  # it left meanwhile
            now_ms = self._now_ms()
            if not self.events.offer(client_id, group, queue, limit, now_ms):
                self._schedule_turn(client_id, group, now_ms)
                break
            if count % TURN_WAKE_EVERY == 0:
                self._wake_client(client_id)
            count += 1
        self._wake_client(client_id)

    def _turns_of(self, group: str) -> Iterator[None]:
        for client_id in self.subscriptions.clients_of_group(group):
            yield
            yield from self._turn(client_id, group)

    def _turn_of_all(self, group: str) -> Iterator[None]:
        parent = self.parent_of(group)
        if parent is None:
            return
        start = names.lite_queue(parent, "")
        for queue in self._store.topics():
            yield
            if not queue.startswith(start) or not self._has_more(group, queue):
                continue
            clients = self.subscriptions.takers_of_all(parent, group)
            if not clients or not self._give_out(queue, group, clients, None):
                return

    def _has_more(self, group: str, queue: str) -> bool:
        offset = self._offsets.query(group, queue, names.LMQ_QUEUE_ID)
        return offset < self.end(queue)

    def events_of(self, client_id: str) -> Iterator[str]:
        """The queues noted for a client, each taken out of its list; none twice."""
        now_ms = self._now_ms()
        self.events.access(client_id, now_ms)
        seen: set[str] = set()
        while (queue := self.events.take(client_id, now_ms)) is not None:
            if queue not in seen:
                seen.add(queue)
                yield queue

    def _wake_client(self, client_id: str) -> None:
        """One request of a client is tried again."""
        waiting = self.waiting.take(client_id, "", names.LMQ_QUEUE_ID)
        if waiting is None:
            return
        self._woken.soon([waiting])  # after what is going on now

    def look_again(self, client_id: str) -> None:
        """One request of a client did not look at all that is noted: it is tried again."""
        events = self.events.get(client_id)
        if events is not None and events.queues:
            self._wake_client(client_id)

    def serve_woken(self) -> None:
        """Serve at once what was woken, and look at nothing more: the broker stops."""
        self._works.clear()
        self._woken.serve_all()

    # Expiry

    def delete_lite_topics(self, parent: str, queues: Sequence[str]) -> int:
        """Forget lite topics: their queues, how far groups are, who takes them. How many were.

        The store is yet to settle it.
        """
        for group in self.groups_of_parents().get(parent, ()):
            for queue in queues:
                self._offsets.delete(group, queue)
                self.orders.forget(queue, group)
        for queue in queues:
            self._offsets.delete(names.TOOLS_CONSUMER_GROUP, queue)
        self.subscriptions.remove_queues(queues)
        self._listen_as_needed()
        return self._store.remove_topics(queues)

    def _expire(self, now_ms: int) -> None:
        """Look for lite topics to which nothing was sent for long, and delete them."""
        if (_EXPIRY, "") not in self._works:
            self._work((_EXPIRY, ""), self._expiring(now_ms))

    def _expiring(self, now_ms: int) -> Iterator[None]:
        parents = {parent: minutes for parent, minutes in self.parents().items() if minutes > 0}
        expired: dict[str, list[str]] = {parent: [] for parent in parents}
        deleted = 0
        for queue in self._store.topics() if parents else ():
            yield
            lite = names.split_lite_queue(queue)
            if lite is None or lite[0] not in parents:
                continue
            parent, found = lite[0], expired[lite[0]]
            if self._is_expired(queue, parents[parent], now_ms):
                found.append(queue)
            if len(found) == EXPIRED_AT_ONCE:
                deleted += self._delete_expired(parent, found, parents[parent], now_ms)
                yield from repeat(None, LOOKS_A_TURN)  # the loop turns
        for parent, found in expired.items():
            deleted += self._delete_expired(parent, found, parents[parent], now_ms)
        if deleted:
            self._start_task(asyncio.to_thread(self._store.settle_removal))

    def _is_expired(self, queue: str, minutes: int, now_ms: int) -> bool:
        last = self._store.message_store_timestamp(queue, names.LMQ_QUEUE_ID, self.end(queue) - 1)
        # No time: its last message has left the log.
        idle_ms = now_ms - last if last > 0 else now_ms
        return idle_ms >= self._config.min_lite_ttl_ms and idle_ms > minutes * 60_000

    def _delete_expired(self, parent: str, found: list[str], minutes: int, now_ms: int) -> int:
        # Those that got a message since they were looked at stay.
        queues = [queue for queue in found if self._is_expired(queue, minutes, now_ms)]
        found.clear()
        if not queues:
            return 0
        _LOG.info("%d lite topics of %s have expired", len(queues), parent)
        return self.delete_lite_topics(parent, queues)

    # Time

    def connection_closed(self, channel: Channel) -> None:
        """Nothing waits there any more; its clients may come back over another."""
        self.waiting.connection_closed(channel)
        for client_id in self._clients_on.pop(channel, ()):
            del self._channels[client_id]

    def on_time(self, now_ms: int) -> None:
        """Called about every 100 ms."""
        if self.orders.has_unlocked(now_ms) and (_UNLOCKS, "") not in self._works:
            self._work((_UNLOCKS, ""), self._unlocking(now_ms))
        self._woken.soon(self.waiting.on_time(now_ms))
        config = self._config
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + config.lite_event_check_interval_ms
            self._scan(now_ms)
        if now_ms >= self._next_silent_ms:
            self._next_silent_ms = now_ms + config.lite_subscription_check_interval_ms
            before_ms = now_ms - config.lite_subscription_check_timeout_ms
            if (_SILENT, "") not in self._works:
                self._work((_SILENT, ""), self._forgetting_silent(before_ms))
        if now_ms >= self._next_routes_ms:
            self._next_routes_ms = now_ms + ROUTES_PERIOD_MS
            if config.namesrv_addresses and self.parents():
                self._start_task(self._learn_routes())
        if now_ms >= self._next_expiry_ms and not self._is_slave:
            self._next_expiry_ms = now_ms + config.lite_ttl_check_interval_ms
            self._expire(now_ms)
            self.orders.keep(
                lambda topic, group: topic in self._topics and self._groups.get(group) is not None,
                now_ms,
            )

    def _scan(self, now_ms: int) -> None:
        stuck, due = self.events.take_stuck(now_ms), self.events.due_turns(now_ms)
        if stuck or due:
            self._work((_SCAN, ""), self._scanning(stuck, due))

    def _scanning(
        self, stuck: list[tuple[str, ClientEvents]], due: list[tuple[str, str]]
    ) -> Iterator[None]:
        for client_id, events in stuck:
            yield
            yield from self._hand_over(client_id, events)
        for key, group in due:
            yield
            if self.takes_all(group):
                self.full_turn_of_group(group, at_once=False)
            else:
                self.full_turn(key, group, at_once=False)

    def _unlocking(self, now_ms: int) -> Iterator[None]:
        """What was handed out may be visible again by now.

        One at a time: most may have been handed out again, and what is not looked at stays noted.
        """
        while self.orders.has_unlocked(now_ms):
            yield
            for queue, group, _ in self.orders.unlocked(now_ms, 1):
                if self._has_more(group, queue):
                    self.dispatch(queue, group)

    def _forgetting_silent(self, before_ms: int) -> Iterator[None]:
        for client_id in self.subscriptions.silent_since(before_ms):
            yield
            mine = self.subscriptions.get(client_id)
            if mine is not None and mine.update_ms < before_ms:  # it may be back meanwhile
                yield from self._forgotten(client_id)


_BEGINNING: Final = OffsetOption(type="POLICY", value=_FROM_BEGINNING)
