"""Administration of topics and their queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oberth.client.admin.base import (
    QUERY_TIMEOUT_S,
    AdminBase,
    Silent,
    ask_each,
    change_each,
    object_of,
)
from oberth.client.pulling import (
    earliest_msg_store_time,
    max_offset,
    min_offset,
    query_consumer_offset,
    search_offset,
    update_consumer_offset,
)
from oberth.client.route import ordered_queues
from oberth.errors import MQClientError
from oberth.formats import names
from oberth.formats.topic_config import READ_WRITE, TopicConfig, TopicConfigs
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import (
    TopicList,
)
from oberth.remoting.bodies.stats import (
    TopicStatsTable,
)
from oberth.remoting.code import RequestCode
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PurgeTopicRequestHeader,
)
from oberth.remoting.headers.namesrv import (
    DeleteTopicFromNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
)

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class TopicAdmin(AdminBase):
    """Topics, and what lies in their queues."""

    async def topic_list(self, cluster: str | None = None) -> list[str]:
        """All topics, or those of one cluster; sorted. RocketMQ: fetchAllTopicList."""
        if cluster is None:
            response = await self._client().ask_name_server(
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_s=self._timeout_s
            )
        else:
            response = await self._client().ask_name_server(
                RequestCode.GET_TOPICS_BY_CLUSTER,
                GetTopicsByClusterRequestHeader(cluster=cluster),
                timeout_s=self._timeout_s,
            )
        return sorted(TopicList.decode(response.body_bytes()).topic_list)

    async def create_topic(
        self,
        topic: str,
        *,
        queue_nums: int = 8,
        cluster: str | None = None,
        broker_addr: str | None = None,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int = READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        unit: bool = False,
        silent: Silent | None = None,
    ) -> None:
        """Make a topic, or change it. RocketMQ: createAndUpdateTopicConfig.

        Args:
            topic: its name.
            queue_nums: queues on each broker.
            cluster: on all masters of it; None: of all clusters.
            broker_addr: on this broker only.
            read_queue_nums: queues that consumers see, if that is another number.
            write_queue_nums: queues that producers see, if that is another number.
            perm: 4 read + 2 write.
            order: an order topic; the name servers are told its queues. Of a broker that does not
                answer they know what they knew before.
            attributes: ``message.type``, ``cleanup.policy``, ``queue.type``, …; brokers from 5.0
                on.
            unit: a topic of a unit.
            silent: gets the error of each broker that does not answer, by its name, and the others
                have the topic; None: such an error is raised.

        Raises:
            IllegalNameError: the name is not allowed.
            MQBrokerError: a broker refuses.
        """
        names.check_topic(topic)
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC_KEY,
            read_queue_nums=queue_nums if read_queue_nums is None else read_queue_nums,
            write_queue_nums=queue_nums if write_queue_nums is None else write_queue_nums,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=1 if unit else 0,
            order=order,
            attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items())
            or None,
        )
        masters = {"": broker_addr} if broker_addr else await self.masters(cluster)
        if not masters:
            raise MQClientError(f"topic {topic}: there is no broker to make it on")

        async def make(_: str, addr: str) -> None:
            await self._ask(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

        await change_each(masters, make, silent)
        if order and not broker_addr:
            queues = dict.fromkeys(masters, header.write_queue_nums)
            unchanged = masters.keys() & (silent or {}).keys()
            if unchanged:
                known = await self.get_kv_config(ORDER_TOPIC_NAMESPACE, topic)
                before = dict(ordered_queues(topic, known or ""))
                for name in unchanged:
                    del queues[name]
                    if name in before:
                        queues[name] = before[name]
            text = ";".join(f"{name}:{count}" for name, count in sorted(queues.items()))
            await self.put_kv_config(ORDER_TOPIC_NAMESPACE, topic, text)

    async def put_order_config(self, topic: str) -> None:
        """Tell the name servers the queues of an order topic, as its masters have them."""
        tables = {
            name: await self.all_topic_configs(addr)
            for name, addr in (await self.masters()).items()
        }
        text = ";".join(
            f"{name}:{table[topic].write_queue_nums}"
            for name, table in tables.items()
            if topic in table
        )
        await self.put_kv_config(ORDER_TOPIC_NAMESPACE, topic, text)

    async def put_topic_config(
        self, addr: str, wanted: TopicConfig, current: TopicConfig | None = None
    ) -> None:
        """Have a topic at a broker as ``wanted`` says; ``current`` is how it is there now.

        Only attributes that change are sent: brokers refuse those that may not, changed or not.
        """
        topic = names.check_topic(wanted.topic_name or "")
        before = {} if current is None else current.attributes
        changes = [
            f"+{key}={value}"
            for key, value in wanted.attributes.items()
            if before.get(key) != value
        ] + [f"-{key}" for key in before if key not in wanted.attributes]
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC_KEY,
            read_queue_nums=wanted.read_queue_nums,
            write_queue_nums=wanted.write_queue_nums,
            perm=wanted.perm,
            topic_filter_type=wanted.topic_filter_type,
            topic_sys_flag=wanted.topic_sys_flag,
            order=wanted.order,
            attributes=",".join(changes) or None,
        )
        await self._ask(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(
        self, topic: str, cluster: str | None = None, *, silent: Silent | None = None
    ) -> None:
        """Delete a topic and its offsets on all masters, then at the name servers.

        Args:
            topic: its name.
            cluster: only on its masters.
            silent: gets the error of each broker that does not answer, by its name, and that keeps
                the topic; None: such an error is raised, and the name servers are not asked.
        """
        gone = DeleteTopicRequestHeader(topic=topic)

        async def remove(_: str, addr: str) -> None:
            await self._ask(addr, RequestCode.DELETE_TOPIC_IN_BROKER, gone)

        await change_each(await self.masters(cluster), remove, silent)
        header = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def topic_config(self, addr: str, topic: str) -> TopicConfig:
        """A topic's settings on a broker (from 5.0 on). RocketMQ: examineTopicConfig."""
        body = await self._ask(
            addr, RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic=topic)
        )
        return TopicConfig.decode(body)

    async def all_topic_configs(self, addr: str) -> dict[str, TopicConfig]:
        """The settings of all topics of a broker."""
        body = await self._ask(addr, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigs.decode(body).topic_config_table

    async def topic_stats(self, topic: str, *, silent: Silent | None = None) -> TopicStatsTable:
        """Both ends of each queue. RocketMQ: examineTopicStats.

        Args:
            topic: its name.
            silent: gets the error of each broker that does not answer, by its name, and its queues
                are left out; None: such an error is raised.
        """
        header = GetTopicStatsInfoRequestHeader(topic=topic)

        async def ask(_: str, addr: str) -> TopicStatsTable:
            body = await self._ask(addr, RequestCode.GET_TOPIC_STATS_INFO, header)
            return TopicStatsTable.decode(body, FRAME_SIZE_MAX)

        made = TopicStatsTable()
        for found in (await ask_each(await self._masters_of(topic), ask, silent)).values():
            made.offset_table.update(found.offset_table)
            made.topic_put_tps += found.topic_put_tps
        return made

    async def topic_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues, sorted."""
        await self._masters_of(topic)
        return await self._client().subscribe_queues(topic)

    async def purge_topic(
        self,
        topic: str,
        *,
        before_ms: int | None = None,
        queue: MessageQueue | None = None,
        offset: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        silent: Silent | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Hide a topic's past on every broker of it, slaves too; Oberth's brokers only.

        Args:
            topic: its name.
            before_ms: what was stored earlier than this.
            queue: or: this queue only,
            offset: what is below this offset of it.
            force: also what groups have not consumed; else a broker refuses that with 604.
            dry_run: only say what would be hidden.
            silent: gets the error of each broker that does not answer, by ``name address``; None:
                such an error is raised.

        Returns:
            By broker address: ``queues`` with minOffset and minOffsetAfter, and ``unread``.
        """
        header = PurgeTopicRequestHeader(
            topic=topic,
            timestamp=before_ms,
            queue_id=None if queue is None else queue.queue_id,
            offset=offset,
            force=force,
            dry_run=dry_run,
        )
        addresses = {
            f"{data.broker_name} {addr}": addr
            for data in (await self.topic_route(topic)).broker_datas
            if queue is None or data.broker_name == queue.broker_name
            for _, addr in sorted(data.broker_addrs.items())
        }

        async def ask(_: str, addr: str) -> dict[str, Any]:
            body = await self._ask(
                addr, RequestCode.OBERTH_PURGE_TOPIC, header, timeout_s=QUERY_TIMEOUT_S
            )
            return object_of(body, "purge")

        found = await ask_each(addresses, ask, silent)
        return {addresses[place]: answer for place, answer in found.items()}

    # Offsets

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """What a group has committed in a queue; None: nothing."""
        return await query_consumer_offset(self._client(), group, queue)

    async def update_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit for a group."""
        await update_consumer_offset(self._client(), group, queue, offset)

    async def max_offset(self, queue: MessageQueue, *, is_shown: bool = True) -> int:
        """The end of a queue; not ``is_shown``: with messages that consumers do not see yet."""
        return await max_offset(self._client(), queue, is_shown=is_shown)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset of a queue that can be read."""
        return await min_offset(self._client(), queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at a time or later."""
        return await search_offset(self._client(), queue, timestamp_ms)

    async def earliest_msg_store_time(self, queue: MessageQueue) -> int:
        """When the first message of a queue was stored, ms."""
        return await earliest_msg_store_time(self._client(), queue)
