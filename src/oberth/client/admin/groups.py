"""Administration of consumer groups: settings, members and progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oberth.client.admin.base import QUERY_TIMEOUT_S, Silent, ask_each, change_each
from oberth.client.admin.topics import TopicAdmin
from oberth.errors import MQBrokerError, MQClientError, OptionError, RemotingError
from oberth.formats import names
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.subscription_group import SubscriptionGroupConfig, SubscriptionGroups
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import (
    ConsumerConnection,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
)
from oberth.remoting.bodies.offsets import ResetOffsetBody
from oberth.remoting.bodies.pop import SetMessageRequestModeRequestBody
from oberth.remoting.bodies.route import (
    GroupList,
)
from oberth.remoting.bodies.running_info import (
    RUNNING_INFO_SIZE_MAX,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from oberth.remoting.bodies.stats import (
    ConsumeStats,
    QueryConsumeTimeSpanBody,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.group import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
)

CONSUME_STATS_TIMEOUT_S: Final = 15.0
LATEST: Final = -1
"""As a timestamp of ``reset_offsets``: the end of each queue."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue.

    Attributes:
        broker_offset: the queue's end.
        consumer_offset: what the group has committed.
        pull_offset: what it has been given.
        last_timestamp: when the last message that it consumed was stored, ms.
        client_id: who has the queue, if that is known.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int
    client_id: str = ""

    @property
    def lag(self) -> int:
        """Messages that are not committed."""
        return self.broker_offset - self.consumer_offset


@dataclass(slots=True)
class GroupProgress:
    """How far a group is.

    Attributes:
        queues: sorted by topic, broker and number.
        tps: messages that it gets in a second.
    """

    group: str
    queues: list[QueueProgress] = field(default_factory=list)
    tps: float = 0.0

    @property
    def lag(self) -> int:
        """Messages that are not committed, in all queues."""
        return sum(each.lag for each in self.queues)


