"""The broker itself: 25, 26, 28, 306, 315, 321, 329. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.broker_config import format_config
from oberth.broker.config_changes import is_secret
from oberth.broker.stats import BROKER_GET_NUMS, BROKER_PUT_NUMS
from oberth.errors import ConfigFormatError, OptionError
from oberth.formats.broker_conf import BROKER_KEYS
from oberth.formats.config_json import Shown, config_in_slices, encode_config
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    QueryConsumeQueueRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.config_changes import ConfigChanges
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.runtime_info import RuntimeInfo
    from oberth.broker.stats import BrokerStats
    from oberth.formats.consume_queue import ConsumeQueueUnit
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

QUERY_UNITS_MAX: Final = 10_000
"""Units that one QUERY_CONSUME_QUEUE shows."""

UNITS_A_TURN: Final = 500
"""Units that one turn of the loop reads for it."""

CHANGEABLE_KEYS: Final = frozenset(
    {
        "appendTopicForTimerDeleteKey",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cgColdReadThreshold",
        "channelExpiredTimeout",
        "cleanFileForciblyEnable",
        "coldDataFlowControlEnable",
        "defaultTopicQueueNums",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "enableAutoInSyncReplicas",
        "enableMixedMessageType",
        "enableNotifyAfterPopOrderLockRelease",
        "enablePopBufferMerge",
        "enablePropertyFilter",
        "enableSingleTopicRegister",
        "enableSplitRegistration",
        "fileReservedTime",
        "flushConsumerOffsetInterval",
        "globalColdReadThreshold",
        "inSyncReplicas",
        "litePullMessageEnable",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "minInSyncReplicas",
        "notifyConsumerIdsChangedEnable",
        "popFromRetryProbability",
        "popFromRetryProbabilityForPriority",
        "priorityOrderAsc",
        "recallMessageEnable",
        "registerNameServerPeriod",
        "rejectPullConsumerEnable",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "slaveTimeout",
        "startAcceptSendRequestTimeStamp",
        "subscriptionExpiredTimeout",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "useSeparateRetryQueue",
        "useServerSideResetOffset",
    }
)
"""Options that UPDATE_BROKER_CONFIG may change. None of them is a path or starts anything: both
have been ways into RocketMQ's machines (CVE-2023-33246, CVE-2023-37582)."""

UNUSED_KEYS: Final = frozenset(
    {
        "estimateAccumulation",
        "popConsumerKVServiceEnable",
        "popConsumerKVServiceLog",
        *(key for key in BROKER_KEYS if key.endswith(("ThreadPoolNums", "QueueCapacity"))),
    }
)
"""Apache's options that tools change while a broker runs and that change nothing here, such as the
sizes of its thread pools. They are accepted and ignored, as in a broker.conf: a tool that sends one
could do nothing about a refusal."""

SHOWN_TO_TOOLS: Final = {
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
    "filterServerNums": "0",
    "useTLS": "false",
}
"""Options of Apache's without which exportConfigs and exportMetrics fail or leave a gap: they read
the number of processors from the first; the others are what they are in every broker of ours."""

REFUSED_KEYS: Final = ("brokerConfigPath", "rocketmqHome", "configBlackList")


