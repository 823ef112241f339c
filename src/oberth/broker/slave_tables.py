"""SlaveTables: what a slave takes over of its master's tables, beside the log.

Topics and groups are replaced where their versions differ, offsets are merged. RocketMQ:
SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from oberth.broker.tasks import in_turns
from oberth.errors import ConfigFormatError, FormatError, RemotingError
from oberth.formats.config_files import MessageRequestModes, TimerMetrics
from oberth.formats.config_json import encode_config, parse_config
from oberth.formats.data_version import DataVersion
from oberth.formats.java_numbers import java_long
from oberth.formats.java_properties import parse_properties
from oberth.formats.json_reader import parse_tables
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request

if TYPE_CHECKING:
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.schedule_service import ScheduleService
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.timer_checkpoint import TimerCheckpoint
    from oberth.remoting.aio.client import RemotingClient

_T = TypeVar("_T")

PAGE_SIZE: Final = 500
"""Topics or groups that a slave asks for at once."""
PAGES_MAX: Final = 20_000
"""Answers after which a slave gives up: its master's tables change too fast, or it does not end."""
REQUEST_TIMEOUT_S: Final = 3.0
LOOP_SIZE_MAX: Final = 32 * 1024
"""Bytes of a table that are decoded on the loop, in a millisecond or two."""
ENTRY_SIZE: Final = 200
"""Bytes of a topic or a group in its master's answer."""


