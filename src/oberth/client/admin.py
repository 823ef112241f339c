"""Admin: topics, groups, offsets, statistics, messages and configuration of a cluster.

    async with Admin(namesrv_addr="127.0.0.1:9876") as admin:
        await admin.create_topic("OrderTopic", queue_nums=8)

The same requests in the same order as RocketMQ's ``mqadmin`` sends (DefaultMQAdminExt). A call for
a whole cluster or topic asks every master of it; where one fails, the call fails, and what the
others did stays done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from oberth.client.config import ClientConfig
from oberth.client.instance import ClientInstance, ClientService
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.producer import client_config
from oberth.client.pulling import (
    PullResult,
    PullTemplate,
    earliest_msg_store_time,
    max_offset,
    min_offset,
    pull,
    query_consumer_offset,
    search_offset,
    update_consumer_offset,
)
from oberth.client.subscriptions import build_subscription_data
from oberth.errors import MQBrokerError, MQClientError
from oberth.formats import names
from oberth.formats.config_files import ConsumerOffsets, split_offset_key
from oberth.formats.java_properties import parse_properties
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.subscription_group import SubscriptionGroupConfig, SubscriptionGroups
from oberth.formats.topic_config import READ_WRITE, TopicConfig, TopicConfigs
from oberth.remoting.bodies.admin import AclInfo, UserInfo
from oberth.remoting.bodies.base import Body, BodyError, MessageQueue
from oberth.remoting.bodies.clients import (
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from oberth.remoting.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from oberth.remoting.bodies.offsets import ResetOffsetBody
from oberth.remoting.bodies.pop import SetMessageRequestModeRequestBody
from oberth.remoting.bodies.route import (
    MASTER_ID,
    ClusterInfo,
    GroupList,
    KVTable,
    TopicList,
    TopicRouteData,
)
from oberth.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from oberth.remoting.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    TopicStatsTable,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.admin import (
    CreateAclRequestHeader,
    CreateTopicRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteTopicRequestHeader,
    DeleteUserRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    PurgeTopicRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    ViewMessageRequestHeader,
)
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.controller import (
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
)
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
from oberth.remoting.headers.namesrv import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from oberth.remoting.headers.replication import LogChecksumsRequestHeader

B = TypeVar("B", bound=Body)

TIMEOUT_S: Final = 5.0
QUERY_TIMEOUT_S: Final = 18.0
CONSUME_STATS_TIMEOUT_S: Final = 15.0
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
QUERY_COUNT_MAX: Final = 64

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


class Admin(ClientService):
    """Administration.

    Args:
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        timeout_ms: of one request; slow ones have their own.
    """

    def __init__(
        self,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        timeout_ms: int = round(TIMEOUT_S * 1000),
    ) -> None:
        self.config = client_config(config, namesrv_addr)
        self._timeout_s = timeout_ms / 1000
        self._instance: ClientInstance | None = None

    async def start(self) -> None:
        """Get ready; connections are opened when they are needed."""
        if self._instance is None:
            self._instance = await ClientInstance.acquire(self.config)

    async def shutdown(self) -> None:
        """Close the connections."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    def _client(self) -> ClientInstance:
        if self._instance is None:
            raise MQClientError("admin is not started, or shut down")
        return self._instance

    async def _ask(
        self,
        addr: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> bytes:
        response = await self._client().ask(
            addr, code, header, body, timeout_s=timeout_s or self._timeout_s
        )
        return response.body_bytes()

    # Cluster

    async def cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers and addresses. RocketMQ: examineBrokerClusterInfo."""
        response = await self._client().ask_name_server(
            RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=self._timeout_s
        )
        return ClusterInfo.decode(response.body_bytes())

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """The masters' addresses by broker name; of one cluster, or of all.

        Raises:
            MQClientError: there is no such cluster.
        """
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise MQClientError(f"cluster {cluster!r}, there are {sorted(info.cluster_addr_table)}")
        wanted = set(
            info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        )
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if name in wanted and MASTER_ID in data.broker_addrs
        }

    async def broker_runtime_info(self, addr: str) -> dict[str, str]:
        """What a broker tells about itself. RocketMQ: fetchBrokerRuntimeStats."""
        return KVTable.decode(await self._ask(addr, RequestCode.GET_BROKER_RUNTIME_INFO)).table

    async def broker_config(self, addr: str) -> dict[str, str]:
        """All settings of a broker."""
        text = await self._ask(addr, RequestCode.GET_BROKER_CONFIG)
        return dict(parse_properties(text.decode("utf-8", "replace")))

    async def update_broker_config(self, addr: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        await self._ask(addr, RequestCode.UPDATE_BROKER_CONFIG, None, _properties(settings))

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """All settings of each name server, by address."""
        made = {}
        for addr in self._client().name_server_addresses:
            text = await self._ask(addr, RequestCode.GET_NAMESRV_CONFIG)
            made[addr] = dict(parse_properties(text.decode("utf-8", "replace")))
        return made

    async def update_namesrv_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of all name servers."""
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.UPDATE_NAMESRV_CONFIG, None, _properties(settings))

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission from all topics of a broker; how many topics that were."""
        return await self._write_perm(RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker_name)

    async def add_write_perm(self, broker_name: str) -> int:
        """Give it back."""
        return await self._write_perm(RequestCode.ADD_WRITE_PERM_OF_BROKER, broker_name)

    async def _write_perm(self, code: RequestCode, broker_name: str) -> int:
        count = 0
        for addr in self._client().name_server_addresses:
            response = await self._client().ask(
                addr,
                code,
                WipeWritePermOfBrokerRequestHeader(broker_name=broker_name),
                timeout_s=self._timeout_s,
            )
            fields = response.fields
            if code is RequestCode.WIPE_WRITE_PERM_OF_BROKER:
                count = response.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count
            else:
                count = int(fields.get("addTopicCount", "0"))
        return count

    async def clean_expired_consume_queue(self, addr: str) -> None:
        """Delete queue files of messages that are gone."""
        await self._ask(addr, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def controller_leader(self, controller: str) -> str:
        """The controller that leads, as another one of its group says."""
        response = await self._client().ask(
            controller, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=self._timeout_s
        )
        return response.header(GetMetaDataResponseHeader).controller_leader_address or controller

    async def replicas(self, controller: str, broker_name: str) -> ReplicasInfo | None:
        """The replicas of a broker name, as its controller knows them; None if it does not."""
        body = await self._ask(
            controller,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            body=json.dumps([broker_name]).encode(),
        )
        return BrokerReplicasInfo.decode(body).replicas_info_table.get(broker_name)

    async def elect_master(
        self, controller: str, cluster: str, broker_name: str, broker_id: int
    ) -> int:
        """Have the controller make a replica that is in sync the master; gives its epoch."""
        response = await self._client().ask(
            controller,
            RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequestHeader(
                cluster_name=cluster,
                broker_name=broker_name,
                broker_id=broker_id,
                designate_elect=True,
            ),
            timeout_s=self._timeout_s,
        )
        return response.header(ElectMasterResponseHeader).master_epoch or 0

    async def delete_expired_commit_log(self, addr: str) -> None:
        """Delete CommitLog files that are due, now."""
        await self._ask(addr, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def retention(self, addr: str) -> dict[str, Any]:
        """What a broker's next cleaning would take; Oberth's brokers only.

        See `oberth.store.retention_report.RetentionReport.to_json`.
        """
        body = await self._ask(
            addr, RequestCode.OBERTH_GET_RETENTION, timeout_s=max(QUERY_TIMEOUT_S, self._timeout_s)
        )
        found: dict[str, Any] = json.loads(body)
        # A broker's JSON leaves out what is null.
        return {"due": None, "heldBy": None, "waitsForLake": None, **found}

    async def log_checksums(self, addr: str, header: LogChecksumsRequestHeader) -> bytes:
        """Checksums of a broker's log as JSON, see the header; Oberth's brokers only."""
        return await self._ask(
            addr,
            RequestCode.OBERTH_GET_LOG_CHECKSUMS,
            header,
            timeout_s=max(QUERY_TIMEOUT_S, self._timeout_s),
        )

    async def purge_topic(
        self,
        topic: str,
        *,
        before_ms: int | None = None,
        queue: MessageQueue | None = None,
        offset: int | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> dict[str, dict[str, Any]]:
        """Hide a topic's past on every broker of it, slaves too; Oberth's brokers only.

        Args:
            topic: its name.
            before_ms: what was stored earlier than this.
            queue: or: this queue only,
            offset: what is below this offset of it.
            force: also what groups have not consumed; else a broker refuses that with 604.
            dry_run: only say what would be hidden.

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
        answers = {}
        for data in (await self.topic_route(topic)).broker_datas:
            if queue is not None and data.broker_name != queue.broker_name:
                continue
            for _, addr in sorted(data.broker_addrs.items()):
                body = await self._ask(
                    addr, RequestCode.OBERTH_PURGE_TOPIC, header, timeout_s=QUERY_TIMEOUT_S
                )
                answers[addr] = json.loads(body)
        return answers

    async def all_consumer_offsets(self, addr: str) -> dict[tuple[str, str], dict[int, int]]:
        """Every offset that a broker has: (topic, group) → queue id → offset."""
        body = await self._ask(addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsets.decode(body, name="offsets").offset_table
        return {
            parts: dict(queues)
            for key, queues in table.items()
            if (parts := split_offset_key(key)) is not None
        }

    async def all_producers(self, addr: str) -> dict[str, int]:
        """How many clients of each producer group a broker knows (from 4.9.3 on)."""
        return {group: len(clients) for group, clients in (await self.producers(addr)).items()}

    async def producers(self, addr: str) -> dict[str, list[ProducerInfo]]:
        """The clients of each producer group that a broker knows (from 4.9.3 on)."""
        body = await self._ask(addr, RequestCode.GET_ALL_PRODUCER_INFO)
        return ProducerTableInfo.decode(body).data

    async def broker_topic_stats(self, addr: str, topic: str) -> TopicStatsTable:
        """Both ends of a topic's queues on one broker."""
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        return TopicStatsTable.decode(
            await self._ask(addr, RequestCode.GET_TOPIC_STATS_INFO, header)
        )

    async def clean_unused_topic(self, addr: str) -> None:
        """Delete queues of topics that do not exist any more."""
        await self._ask(addr, RequestCode.CLEAN_UNUSED_TOPIC)

    async def broker_stats(self, addr: str, name: str, key: str) -> BrokerStatsData:
        """One statistic, as ``TOPIC_PUT_NUMS`` of a topic. RocketMQ: viewBrokerStatsData."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        return BrokerStatsData.decode(
            await self._ask(addr, RequestCode.VIEW_BROKER_STATS_DATA, header)
        )

    # Users and policies (brokers from 5.3)

    async def users(self, addr: str, text: str = "") -> list[UserInfo]:
        """Users of a broker whose name holds a text."""
        header = ListUsersRequestHeader(filter=text or None)
        return _list_of(UserInfo, await self._ask(addr, RequestCode.AUTH_LIST_USER, header))

    async def create_user(self, addr: str, user: UserInfo) -> None:
        """Make a user at a broker.

        Raises:
            MQBrokerError: there is one of this name, or it cannot be (code 16).
        """
        header = CreateUserRequestHeader(username=user.username)
        await self._ask(addr, RequestCode.AUTH_CREATE_USER, header, user.encode())

    async def update_user(self, addr: str, user: UserInfo) -> None:
        """Change a user at a broker; what is None stays."""
        header = CreateUserRequestHeader(username=user.username)
        await self._ask(addr, RequestCode.AUTH_UPDATE_USER, header, user.encode())

    async def delete_user(self, addr: str, username: str) -> None:
        """Delete a user and its policies at a broker; brokers say nothing if there is none."""
        header = DeleteUserRequestHeader(username=username)
        await self._ask(addr, RequestCode.AUTH_DELETE_USER, header)

    async def acls(self, addr: str, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Policies of a broker, by texts that subject (``User:NAME``) and resource hold."""
        header = ListAclsRequestHeader(
            subject_filter=subject or None, resource_filter=resource or None
        )
        return _list_of(AclInfo, await self._ask(addr, RequestCode.AUTH_LIST_ACL, header))

    async def create_acl(self, addr: str, acl: AclInfo) -> None:
        """Add to the policies of a subject at a broker."""
        header = CreateAclRequestHeader(subject=acl.subject)
        await self._ask(addr, RequestCode.AUTH_CREATE_ACL, header, acl.encode())

    async def update_acl(self, addr: str, acl: AclInfo) -> None:
        """Change the policies of a subject at a broker."""
        header = CreateAclRequestHeader(subject=acl.subject)
        await self._ask(addr, RequestCode.AUTH_UPDATE_ACL, header, acl.encode())

    async def delete_acl(
        self, addr: str, subject: str, *, resource: str = "", policy_type: str = ""
    ) -> None:
        """Delete all policies of a subject at a broker, or those of a resource or a type.

        Raises:
            MQBrokerError: there is none (code 16).
        """
        header = DeleteAclRequestHeader(
            subject=subject, resource=resource or None, policy_type=policy_type or None
        )
        await self._ask(addr, RequestCode.AUTH_DELETE_ACL, header)

    # KV configuration

    async def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.PUT_KV_CONFIG, header)

    async def get_kv_config(self, namespace: str, key: str) -> str | None:
        """A value, or None."""
        response = await self._client().ask_name_server(
            RequestCode.GET_KV_CONFIG,
            GetKVConfigRequestHeader(namespace=namespace, key=key),
            timeout_s=self._timeout_s,
            allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return response.header(GetKVConfigResponseHeader).value

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Remove a value from all name servers."""
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.DELETE_KV_CONFIG, header)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        response = await self._client().ask_name_server(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader(namespace=namespace),
            timeout_s=self._timeout_s,
            allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return KVTable.decode(response.body_bytes()).table

    # Topics

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

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where a topic is. RocketMQ: examineTopicRouteInfo.

        Raises:
            MQBrokerError: there is no such topic (code 17).
        """
        route = await self._client().fetch_route(topic, self._timeout_s)
        if route is None:
            raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic!r}")
        return route

    async def _masters_of_group(self, group: str) -> dict[str, str]:
        """The brokers of a group's retry topic, which is made when its first member connects."""
        topic = names.retry_topic(group)
        if await self._client().fetch_route(topic, self._timeout_s) is None:
            raise MQBrokerError(
                ResponseCode.TOPIC_NOT_EXIST, f"no broker knows group {group!r}: no {topic!r}"
            )
        return await self._masters_of(topic)

    async def _masters_of(self, topic: str) -> dict[str, str]:
        route = await self.topic_route(topic)
        for data in route.broker_datas:
            self._client().brokers[data.broker_name] = dict(data.broker_addrs)
        return {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        }

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
            order: an order topic; the name servers are told its queues.
            attributes: ``message.type``, ``cleanup.policy``, ``queue.type``, …; brokers from 5.0
                on.
            unit: a topic of a unit.

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
        for addr in masters.values():
            await self._ask(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        if order and not broker_addr:
            text = ";".join(f"{name}:{header.write_queue_nums}" for name in masters)
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

    async def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic and its offsets on all masters, then at the name servers."""
        for addr in (await self.masters(cluster)).values():
            await self._ask(
                addr, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic)
            )
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

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Both ends of each queue. RocketMQ: examineTopicStats."""
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        made = TopicStatsTable()
        for addr in (await self._masters_of(topic)).values():
            body = await self._ask(addr, RequestCode.GET_TOPIC_STATS_INFO, header)
            found = TopicStatsTable.decode(body)
            made.offset_table.update(found.offset_table)
            made.topic_put_tps += found.topic_put_tps
        return made

    async def topic_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues, sorted."""
        await self._masters_of(topic)
        return await self._client().subscribe_queues(topic)

    # Groups

    async def create_group(
        self,
        config: SubscriptionGroupConfig | str,
        *,
        cluster: str | None = None,
        broker_addr: str | None = None,
    ) -> None:
        """Make a consumer group, or change it; a name stands for the default settings.

        RocketMQ: createAndUpdateSubscriptionGroupConfig.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(group_name=config)
        names.check_group(config.group_name or "")
        body = config.encode(pretty=False)
        masters = {"": broker_addr} if broker_addr else await self.masters(cluster)
        for addr in masters.values():
            await self._ask(addr, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def delete_group(
        self, group: str, *, cluster: str | None = None, remove_offset: bool = True
    ) -> None:
        """Delete a group, its retry topic and its dead letters."""
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=remove_offset)
        for addr in (await self.masters(cluster)).values():
            await self._ask(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        for topic in (names.retry_topic(group), names.dlq_topic(group)):
            if await self._client().fetch_route(topic, self._timeout_s) is not None:
                await self.delete_topic(topic, cluster)

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

    async def group_list(self, cluster: str | None = None) -> list[str]:
        """All groups of all masters, sorted."""
        found: set[str] = set()
        for addr in (await self.masters(cluster)).values():
            found.update(await self.all_groups(addr))
        return sorted(found)

    async def topic_consumed_by(self, topic: str) -> list[str]:
        """The groups that consume a topic. RocketMQ: queryTopicConsumeByWho."""
        header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
        found: set[str] = set()
        for addr in (await self._masters_of(topic)).values():
            body = await self._ask(addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            found.update(GroupList.decode(body).group_list)
        return sorted(found)

    async def consumer_connection(
        self, group: str, broker_addr: str | None = None
    ) -> ConsumerConnection:
        """The members of a group that are connected. RocketMQ: examineConsumerConnectionInfo.

        Raises:
            MQBrokerError: none is (code 206).
        """
        addr = broker_addr or next(iter((await self._masters_of_group(group)).values()), None)
        if addr is None:
            raise MQClientError(f"group {group}: no broker knows it")
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        body = await self._ask(addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(body)

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The members of a producer group, as a broker of a topic knows them."""
        addr = next(iter((await self._masters_of(topic)).values()))
        header = GetProducerConnectionListRequestHeader(producer_group=group)
        body = await self._ask(addr, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return ProducerConnection.decode(body)

    async def consumer_running_info(
        self, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """What a member tells about itself."""
        addr = next(iter((await self._masters_of_group(group)).values()))
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=jstack
        )
        body = await self._ask(
            addr, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=QUERY_TIMEOUT_S
        )
        return ConsumerRunningInfo.decode(body)

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
        return ConsumeMessageDirectlyResult.decode(body)

    async def set_message_request_mode(
        self, topic: str, group: str, mode: str, pop_share_queue_num: int = 0
    ) -> None:
        """Have a group get a topic's messages by PULL or POP (brokers from 5.0 on)."""
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=pop_share_queue_num
        )
        for addr in (await self._masters_of(topic)).values():
            await self._ask(addr, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body.encode())

    # Offsets

    async def consume_stats(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far a group is, in one topic or in all. RocketMQ: examineConsumeStats.

        Raises:
            MQBrokerError: neither the topic nor the group's retry topic exists (code 17).
        """
        masters = await (self._masters_of(topic) if topic else self._masters_of_group(group))
        return await self.consume_stats_at(masters.values(), group, topic)

    async def consume_stats_at(
        self, addrs: Iterable[str], group: str, topic: str | None = None
    ) -> GroupProgress:
        """How far a group is by what these brokers know; empty if none knows it."""
        progress = GroupProgress(group)
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        for addr in addrs:
            body = await self._ask(
                addr,
                RequestCode.GET_CONSUME_STATS,
                header,
                timeout_s=max(CONSUME_STATS_TIMEOUT_S, self._timeout_s),
            )
            stats = ConsumeStats.decode(body)
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
    ) -> dict[MessageQueue, int]:
        """Have a group go on at a time, its members too. RocketMQ: resetOffsetByTimestamp.

        Args:
            group: whose offsets.
            topic: of the queues.
            timestamp_ms: where to; LATEST: the end.
            force: also forwards, not only backwards.
            queue: this queue only.
            offset: of that queue, instead of a time.

        Returns:
            The new offsets.
        """
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
        for broker_name, addr in (await self._masters_of(topic)).items():
            if queue is not None and queue.broker_name != broker_name:
                continue
            try:
                body = await self._ask(addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except MQBrokerError as error:
                if error.response_code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                offline.append(broker_name)
            else:
                made.update(ResetOffsetBody.decode(body).offset_table)
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

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """What a group has committed in a queue; None: nothing."""
        return await query_consumer_offset(self._client(), group, queue)

    async def update_consume_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit for a group."""
        await update_consumer_offset(self._client(), group, queue, offset)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The end of a queue."""
        return await max_offset(self._client(), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset of a queue that can be read."""
        return await min_offset(self._client(), queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at a time or later."""
        return await search_offset(self._client(), queue, timestamp_ms)

    async def earliest_msg_store_time(self, queue: MessageQueue) -> int:
        """When the first message of a queue was stored, ms."""
        return await earliest_msg_store_time(self._client(), queue)

    # Messages

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """A message by either kind of id. RocketMQ: viewMessage.

        Raises:
            MQBrokerError: there is none (code 208 or what the broker says).
        """
        try:
            place = decode_offset_message_id(msg_id)
        except ValueError:
            place = None
        known = {addr for by_id in (await self._known_brokers()).values() for addr in by_id}
        if place is not None and place.broker_address in known:
            try:
                body = await self._ask(
                    place.broker_address,
                    RequestCode.VIEW_MESSAGE_BY_ID,
                    ViewMessageRequestHeader(offset=place.commit_log_offset, topic=topic),
                )
                return decode_messages(body)[0]
            except (MQBrokerError, IndexError):
                pass  # both ids have 32 digits: this one is the client's
        found = await self.query_message_by_unique_key(topic, msg_id)
        if not found:
            raise MQBrokerError(ResponseCode.NO_MESSAGE, f"no message {msg_id} in {topic}")
        return found[0]

    async def _known_brokers(self) -> dict[str, list[str]]:
        info = await self.cluster_info()
        return {
            name: list(data.broker_addrs.values()) for name, data in info.broker_addr_table.items()
        }

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[MessageExt]:
        """Messages with a word among their keys, the oldest first."""
        found = await self._query(topic, key, max_num, begin_ms, end_ms, unique=False)
        return [message for message in found if key in message.keys.split(" ")]

    async def query_message_by_unique_key(
        self, topic: str, msg_id: str, *, max_num: int = 32
    ) -> list[MessageExt]:
        """Messages with an id that a client gave; more than one if it was sent twice."""
        found = await self._query(topic, msg_id, max_num, 0, 2**63 - 1, unique=True)
        return [message for message in found if message.msg_id == msg_id]

    async def _query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[MessageExt]:
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_num, begin_timestamp=begin_ms, end_timestamp=end_ms
        )

        async def ask(broker_name: str, addr: str) -> list[MessageExt]:
            request = create_request(RequestCode.QUERY_MESSAGE, header)
            assert request.ext_fields is not None
            request.ext_fields[UNIQUE_KEY_QUERY] = "true" if unique else "false"
            response = await self._client().invoke(addr, request, QUERY_TIMEOUT_S)
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            if response.code != ResponseCode.SUCCESS:
                raise MQBrokerError(response.code, response.remark or "", addr)
            return decode_messages(response.body_bytes(), broker_name)

        masters = await self._masters_of(topic)
        answers = await asyncio.gather(*(ask(name, addr) for name, addr in masters.items()))
        found = [message for answer in answers for message in answer]
        found.sort(key=lambda message: message.store_timestamp)
        return found

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_num: int = 32, expression: str = "*"
    ) -> PullResult:
        """Read messages of a queue without being a consumer and without waiting."""
        template = PullTemplate(
            names.TOOLS_CONSUMER_GROUP,
            queue,
            build_subscription_data(queue.topic, expression, 0),
            max_msg_nums=max_num,
            with_subscription=True,
            suspend_timeout_ms=0,
        )
        if self._client().broker_address(queue.broker_name) is None:
            await self._masters_of(queue.topic)
        return await pull(self._client(), template, offset, sys_flag=4, timeout_s=self._timeout_s)

    async def query_consume_queue(
        self, addr: str, topic: str, queue_id: int, index: int, count: int, group: str = ""
    ) -> QueryConsumeQueueResponseBody:
        """Units of a queue, as they lie on the broker's disk."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group or None
        )
        return QueryConsumeQueueResponseBody.decode(
            await self._ask(addr, RequestCode.QUERY_CONSUME_QUEUE, header)
        )


def _list_of(kind: type[B], data: bytes) -> list[B]:
    """Bodies from a JSON list; brokers send nothing for an empty one."""
    try:
        return msgspec.json.decode(data or b"[]", type=list[kind], strict=False)  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"no list of {kind.__name__}: {error}") from None


def _properties(settings: Mapping[str, str]) -> bytes:
    """``key=value`` lines; brokers read them as Java properties."""
    lines: Iterable[str] = (
        f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n")
        for key, value in settings.items()
    )
    return "\n".join(lines).encode()