class BrokerAdminProcessor:
    """Shows and changes the broker's own state."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        consumers: ConsumerTable,
        stats: BrokerStats,
        dispatch_now: Callable[[], None],
        changes: ConfigChanges,
        runtime_info: RuntimeInfo,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._consumers = consumers
        self._stats = stats
        self._dispatch_now = dispatch_now
        self._changes = changes
        self._runtime_info = runtime_info

    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change options while the broker runs; all of them or none."""
        try:
            entries = parse_properties(request.body_bytes(), name="UPDATE_BROKER_CONFIG")
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        black = {*REFUSED_KEYS, *self._config.config_black_list.split(";")}
        refused = [key for key in entries if key in black]
        if refused:
            _LOG.warning(
                "%s asked to change %s, which nobody may change over the network",
                channel.remote,
                ", ".join(refused)[:1000],
            )
            return create_response(
                request, ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        for key in UNUSED_KEYS & entries.keys():
            _LOG.info("%s set %s, which changes nothing in this broker", channel.remote, key)
            del entries[key]
        fixed = [key for key in entries if key not in CHANGEABLE_KEYS]
        if fixed:
            return create_response(
                request,
                ResponseCode.NO_PERMISSION,
                f"{', '.join(sorted(fixed))[:1000]}: cannot be changed while the broker runs; "
                f"allowed are {', '.join(sorted(CHANGEABLE_KEYS))}",
            )
        try:
            self._changes.update(entries)
        except OptionError as error:
            return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        _LOG.warning("%s changed the settings %s", channel.remote, ", ".join(sorted(entries)))
        return create_response(request, ResponseCode.SUCCESS)

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """26: every option, without the secrets among them."""
        del channel
        entries = {
            key: "" if is_secret(key) else value
            for key, value in (
                SHOWN_TO_TOOLS | format_config(self._config, self._store_config)
            ).items()
        }
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={
                "version": json.dumps(self._changes.version.to_json(), separators=(",", ":"))
            },
            body=format_properties(entries).encode(),
        )

    def runtime(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: how the broker is doing, with what was appended up to now."""
        del channel
        self._dispatch_now()
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config({"table": self._runtime_info.table()}, pretty=False),
        )

    def clean_expired_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """306: delete queues whose last message has left the log. Blocks."""
        del channel
        count = self._store.clean_expired_consume_queues()
        _LOG.warning("%d consume queues had expired and were deleted", count)
        return create_response(request, ResponseCode.SUCCESS)

    def delete_expired_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """329: clean the log whatever the hour."""
        del channel
        self._store.delete_expired_files_manually()
        return create_response(request, ResponseCode.SUCCESS)

    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """315: one counter."""
        del channel
        header = request.header(ViewBrokerStatsDataRequestHeader)
        found = self._stats.find(header.stats_name, header.stats_key)
        if found is None or (
            not found.times and header.stats_name not in (BROKER_PUT_NUMS, BROKER_GET_NUMS)
        ):
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(found.to_body(), pretty=False)
        )

    def consume_queue(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """321: units of a queue, and whether a group's filter lets them through."""
        del channel
        self._dispatch_now()
        header = request.header(QueryConsumeQueueRequestHeader)
        store = self._store
        topic = header.topic or ""
        queue = store.queue(topic, header.queue_id)
        if queue is None:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"{header.queue_id}@{topic} is not exist!",
            )
        subscription = None
        if header.consumer_group:
            subscription = self._consumers.find_subscription(header.consumer_group, topic)
        count = min(max(header.count, 0), QUERY_UNITS_MAX)
        start = max(header.index, queue.min_offset)
        units: list[ConsumeQueueUnit] = []
        while (wanted := min(count - len(units), UNITS_A_TURN)) > 0:
            more = store.iterate_consume_queue(topic, header.queue_id, start + len(units), wanted)
            units += more
            if len(more) < wanted:
                break
            yield
        filter_data = None
        if header.consumer_group:
            filter_data = (
                f"{header.consumer_group}@{topic} is not online!"
                if subscription is None
                else "null"
            )
        body = {
            "filterData": filter_data,
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": Shown(units, _shown_unit),
            "subscriptionData": None if subscription is None else subscription.to_body(),
        }
        raw = yield from config_in_slices(body)
        return create_response(request, ResponseCode.SUCCESS, body=raw)


def _shown_unit(unit: ConsumeQueueUnit) -> dict[str, Any]:
    return {
        "eval": False,
        "physicOffset": unit.commit_log_offset,
        "physicSize": unit.record_size,
        "tagsCode": unit.tags_code,
    }