class GroupAdmin(TopicAdmin):
    """Groups; their retry and dead letter topics are deleted with them."""

    async def _masters_of_group(self, group: str, silent: Silent | None = None) -> dict[str, str]:
        """The masters of a group's retry topic, which is made when its first member connects.

        Before that: the masters that have settings for the group.

        Raises:
            MQBrokerError: no broker has either (code 17).
        """
        topic = names.retry_topic(group)
        if await self._client().fetch_route(topic, self._timeout_s) is not None:
            return await self._masters_of(topic)
        masters = await self.masters()
        tables = await ask_each(masters, lambda _, addr: self.all_groups(addr), silent)
        found = {name: masters[name] for name, table in tables.items() if group in table}
        if not found and silent:
            raise next(iter(silent.values()))
        if not found:
            raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, f"no broker knows group {group!r}")
        return found

    async def _ask_one_of(
        self,
        masters: Mapping[str, str],
        code: RequestCode,
        header: CommandHeader,
        timeout_s: float | None = None,
    ) -> bytes:
        """The answer of the first master that gives one.

        Raises:
            MQClientError: there is no master.
            RemotingError: none answers.
        """
        silent: RemotingError | None = None
        for addr in masters.values():
            try:
                return await self._ask(addr, code, header, timeout_s=timeout_s)
            except RemotingError as error:
                silent = error
        raise silent or MQClientError("none of the brokers that could tell has a master now")

    async def create_group(
        self,
        config: SubscriptionGroupConfig | str,
        *,
        cluster: str | None = None,
        broker_addr: str | None = None,
        silent: Silent | None = None,
    ) -> None:
        """Make a consumer group, or change it; a name stands for the default settings.

        RocketMQ: createAndUpdateSubscriptionGroupConfig.

        Args:
            config: its settings, or its name.
            cluster: on all masters of it; None: of all clusters.
            broker_addr: on this broker only.
            silent: gets the error of each broker that does not answer; None: it is raised.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(group_name=config)
        names.check_group(config.group_name or "")
        body = config.encode(pretty=False)
        masters = {"": broker_addr} if broker_addr else await self.masters(cluster)

        async def make(_: str, addr: str) -> None:
            await self._ask(addr, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

        await change_each(masters, make, silent)

    async def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        remove_offset: bool = True,
        silent: Silent | None = None,
    ) -> None:
        """Delete a group, its retry topic and its dead letters.

        Args:
            group: its name.
            cluster: only on its masters.
            remove_offset: also how far it has come.
            silent: gets the error of each broker that does not answer, by its name, and that keeps
                the group; None: such an error is raised.
        """
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=remove_offset)

        async def remove(_: str, addr: str) -> None:
            await self._ask(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

        await change_each(await self.masters(cluster), remove, silent)
        for topic in (names.retry_topic(group), names.dlq_topic(group)):
            if await self._client().fetch_route(topic, self._timeout_s) is not None:
                await self.delete_topic(topic, cluster, silent=silent)

    async def group_config(self, addr: str, group: str) -> SubscriptionGroupConfig:
        """A group's settings on a broker (from 5.0 on)."""
        body = await self._ask(
            addr,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            GetSubscriptionGroupConfigRequestHeader(group=group),
        )
        return SubscriptionGroupConfig.decode(body)

    async def all_groups(self, addr: str) -> dict[str, SubscriptionGroupConfig]:
        """The settings of all groups of a broker."""
        body = await self._ask(addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroups.decode(body).subscription_group_table

    async def group_list(
        self, cluster: str | None = None, *, silent: Silent | None = None
    ) -> list[str]:
        """All groups of all masters, sorted.

        Args:
            cluster: only of its masters.
            silent: gets the error of each broker that does not answer; None: it is raised.
        """
        masters = await self.masters(cluster)
        tables = await ask_each(masters, lambda _, addr: self.all_groups(addr), silent)
        return sorted({group for table in tables.values() for group in table})

    async def topic_consumed_by(self, topic: str, *, silent: Silent | None = None) -> list[str]:
        """The groups that consume a topic. RocketMQ: queryTopicConsumeByWho.

        Args:
            topic: its name.
            silent: gets the error of each broker that does not answer; None: it is raised.
        """
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)

        async def ask(_: str, addr: str) -> list[str]:
            body = await self._ask(addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return list(GroupList.decode(body).group_list)

        answers = await ask_each(await self._masters_of(topic), ask, silent)
        return sorted({group for answer in answers.values() for group in answer})

    async def consumer_connection(
        self, group: str, broker_addr: str | None = None
    ) -> ConsumerConnection:
        """The members of a group that are connected. RocketMQ: examineConsumerConnectionInfo.

        Raises:
            MQBrokerError: none is (code 206).
        """
        masters = {"": broker_addr} if broker_addr else await self._masters_of_group(group, {})
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        body = await self._ask_one_of(masters, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(body)

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The members of a producer group, as a broker of a topic knows them."""
        masters = await self._masters_of(topic)
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        body = await self._ask_one_of(masters, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return ProducerConnection.decode(body)

    async def consumer_running_info(
        self, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """What a member tells about itself."""
        masters = await self._masters_of_group(group, {})
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=jstack
        )
        body = await self._ask_one_of(
            masters, RequestCode.GET_CONSUMER_RUNNING_INFO, header, QUERY_TIMEOUT_S
        )
        return await self._answers.read(
            ConsumerRunningInfo.decode_answer, body, RUNNING_INFO_SIZE_MAX
        )

    async def consume_message_directly(
        self, group: str, client_id: str, offset_msg_id: str, topic: str
    ) -> ConsumeMessageDirectlyResult:
        """Have a member consume one message now."""
        place = decode_offset_message_id(offset_msg_id)
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_msg_id, topic=topic
        )
        body = await self._ask(
            place.broker_address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_s=QUERY_TIMEOUT_S,
        )
        return await self._answers.read(ConsumeMessageDirectlyResult.decode_answer, body)

    async def set_message_request_mode(
        self, topic: str, group: str, mode: str, pop_share_queue_num: int = 0
    ) -> None:
        """Have a group get a topic's messages by PULL or POP (brokers from 5.0 on)."""
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=pop_share_queue_num
        )
        for addr in (await self._masters_of(topic)).values():
            await self._ask(addr, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body.encode())

    async def consume_stats(
        self, group: str, topic: str | None = None, *, silent: Silent | None = None
    ) -> GroupProgress:
        """How far a group is, in one topic or in all. RocketMQ: examineConsumeStats.

        Args:
            group: its name.
            topic: None: all that it consumes.
            silent: gets the error of each broker that does not answer, by its name, and its queues
                are left out; None: such an error is raised.

        Raises:
            MQBrokerError: there is no such topic, or no broker knows the group (code 17).
        """
        masters = await (
            self._masters_of(topic) if topic else self._masters_of_group(group, silent)
        )
        return await self.consume_stats_at(masters, group, topic, silent=silent)

    async def consume_stats_at(
        self,
        masters: Mapping[str, str],
        group: str,
        topic: str | None = None,
        *,
        silent: Silent | None = None,
    ) -> GroupProgress:
        """How far a group is by what these brokers know; empty if none knows it.

        Args:
            masters: address by broker name.
            group: its name.
            topic: None: all that it consumes.
            silent: as of `consume_stats`.
        """
        progress = GroupProgress(group)
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)

        async def ask(_: str, addr: str) -> ConsumeStats:
            body = await self._ask(
                addr,
                RequestCode.GET_CONSUME_STATS,
                header,
                timeout_s=max(CONSUME_STATS_TIMEOUT_S, self._timeout_s),
            )
            return ConsumeStats.decode(body, FRAME_SIZE_MAX)

        for stats in (await ask_each(masters, ask, silent)).values():
            progress.tps += stats.consume_tps
            progress.queues += [
                QueueProgress(
                    queue,
                    found.broker_offset,
                    found.consumer_offset,
                    found.pull_offset,
                    found.last_timestamp,
                )
                for queue, found in stats.offset_table.items()
            ]
        progress.queues.sort(key=lambda each: each.queue)
        return progress

    async def consume_time_span(self, topic: str, group: str) -> QueryConsumeTimeSpanBody:
        """Store times of each queue's ends and of where a group is."""
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        made = QueryConsumeTimeSpanBody()
        for addr in (await self._masters_of(topic)).values():
            body = await self._ask(addr, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            made.consume_time_span_set += QueryConsumeTimeSpanBody.decode(
                body
            ).consume_time_span_set
        return made

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        queue: MessageQueue | None = None,
        offset: int | None = None,
        silent: Silent | None = None,
    ) -> dict[MessageQueue, int]:
        """Have a group go on at a time, its members too. RocketMQ: resetOffsetByTimestamp.

        Args:
            group: whose offsets.
            topic: of the queues.
            timestamp_ms: where to; LATEST: the end.
            force: also forwards, not only backwards.
            queue: this queue only.
            offset: of that queue, instead of a time.
            silent: gets the error of each broker that does not answer, by its name, and the
                group's offsets stay there; None: such an error is raised.

        Returns:
            The new offsets.

        Raises:
            OptionError: a negative time that is not LATEST: brokers take each for the end.
        """
        if timestamp_ms < 0 and timestamp_ms != LATEST:
            raise OptionError(f"timestamp_ms {timestamp_ms}, allowed 0 and more, and LATEST")
        header = ResetOffsetRequestHeader(
            group=group,
            topic=topic,
            timestamp=timestamp_ms,
            is_force=force,
            queue_id=-1 if queue is None else queue.queue_id,
            offset=offset,
        )
        made: dict[MessageQueue, int] = {}
        offline = []

        async def move(broker_name: str, addr: str) -> None:
            try:
                body = await self._ask(addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except MQBrokerError as error:
                if error.response_code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                offline.append(broker_name)
            else:
                made.update(ResetOffsetBody.decode(body, FRAME_SIZE_MAX).offset_table)

        masters = {
            name: addr
            for name, addr in (await self._masters_of(topic)).items()
            if queue is None or queue.broker_name == name
        }
        await change_each(masters, move, silent)
        for each in await self.topic_queues(topic) if offline else []:
            # A 4.9 broker resets through the group's members, and there are none: commit for them.
            if each.broker_name in offline and queue in (None, each):
                made[each] = await self._reset_offline(group, each, timestamp_ms, offset)
        return made

    async def _reset_offline(
        self, group: str, queue: MessageQueue, timestamp_ms: int, offset: int | None
    ) -> int:
        if offset is None:
            offset = (
                await self.max_offset(queue)
                if timestamp_ms < 0
                else await self.search_offset(queue, timestamp_ms)
            )
        await self.update_consume_offset(group, queue, offset)
        return offset

    async def clone_group_offsets(
        self, source: str, target: str, topic: str, *, offline: bool = True
    ) -> None:
        """Give a group the offsets of another."""
        header = CloneGroupOffsetRequestHeader(
            src_group=source, dest_group=target, topic=topic, offline=offline
        )
        for addr in (await self._masters_of(topic)).values():
            await self._ask(addr, RequestCode.CLONE_GROUP_OFFSET, header)

    async def lock_queues(
        self, addr: str, group: str, client_id: str, queues: list[MessageQueue]
    ) -> set[MessageQueue]:
        """Take or renew locks at a broker; those of ``queues`` that the client holds then."""
        body = LockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=queues)
        answer = await self._ask(addr, RequestCode.LOCK_BATCH_MQ, None, body.encode())
        return set(LockBatchResponseBody.decode(answer).lock_ok_mq_set)

    async def unlock_queues(
        self, addr: str, group: str, client_id: str, queues: list[MessageQueue]
    ) -> None:
        """Give locks back at a broker; those of other clients stay."""
        body = LockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=queues)
        await self._ask(addr, RequestCode.UNLOCK_BATCH_MQ, None, body.encode())
