"""RequestTable: which code is served by what, and on which stage. One row for each.

RocketMQ: BrokerController.registerProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from oberth.broker.processors.client import HEARTBEAT_SIZE_MAX
from oberth.broker.processors.consumer import LOCK_BODY_SIZE_MAX
from oberth.remoting.aio.stage import Stage
from oberth.remoting.bodies.admin import (
    ACKS_SIZE_MAX,
    LIST_SIZE_MAX,
    LITE_SIZE_MAX,
    MAPPING_SIZE_MAX,
)
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.serving import Processors
    from oberth.remoting.aio.processors import (
        AtOnce,
        BurstHandler,
        ProcessorTable,
        Reject,
        SlicedHandler,
        TimedHandler,
    )
    from oberth.remoting.aio.stage import AsyncHandler, SyncHandler

QUERY: Final = "query"
"""Index queries: two threads, since they read the disk."""

ADMIN: Final = "admin"
"""Cleaning, which may take long: one thread."""

CHECKSUMS: Final = "checksums"
"""What reads the log itself: one thread and a short queue, since a request reads up to 64 MiB."""

RETENTION: Final = "retention"
"""What compares all groups with all queues: one task, since it lists them, and a short queue."""

RELAY: Final = "relay"
"""Requests that wait for another machine: tasks on the loop."""

FAST_PORT_EXCLUDED: Final = (
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.POP_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
)
"""Codes that the fast port does not serve."""

HELD_READS: Final = (
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.POP_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.POP_LITE_MESSAGE,
    Code.NOTIFICATION,
)
"""Codes whose processors ask `HAService.refuses_readers` themselves, each time a request that waits
or whose messages had to be brought in is served again."""

LASTING: Final = (
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.END_TRANSACTION,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.UNLOCK_BATCH_MQ,
)
"""Codes that clients send one-way, the last two of them just before they close the connection. They
are served also where it has closed before their turn."""

SHOWS_LOG: Final = frozenset(
    {
        # messages
        Code.QUERY_MESSAGE,
        Code.VIEW_MESSAGE_BY_ID,
        Code.CONSUME_MESSAGE_DIRECTLY,
        # units and ends of queues, and the times of messages there
        Code.QUERY_CONSUME_QUEUE,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_TOPIC_STATS_INFO,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.OBERTH_GET_RETENTION,
        Code.OBERTH_PURGE_TOPIC,
        Code.GET_LITE_TOPIC_INFO,
        Code.GET_LITE_GROUP_INFO,
        # how far somebody is in the log: a group, a delay level, the timer
        Code.QUERY_CONSUMER_OFFSET,
        Code.GET_CONSUME_STATS,
        Code.GET_BROKER_CONSUME_STATS,
        Code.QUERY_CONSUME_TIME_SPAN,
        Code.QUERY_CORRECTION_OFFSET,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
    }
)
"""Codes whose answers say what is in the log, besides those of `HELD_READS`.

A slave that may have to cut the end of its log answers none of them: whoever went on from an
offset there would pass by the messages that other replicas have in that place.
"""


class Burst(NamedTuple):
    """Neighbours of one turn together, on the loop; ``reject`` says why none is taken now."""

    codes: tuple[Code, ...]
    handler: BurstHandler
    reject: Reject | None = None
    body_size_max: int | None = None


class Timed(NamedTuple):
    """Neighbours of one turn together, on the loop, as far as the turn's time goes."""

    codes: tuple[Code, ...]
    handler: TimedHandler
    body_size_max: int | None = None


class Sync(NamedTuple):
    """A function: on the loop, or in a thread of a stage."""

    codes: tuple[Code, ...]
    handler: SyncHandler
    stage: str | None = None
    body_size_max: int | None = None


class Sliced(NamedTuple):
    """A generator, on the loop; other requests go on between its slices."""

    codes: tuple[Code, ...]
    handler: SlicedHandler
    body_size_max: int | None = None
    at_once: AtOnce | None = None


class Async(NamedTuple):
    """A coroutine function, in a task of a stage."""

    codes: tuple[Code, ...]
    handler: AsyncHandler
    stage: str
    body_size_max: int | None = None


Row: TypeAlias = Burst | Timed | Sync | Sliced | Async


