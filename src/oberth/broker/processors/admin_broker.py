"""The broker itself: 25, 26, 28, 306, 315, 321, 329. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Final

from oberth.broker.broker_config import format_config
from oberth.broker.runtime_info import runtime_info
from oberth.broker.stats import BROKER_GET_NUMS, BROKER_PUT_NUMS
from oberth.errors import ConfigFormatError, OptionError
from oberth.formats.broker_conf import BROKER_KEYS
from oberth.formats.config_json import encode_config
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    QueryConsumeQueueRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger("oberth.broker")

QUERY_UNITS_MAX: Final = 10_000
"""Units that one QUERY_CONSUME_QUEUE shows."""

CHANGEABLE_KEYS: Final = frozenset(
    {
        "appendTopicForTimerDeleteKey",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cgColdReadThreshold",
        "channelExpiredTimeout",
        "coldDataFlowControlEnable",
        "defaultTopicQueueNums",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "enableMixedMessageType",
        "enableNotifyAfterPopOrderLockRelease",
        "enablePopBufferMerge",
        "enablePropertyFilter",
        "enableSingleTopicRegister",
        "enableSplitRegistration",
        "fileReservedTime",
        "flushConsumerOffsetInterval",
        "globalColdReadThreshold",
        "litePullMessageEnable",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
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
"""Options of Apache's (sizes of its thread pools among them) that tools switch while a broker runs
and that have nothing to switch here: taken and left alone, as in a broker.conf, because whoever
sends one has no use for a refusal."""

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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change options while the broker runs; all of them or none."""
        broker = self._broker
        try:
            entries = parse_properties(request.body_bytes(), name="UPDATE_BROKER_CONFIG")
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        black = {*REFUSED_KEYS, *broker.config.config_black_list.split(";")}
        refused = [key for key in entries if key in black]
        if refused:
            _LOG.warning("%s: %s may not be changed", channel.remote, ", ".join(refused)[:1000])
            return create_response(
                request, ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        for key in UNUSED_KEYS & entries.keys():
            _LOG.info("%s: %s means nothing here", channel.remote, key)
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
            broker.update_config(entries)
        except OptionError as error:
            return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        _LOG.warning("%s changed %s", channel.remote, ", ".join(sorted(entries)))
        return create_response(request, ResponseCode.SUCCESS)

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """26: every option, without the secrets among them."""
        del channel
        broker = self._broker
        entries = {
            key: "" if is_secret(key) else value
            for key, value in (
                SHOWN_TO_TOOLS | format_config(broker.config, broker.store_config)
            ).items()
        }
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={
                "version": json.dumps(broker.config_version.to_json(), separators=(",", ":"))
            },
            body=format_properties(entries).encode(),
        )

    def runtime(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """28: how the broker is doing."""
        del channel
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config({"table": runtime_info(self._broker)}, pretty=False),
        )

    def clean_expired_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """306: delete queues whose last message has left the log. Blocks."""
        del channel
        count = self._broker.store.clean_expired_consume_queues()
        _LOG.warning("%d consume queues had expired", count)
        return create_response(request, ResponseCode.SUCCESS)

    def delete_expired_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """329: clean the log whatever the hour."""
        del channel
        self._broker.store.delete_expired_files_manually()
        return create_response(request, ResponseCode.SUCCESS)

    def stats_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """315: one counter."""
        del channel
        header = request.header(ViewBrokerStatsDataRequestHeader)
        found = self._broker.stats.find(header.stats_name, header.stats_key)
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

    def consume_queue(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """321: units of a queue, and whether a group's filter lets them through."""
        del channel
        self._broker.dispatch_now()
        header = request.header(QueryConsumeQueueRequestHeader)
        broker = self._broker
        store = broker.store
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
            subscription = broker.consumers.find_subscription(header.consumer_group, topic)
        count = min(max(header.count, 0), QUERY_UNITS_MAX)
        start = max(header.index, queue.min_offset)
        units = [
            {
                "eval": False,
                "physicOffset": unit.commit_log_offset,
                "physicSize": unit.record_size,
                "tagsCode": unit.tags_code,
            }
            for unit in store.iterate_consume_queue(topic, header.queue_id, start, count)
        ]
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
            "queueData": units,
            "subscriptionData": None if subscription is None else subscription.to_body(),
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )


def is_secret(key: str) -> bool:
    """Whether an option holds what not everybody may read."""
    return "Credential" in key or "Password" in key or key == "initAuthenticationUser"
