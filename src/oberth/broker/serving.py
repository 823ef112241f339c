"""Processors: what serves the requests of one broker, each made of the parts that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker.acl.plain_acl_admin import PlainAclAdminProcessor
from oberth.broker.acl.processor import AuthAdminProcessor
from oberth.broker.processors.ack import AckMessageProcessor
from oberth.broker.processors.admin_broker import BrokerAdminProcessor
from oberth.broker.processors.admin_groups import GroupAdminProcessor
from oberth.broker.processors.admin_lite import LiteAdminProcessor
from oberth.broker.processors.admin_offsets import OffsetAdminProcessor
from oberth.broker.processors.admin_replicas import ReplicaAdminProcessor
from oberth.broker.processors.admin_store import StoreAdminProcessor
from oberth.broker.processors.admin_topics import TopicAdminProcessor
from oberth.broker.processors.assignment import AssignmentProcessor
from oberth.broker.processors.client import ClientManageProcessor
from oberth.broker.processors.consumer import ConsumerManageProcessor
from oberth.broker.processors.end_transaction import EndTransactionProcessor
from oberth.broker.processors.pop import PopMessageProcessor
from oberth.broker.processors.pop_lite import PopLiteMessageProcessor
from oberth.broker.processors.pull import PullMessageProcessor
from oberth.broker.processors.query import QueryMessageProcessor
from oberth.broker.processors.recall import RecallMessageProcessor
from oberth.broker.processors.relay import RelayProcessor
from oberth.broker.processors.reply import ReplyMessageProcessor
from oberth.broker.processors.retention import RetentionProcessor
from oberth.broker.processors.send import SendMessageProcessor
from oberth.broker.processors.send_back import SendBackProcessor
from oberth.broker.processors.static_topic import StaticTopicProcessor

if TYPE_CHECKING:
    from oberth.broker.parts import Parts
    from oberth.broker.services import Services


class Processors:
    """The processors of one broker. `request_table` says which of them serves which code."""

    def __init__(self, parts: Parts, services: Services) -> None:
        self._ha = services.ha
        self._make_senders(parts, services)
        self._make_readers(parts, services)
        self._make_pops(parts, services)
        self._make_members(parts, services)
        self._make_table_admins(parts, services)
        self._make_broker_admins(parts, services)

    def _make_senders(self, parts: Parts, services: Services) -> None:
        """Of what producers send, and of what goes to them."""
        self.send = SendMessageProcessor(
            config=parts.config,
            store_config=parts.store_config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            locks=parts.locks,
            transactions=services.transactions,
            stats=parts.stats,
            unique_ids=parts.unique_ids,
            now_ms=parts.now_ms,
            dispatching=services.dispatching,
            topics_written_once=services.table_files.topics_written_once,
            when_on_disk=services.table_files.when_on_disk,
            rests_s=services.brake.rests_s,
        )
        self.send_back = SendBackProcessor(
            config=parts.config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            stats=parts.stats,
            dispatching=services.dispatching,
            addresses=self.send.addresses,
            may_be_cut=services.ha.may_be_cut,
        )
        self.transactions = EndTransactionProcessor(
            store_config=parts.store_config,
            store=parts.store,
            transactions=services.transactions,
            stats=parts.stats,
            now_ms=parts.now_ms,
            dispatching=services.dispatching,
        )
        self.reply = ReplyMessageProcessor(
            config=parts.config,
            store=parts.store,
            producers=parts.producers,
            send=self.send,
            now_ms=parts.now_ms,
            dispatch_soon=services.dispatching.soon,
        )
        self.recall = RecallMessageProcessor(
            config=parts.config,
            store_config=parts.store_config,
            store=parts.store,
            topics=parts.topics,
            send=self.send,
            now_ms=parts.now_ms,
            dispatching=services.dispatching,
        )

    def _make_readers(self, parts: Parts, services: Services) -> None:
        """Of what consumers read without POP."""
        self.pull = PullMessageProcessor(
            config=parts.config,
            store_config=parts.store_config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            hold=parts.hold,
            cold_reads=parts.cold_reads,
            expressions=services.expressions,
            old_messages=services.old_messages,
            peers=services.peers,
            stats=parts.stats,
            now_ms=parts.now_ms,
            dispatch_now=services.dispatching.now,
            start_task=services.tasks.start,
            follows_master=lambda: services.ha.follows_master,
            refuses_readers=self.refuses_readers,
        )
        self.query = QueryMessageProcessor(
            store_config=parts.store_config,
            store=parts.store,
        )
        self.relay = RelayProcessor(
            config=parts.config,
            store=parts.store,
            consumers=parts.consumers,
        )

    def _make_pops(self, parts: Parts, services: Services) -> None:
        """Of POP."""
        self.pops = PopMessageProcessor(
            config=parts.config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            expressions=services.expressions,
            timers=services.timers,
            stats=parts.stats,
            now_ms=parts.now_ms,
            dispatch_now=services.dispatching.now,
            old_messages=services.old_messages,
            service=services.pop,
            refuses_readers=self.refuses_readers,
        )
        self.lite_pops = PopLiteMessageProcessor(
            config=parts.config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            old_messages=services.old_messages,
            pop=services.pop,
            stats=parts.stats,
            now_ms=parts.now_ms,
            dispatch_now=services.dispatching.now,
            lite=services.lite,
            refuses_readers=self.refuses_readers,
        )
        self.acks = AckMessageProcessor(
            config=parts.config,
            store=parts.store,
            topics=parts.topics,
            offsets=parts.offsets,
            now_ms=parts.now_ms,
            service=services.pop,
            pops=self.pops,
            lite=self.lite_pops,
        )

    def _make_members(self, parts: Parts, services: Services) -> None:
        """Of clients and the queues that they share."""
        self.assignment = AssignmentProcessor(
            config=parts.config,
            config_dir=parts.config_dir,
            files=parts.files,
            topics=parts.topics,
            groups=parts.groups,
            consumers=parts.consumers,
            now_ms=parts.now_ms,
            client=services.client,
            start_task=services.tasks.start,
        )
        services.tables.take_modes = self.assignment.replace_all
        self.clients = ClientManageProcessor(
            config=parts.config,
            topics=parts.topics,
            groups=parts.groups,
            consumers=parts.consumers,
            producers=parts.producers,
            locks=parts.locks,
            hold=parts.hold,
            expressions=services.expressions,
            pops=self.pops,
            lite=services.lite,
            now_ms=parts.now_ms,
            topics_written_soon=services.table_files.topics_written_soon,
        )
        self.consumers = ConsumerManageProcessor(
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            locks=parts.locks,
            in_memory_bytes=parts.in_memory_bytes,
            now_ms=parts.now_ms,
            dispatch_now=services.dispatching.now,
        )
        self.static_topics = StaticTopicProcessor(
            config=parts.config,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            peers=services.peers,
            static_strays=services.strays,
            now_ms=parts.now_ms,
            dispatching=services.dispatching,
            start_task=services.tasks.start,
            registration=services.registration,
            cleaner=services.cleaner,
            consumers=self.consumers,
        )

    def _make_table_admins(self, parts: Parts, services: Services) -> None:
        """Of topics, groups and offsets, for tools."""
        self.topics = TopicAdminProcessor(
            config=parts.config,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            offsets=parts.offsets,
            consumers=parts.consumers,
            stats=parts.stats,
            dispatch_now=services.dispatching.now,
            topics_written_once=services.table_files.topics_written_once,
            registration=services.registration,
            deletions=services.deletions,
            answer_when_on_disk=services.table_files.answer_when_on_disk,
        )
        self.groups = GroupAdminProcessor(
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            producers=parts.producers,
            deletions=services.deletions,
            groups_written_once=services.table_files.groups_written_once,
            answer_when_on_disk=services.table_files.answer_when_on_disk,
        )
        self.offsets = OffsetAdminProcessor(
            config=parts.config,
            own=parts.own,
            store=parts.store,
            topics=parts.topics,
            static_topics=parts.static_topics,
            groups=parts.groups,
            offsets=parts.offsets,
            consumers=parts.consumers,
            schedule=parts.schedule,
            stats=parts.stats,
            now_ms=parts.now_ms,
            dispatch_now=services.dispatching.now,
            on_offset_reset=parts.on_offset_reset,
            answer_behind_log=services.ha.answer_behind_log,
        )
        self.lite = LiteAdminProcessor(
            config=parts.config,
            store_config=parts.store_config,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            dispatch_now=services.dispatching.now,
            lite=services.lite,
        )

    def _make_broker_admins(self, parts: Parts, services: Services) -> None:
        """Of the broker itself, for tools."""
        self.broker = BrokerAdminProcessor(
            config=parts.config,
            store_config=parts.store_config,
            store=parts.store,
            consumers=parts.consumers,
            stats=parts.stats,
            dispatch_now=services.dispatching.now,
            changes=services.changes,
            runtime_info=services.runtime_info,
        )
        self.replicas = ReplicaAdminProcessor(
            own=parts.own,
            store=parts.store,
            ha=services.ha,
            timers=services.timers,
            now_ms=parts.now_ms,
            look_at_members=services.acting.look_soon,
        )
        self.store = StoreAdminProcessor(
            config=parts.config,
            store_config=parts.store_config,
            store=parts.store,
            cold_reads=parts.cold_reads,
            now_ms=parts.now_ms,
        )
        self.retention = RetentionProcessor(
            store=parts.store,
            topics=parts.topics,
            offsets=parts.offsets,
            dispatch_now=services.dispatching.now,
        )
        self.accounts = PlainAclAdminProcessor(
            config=parts.config,
            own=parts.own,
            access=services.access,
            files=parts.files,
            now_ms=parts.now_ms,
        )
        self.users = AuthAdminProcessor(
            services.access,
        )

    def refuses_readers(self) -> str | None:
        """Why nobody may read now: a slave whose log may not be its master's."""
        return self._ha.refuses_readers

    def answer_held(self) -> None:
        """Requests that wait for messages are answered with what is there."""
        self.pops.answer_all()
        self.lite_pops.answer_all()