def rows(of: Processors) -> Iterator[Row]:
    """Every code that the broker serves."""
    yield Burst(
        (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE),
        of.send.send,
        of.send.reject_sends,
        FRAME_SIZE_MAX,  # a message's own limit is told with its own code
    )
    yield Sync((Code.CONSUMER_SEND_MSG_BACK,), of.send_back.send_back)
    yield Timed((Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE), of.pull.pull)
    yield Async(
        (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), of.reply.reply, RELAY, FRAME_SIZE_MAX
    )
    yield Sync((Code.RECALL_MESSAGE,), of.recall.recall)
    yield Burst((Code.END_TRANSACTION,), of.transactions.end)
    yield Sync((Code.RESUME_CHECK_HALF_MESSAGE,), of.transactions.resume_check)

    yield Timed((Code.POP_MESSAGE,), of.pops.pop)
    yield Sync((Code.PEEK_MESSAGE,), of.pops.peek)
    yield Sync((Code.NOTIFICATION,), of.pops.notification)
    yield Sync((Code.POLLING_INFO,), of.pops.polling_info)
    yield Sync((Code.POP_LITE_MESSAGE,), of.lite_pops.pop)
    yield Sliced((Code.LITE_SUBSCRIPTION_CTL,), of.lite_pops.subscribe, LITE_SIZE_MAX)
    yield Burst((Code.ACK_MESSAGE,), of.acks.ack)
    yield Sliced((Code.BATCH_ACK_MESSAGE,), of.acks.batch_ack, ACKS_SIZE_MAX)
    yield Sync((Code.CHANGE_MESSAGE_INVISIBLETIME,), of.acks.change_invisible_time)
    yield Async((Code.QUERY_ASSIGNMENT,), of.assignment.query, RELAY)
    yield Async((Code.SET_MESSAGE_REQUEST_MODE,), of.assignment.set_mode, RELAY)
    yield Sliced((Code.GET_ALL_MESSAGE_REQUEST_MODE,), of.assignment.all_modes)

    yield Sliced(
        (Code.HEART_BEAT,), of.clients.heartbeat, HEARTBEAT_SIZE_MAX, of.clients.same_heartbeat
    )
    yield Sync((Code.UNREGISTER_CLIENT,), of.clients.unregister)
    yield Sync((Code.CHECK_CLIENT_CONFIG,), of.clients.check_client_config)
    yield Sliced(
        (Code.GET_CONSUMER_LIST_BY_GROUP,),
        of.consumers.list_consumers,
        at_once=of.consumers.list_few_consumers,
    )
    yield Sliced((Code.LOCK_BATCH_MQ,), of.consumers.lock, LOCK_BODY_SIZE_MAX)
    yield Sliced((Code.UNLOCK_BATCH_MQ,), of.consumers.unlock, LOCK_BODY_SIZE_MAX)
    # What is asked of a logical queue may lie on other brokers.
    consumers, static = of.consumers, of.static_topics
    for code, handler, answer in (
        (Code.QUERY_CONSUMER_OFFSET, consumers.query_offset, static.query_offset),
        (Code.UPDATE_CONSUMER_OFFSET, consumers.update_offset, static.update_offset),
        (Code.GET_MAX_OFFSET, consumers.max_offset, static.max_offset),
        (Code.GET_MIN_OFFSET, consumers.min_offset, static.min_offset),
        (
            Code.GET_EARLIEST_MSG_STORETIME,
            consumers.earliest_store_time,
            static.earliest_store_time,
        ),
        (Code.SEARCH_OFFSET_BY_TIMESTAMP, consumers.search_offset, static.search_offset),
    ):
        yield Sync((code,), static.front(handler, answer))
    yield Async((Code.UPDATE_AND_CREATE_STATIC_TOPIC,), static.update, RELAY, MAPPING_SIZE_MAX)

    yield Sync((Code.QUERY_MESSAGE,), of.query.query, QUERY)
    yield Sync((Code.VIEW_MESSAGE_BY_ID,), of.query.view, QUERY)
    yield Async((Code.GET_CONSUMER_RUNNING_INFO,), of.relay.running_info, RELAY)
    yield Async((Code.CONSUME_MESSAGE_DIRECTLY,), of.relay.consume_directly, RELAY)

    yield Burst((Code.UPDATE_AND_CREATE_TOPIC,), of.topics.create)
    yield Sliced((Code.UPDATE_AND_CREATE_TOPIC_LIST,), of.topics.create_list, LIST_SIZE_MAX)
    yield Async((Code.DELETE_TOPIC_IN_BROKER,), of.topics.delete, RELAY)
    yield Sliced((Code.GET_ALL_TOPIC_CONFIG,), of.topics.all_configs)
    yield Sync((Code.GET_TOPIC_CONFIG,), of.topics.config)
    yield Sliced((Code.GET_TOPIC_STATS_INFO,), of.topics.stats)
    yield Sync((Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,), of.topics.system_topics)
    yield Sliced((Code.QUERY_TOPIC_CONSUME_BY_WHO,), of.topics.consumed_by)
    yield Sync((Code.CLEAN_UNUSED_TOPIC,), of.topics.clean_unused, ADMIN)

    yield Sync((Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,), of.groups.update)
    yield Sliced(
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,), of.groups.update_list, LIST_SIZE_MAX
    )
    yield Sliced((Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,), of.groups.all_configs)
    yield Sync((Code.GET_SUBSCRIPTIONGROUP_CONFIG,), of.groups.config)
    yield Sync((Code.UPDATE_AND_GET_GROUP_FORBIDDEN,), of.groups.forbidden)
    yield Async((Code.DELETE_SUBSCRIPTIONGROUP,), of.groups.delete, RELAY)
    yield Sliced((Code.GET_CONSUMER_CONNECTION_LIST,), of.groups.consumers)
    yield Sliced((Code.GET_PRODUCER_CONNECTION_LIST,), of.groups.producers)
    yield Sliced((Code.GET_ALL_PRODUCER_INFO,), of.groups.all_producers)
    yield Sliced((Code.QUERY_TOPICS_BY_CONSUMER,), of.groups.topics_of_group)
    yield Sliced((Code.QUERY_SUBSCRIPTION_BY_CONSUMER,), of.groups.subscription)

    yield Sliced((Code.GET_CONSUME_STATS,), of.offsets.consume_stats)
    yield Sliced((Code.GET_BROKER_CONSUME_STATS,), of.offsets.broker_consume_stats)
    yield Sliced((Code.QUERY_CONSUME_TIME_SPAN,), of.offsets.consume_time_span)
    yield Sliced((Code.QUERY_CORRECTION_OFFSET,), of.offsets.correction_offset)
    yield Sliced((Code.GET_ALL_CONSUMER_OFFSET,), of.offsets.all_offsets)
    yield Sliced((Code.GET_ALL_DELAY_OFFSET,), of.offsets.all_delay_offsets)
    yield Sliced((Code.CLONE_GROUP_OFFSET,), of.offsets.clone)
    yield Sliced((Code.INVOKE_BROKER_TO_RESET_OFFSET,), of.offsets.reset)
    yield Async((Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,), of.offsets.consumer_status, RELAY)

    yield Sync((Code.UPDATE_BROKER_CONFIG,), of.broker.update_config)
    yield Sync((Code.GET_BROKER_CONFIG,), of.broker.get_config)
    yield Sync((Code.GET_BROKER_RUNTIME_INFO,), of.broker.runtime)
    yield Sync((Code.VIEW_BROKER_STATS_DATA,), of.broker.stats_data)
    yield Sliced((Code.QUERY_CONSUME_QUEUE,), of.broker.consume_queue)
    yield Sync((Code.CLEAN_EXPIRED_CONSUMEQUEUE,), of.broker.clean_expired_queues, ADMIN)
    yield Sync((Code.DELETE_EXPIRED_COMMITLOG,), of.broker.delete_expired_log, ADMIN)

    yield Sync((Code.GET_TIMER_CHECK_POINT,), of.replicas.timer_checkpoint)
    yield Sliced((Code.GET_TIMER_METRICS,), of.replicas.timer_metrics)
    yield Sync((Code.EXCHANGE_BROKER_HA_INFO,), of.replicas.exchange)
    yield Sync((Code.NOTIFY_MIN_BROKER_ID_CHANGE,), of.replicas.min_id_changed)
    yield Sync((Code.GET_BROKER_HA_STATUS,), of.replicas.status)
    yield Sync((Code.RESET_MASTER_FLUSH_OFFSET,), of.replicas.reset_flush_offset)
    yield Sync((Code.GET_BROKER_EPOCH_CACHE,), of.replicas.epochs)
    yield Sync((Code.NOTIFY_BROKER_ROLE_CHANGED,), of.replicas.role_changed)
    yield Sync((Code.OBERTH_GET_LOG_CHECKSUMS,), of.replicas.log_checksums, CHECKSUMS)

    yield Sync((Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,), of.store.compare_queues)
    yield Sync((Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,), of.store.export_config)
    yield Sync((Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,), of.store.set_cold_thresholds)
    yield Sync((Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,), of.store.remove_cold_threshold)
    yield Sync((Code.GET_COLD_DATA_FLOW_CTR_INFO,), of.store.cold_reads)
    yield Sync((Code.SET_COMMITLOG_READ_MODE,), of.store.set_read_mode)
    yield Sync((Code.SWITCH_TIMER_ENGINE,), of.store.switch_timer_engine)
    yield Sync((Code.POP_ROLLBACK,), of.store.pop_rollback)
    yield Async((Code.OBERTH_GET_RETENTION,), of.retention.report, RETENTION)
    yield Async((Code.OBERTH_PURGE_TOPIC,), of.retention.purge, RETENTION)

    for code, handle in of.lite.handlers().items():
        yield Sync((code,), handle)
    yield Async((Code.GET_LITE_TOPIC_INFO,), of.lite.find_topic_info, RELAY)
    yield Sliced((Code.GET_LITE_GROUP_INFO,), of.lite.group_info)

    yield Sync((Code.UPDATE_AND_CREATE_ACL_CONFIG,), of.accounts.update_account)
    yield Sync((Code.DELETE_ACL_CONFIG,), of.accounts.delete_account)
    yield Sync((Code.GET_BROKER_CLUSTER_ACL_INFO,), of.accounts.version)
    yield Sync((Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,), of.accounts.update_white_addresses)
    yield Sync((Code.GET_BROKER_CLUSTER_ACL_CONFIG,), of.accounts.accounts)
    for code, handle in of.users.handlers().items():
        yield Sync((code,), handle)


