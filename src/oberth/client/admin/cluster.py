"""Administration of brokers, name servers and controllers, of users and rights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from oberth.client.admin.base import QUERY_TIMEOUT_S, AdminBase, object_of
from oberth.errors import MQBrokerError
from oberth.formats.config_files import ConsumerOffsets, split_offset_key
from oberth.formats.java_numbers import java_long
from oberth.formats.java_properties import parse_properties
from oberth.remoting.bodies.admin import AclInfo, UserInfo
from oberth.remoting.bodies.base import Body, BodyError
from oberth.remoting.bodies.clients import (
    ProducerInfo,
    ProducerTableInfo,
)
from oberth.remoting.bodies.controller import BrokerReplicasInfo, EpochEntryCache, ReplicasInfo
from oberth.remoting.bodies.route import (
    KVTable,
)
from oberth.remoting.bodies.stats import (
    BrokerStatsData,
    TopicStatsTable,
)
from oberth.remoting.code import RequestCode
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.headers.admin import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetTopicStatsInfoRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from oberth.remoting.headers.controller import (
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
)
from oberth.remoting.headers.namesrv import (
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from oberth.remoting.headers.replication import LogChecksumsRequestHeader

B = TypeVar("B", bound=Body)


class ClusterAdmin(AdminBase):
    """Brokers and who may use them."""

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
                count = java_long(fields.get("addTopicCount"), 0)
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

    async def epochs(self, address: str) -> list[tuple[int, int]] | None:
        """Which master wrote which part of a broker's log: epochs with the offset where each began.

        None if the broker keeps none, since it has no controller or is older than controllers.

        Raises:
            RemotingError: it does not answer.
            BodyError: it answers something else.
        """
        try:
            body = await self._ask(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        except MQBrokerError:
            return None
        if not body:
            return None
        entries = EpochEntryCache.decode(body).epoch_list
        return [(each.epoch, each.start_offset) for each in entries]

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
        found = object_of(body, "retention")
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
            await self._ask(addr, RequestCode.GET_TOPIC_STATS_INFO, header), FRAME_SIZE_MAX
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

    # Users and rights

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