class SlaveTables:
    """The tables of one slave, and how they are taken from a master. On the broker's loop.

    Args:
        tables_replaced: called with topics that are new, others or gone, None if none was replaced,
            and whether groups were replaced.

    Attributes:
        take_modes: called with a master's answer to GET_ALL_MESSAGE_REQUEST_MODE.
        timers: takes what the master says of its timer, if this broker has one.
    """

    def __init__(
        self,
        *,
        client: RemotingClient,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        schedule: ScheduleService,
        tables_replaced: Callable[[list[str] | None, bool], None],
    ) -> None:
        self._client = client
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._tables_replaced = tables_replaced
        self.take_modes: Callable[[MessageRequestModes], Awaitable[None]] = _pass_over
        self.timers: TimerFollower | None = None

    async def take_all(self, address: str, *, with_offsets: bool = True) -> None:
        """Fetches a master's tables now.

        Topics and groups are asked for in pages and replaced where their versions differ, so what
        the master has deleted goes here too, offsets of deleted groups and topics with it. Offsets
        are merged: the master's win.

        Args:
            address: the master's.
            with_offsets: take 43 and 45, too. They say what the master has delivered or handed
                out; a slave that has them without that part of the log, as one that its master
                does not know yet, passes it by if it becomes the master.

        Raises:
            RemotingError: the master cannot be asked.
            ConfigFormatError: it answered something else.
        """
        topics = await self._synchronize_topics(address)
        if with_offsets:
            await self._merge_offsets(address, only_newer=False)
            await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, self._schedule.read)
        are_groups_new = await self._synchronize_groups(address)
        modes = await self._ask(
            address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, MessageRequestModes.from_json
        )
        if modes is not None:
            await self.take_modes(modes)
        if self.timers is not None:
            metrics = await self._ask(
                address, RequestCode.GET_TIMER_METRICS, TimerMetrics.from_json
            )
            if metrics is not None:
                self.timers.take_metrics(metrics)
        self._tables_replaced(topics, are_groups_new)

    async def take_back(self, address: str) -> None:
        """Takes what a slave has done in this master's place: 45, 43 and 60, while it is away.

        Delay offsets only go forward. Consumer offsets are taken if they are not older than one's
        own. What the timer there has delivered is not delivered again.

        Raises:
            RemotingError: the slave cannot be asked.
            ConfigFormatError: it answered something else.
        """
        await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, self._schedule.catch_up)
        await self._merge_offsets(address, only_newer=True)
        timers = self.timers
        if timers is not None:
            response = await self._client.invoke(
                address, create_request(RequestCode.GET_TIMER_CHECK_POINT), REQUEST_TIMEOUT_S
            )
            if response.code == ResponseCode.SUCCESS and response.body:
                timers.pass_by(decode_timer_checkpoint(response.body_bytes()))
        self._tables_replaced(None, False)

    async def _merge_offsets(self, address: str, *, only_newer: bool) -> None:
        file = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, self._offsets.decoded)
        if file is not None and not (only_newer and file.data_version < self._offsets.data_version):
            await in_turns(self._offsets.merge_in_slices(file))

    async def _take(self, address: str, code: RequestCode, read: Callable[[Any], None]) -> None:
        """Has one of the master's small tables read, if it gives it."""
        document = await self._ask(address, code, _as_it_is)
        if document is not None:
            read(document)

    async def _ask(self, address: str, code: RequestCode, decode: Callable[[Any], _T]) -> _T | None:
        """One of the master's tables, if it gives it; decoded in a thread where it is large."""
        response = await self._client.invoke(address, create_request(code), REQUEST_TIMEOUT_S)
        if response.code != ResponseCode.SUCCESS or not response.body:
            return None
        data, name = response.body_bytes(), f"{address} {code.name}"
        return await _beside(len(data), lambda: decode(parse_tables(data, name=name)))

    async def _synchronize_topics(self, address: str) -> list[str] | None:
        """Topics and static mappings; topics that are new, others or gone, None if none was."""
        document = await self._fetch(address, _TOPIC_PAGES)
        if document is None:
            return None
        changed = None
        if _version(document) != self._topics.data_version:
            size = len(document[_TOPIC_PAGES.table]) * ENTRY_SIZE
            table = await _beside(size, lambda: self._topics.decoded(document))
            replaced = self._topics.replace_all(*table)
            changed = [*replaced.changed, *replaced.gone]
            if replaced.gone:
                await in_turns(self._offsets.delete_in_slices(topics=replaced.gone))
        if self._static_topics.differs(document):
            mappings = await asyncio.to_thread(self._static_topics.decoded, document)
            self._static_topics.replace_all(*mappings)
        return changed

    async def _synchronize_groups(self, address: str) -> bool:
        """Groups; whether they were replaced."""
        document = await self._fetch(address, _GROUP_PAGES)
        if document is None or _version(document) == self._groups.data_version:
            return False
        size = len(document[_GROUP_PAGES.table]) * ENTRY_SIZE
        table = await _beside(size, lambda: self._groups.decoded(document))
        gone = self._groups.replace_all(*table).gone
        if gone:
            await in_turns(self._offsets.delete_in_slices(groups=gone))
        return True

    async def _fetch(self, address: str, pages: _Pages) -> dict[str, Any] | None:
        """One of the master's tables, page by page; None if it does not give it.

        Brokers before 5.4 know no pages and answer with everything. A table that changes between
        two pages is asked for anew.

        Raises:
            RemotingError: the master cannot be asked.
            ConfigFormatError: it answered something else, or goes on for ever.
        """
        whole: dict[str, Any] | None = None
        have = 0
        for _ in range(PAGES_MAX):
            request = create_request(pages.code)
            request.ext_fields = {pages.start: str(have), pages.limit: str(PAGE_SIZE)}
            if whole is not None and "dataVersion" in whole:
                request.ext_fields["dataVersion"] = encode_config(
                    whole["dataVersion"], pretty=False
                ).decode()
            response = await self._client.invoke(address, request, REQUEST_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS or not response.body:
                return None
            name = f"{address} {pages.code.name}"
            page = parse_config(response.body_bytes(), name=name)
            table = page.get(pages.table) if isinstance(page, dict) else None
            if not isinstance(table, dict):
                raise ConfigFormatError(f"{name}: no {pages.table}")
            total = response.fields.get(pages.total, "")
            if whole is not None and page.get("dataVersion") != whole.get("dataVersion"):
                whole, have = None, 0
                continue
            if whole is None:
                whole = page
            else:
                for key, value in page.items():
                    if isinstance(value, dict) and isinstance(whole.get(key), dict):
                        whole[key].update(value)
            have = len(whole[pages.table])
            if have >= java_long(total, 0) or not table:
                return whole
        raise ConfigFormatError(f"{address} {pages.code.name}: no end after {PAGES_MAX} pages")

    async def segment_size(self, address: str) -> int | None:
        """Bytes of a segment of the master's log; None if it does not say."""
        try:
            response = await self._client.invoke(
                address, create_request(RequestCode.GET_BROKER_CONFIG), REQUEST_TIMEOUT_S
            )
        except RemotingError:
            return None
        if response.code != ResponseCode.SUCCESS:
            return None
        try:
            settings = dict(parse_properties(response.body_bytes(), name="configuration"))
        except FormatError:
            return None
        return java_long(settings.get("mappedFileSizeCommitLog"), None)

    async def follow_timer(self, address: str) -> None:
        """Asks how far the master's timer has come.

        Raises:
            RemotingError: the master cannot be asked.
        """
        if self.timers is None:
            return
        response = await self._client.invoke(
            address, create_request(RequestCode.GET_TIMER_CHECK_POINT), REQUEST_TIMEOUT_S
        )
        if response.code == ResponseCode.SUCCESS and response.body:
            self.timers.follow(decode_timer_checkpoint(response.body_bytes()))


async def _beside(size: int, work: Callable[[], _T]) -> _T:
    """What work on so many bytes gives, done in a thread if it takes long."""
    return work() if size <= LOOP_SIZE_MAX else await asyncio.to_thread(work)


def _as_it_is(document: Any) -> Any:
    return document


async def _pass_over(_: MessageRequestModes) -> None:
    pass


class TimerFollower(Protocol):
    """A slave's timer."""

    def follow(self, master: TimerCheckpoint) -> None:
        """The master's timer has come so far."""

    def pass_by(self, other: TimerCheckpoint) -> None:
        """Another's timer has delivered so far in this one's place."""

    def take_metrics(self, metrics: TimerMetrics) -> None:
        """What the master counts."""


class _Pages(NamedTuple):
    """How a table is asked for in pages: code, fields of the header, the table's key."""

    code: RequestCode
    start: str
    limit: str
    total: str
    table: str


_TOPIC_PAGES: Final = _Pages(
    RequestCode.GET_ALL_TOPIC_CONFIG, "topicSeq", "maxTopicNum", "totalTopicNum",
    "topicConfigTable",
)  # fmt: skip
_GROUP_PAGES: Final = _Pages(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groupSeq", "maxGroupNum", "totalGroupNum",
    "subscriptionGroupTable",
)  # fmt: skip


def _version(document: Mapping[str, Any]) -> DataVersion:
    """A table's version; one that is none differs from all."""
    version = document.get("dataVersion")
    return DataVersion.from_json(version if isinstance(version, dict) else {}, "dataVersion")