def register(table: ProcessorTable, of: Processors, config: BrokerConfig) -> None:
    """Fill a table, and make the stages that its rows name."""

    def refuse() -> Refusal | None:
        why = of.refuses_readers()
        return None if why is None else Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, why)

    wait_ms = config.wait_time_ms_in_admin_queue if config.broker_fast_failure_enable else None
    stages = {
        QUERY: Stage(QUERY, threads=2, queue_max=20_000, wait_ms_max=wait_ms),
        ADMIN: Stage(ADMIN, threads=1, wait_ms_max=wait_ms),
        CHECKSUMS: Stage(CHECKSUMS, threads=1, queue_max=64, wait_ms_max=wait_ms),
        RETENTION: Stage(RETENTION, tasks=1, queue_max=64, wait_ms_max=wait_ms),
        RELAY: Stage(RELAY, tasks=64),
    }
    table.let_last(LASTING)
    for row in rows(of):
        reject = refuse if SHOWS_LOG.issuperset(row.codes) else None
        match row:
            case Burst():
                table.burst(
                    row.codes, row.handler, reject=row.reject, body_size_max=row.body_size_max
                )
            case Timed():
                table.timed(row.codes, row.handler, body_size_max=row.body_size_max)
            case Sync():
                stage = stages[row.stage] if row.stage else None
                table.sync(
                    row.codes,
                    row.handler,
                    stage=stage,
                    reject=reject,
                    body_size_max=row.body_size_max,
                )
            case Sliced():
                table.sliced(
                    row.codes,
                    row.handler,
                    at_once=row.at_once,
                    reject=reject,
                    body_size_max=row.body_size_max,
                )
            case Async():
                table.async_(
                    row.codes,
                    row.handler,
                    stage=stages[row.stage],
                    reject=reject,
                    body_size_max=row.body_size_max,
                )
