"""broker.conf: the text of a broker's options, and the store's share of them.

One file holds the keys of several of RocketMQ's classes (store, broker, servers, client), so each
reader takes its own and knows the others' names: `BROKER_KEYS`. A key that nobody knows is reported
with the nearest one that somebody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from oberth.errors import OptionError
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.formats.message_store_config import (
    KEYS_WITHOUT_EFFECT,
    BrokerRole,
    FlushDiskType,
    MessageStoreConfig,
    StoreType,
)
from oberth.formats.options import (
    Line,
    Option,
    format_options,
    option,
    options_of,
    read_options,
    unknown_key_message,
    update_option,
)

__all__ = [
    "BROKER_KEYS",
    "KEYS_WITHOUT_EFFECT",
    "BrokerRole",
    "FlushDiskType",
    "Line",
    "MessageStoreConfig",
    "Option",
    "StoreType",
    "format_options",
    "format_properties",
    "option",
    "options_of",
    "parse_assignments",
    "parse_properties",
    "read_options",
    "read_store_config",
    "unknown_key_message",
    "update_option",
]


def read_store_config(
    data: bytes | str = "",
    *,
    name: str = "broker.conf",
    overrides: Mapping[str, str] | None = None,
    strict: bool = True,
) -> MessageStoreConfig:
    """The store's options from the text of a broker.conf and single settings.

    Args:
        data: the file's content; empty for none.
        name: what errors call the file.
        overrides: keys and values that win over the file's, as ``--set`` gives them.
        strict: whether a key that neither store nor broker knows is an error.

    Raises:
        ConfigFormatError: the text is no properties text.
        OptionError: an unknown key, or a value that does not parse or is out of range.
    """
    entries = {**parse_properties(data, name=name), **(overrides or {})}
    return MessageStoreConfig.from_properties(entries, also_known=BROKER_KEYS, strict=strict)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Entries from ``key=value`` texts, as a command line gives them.

    Raises:
        OptionError: one has no ``=`` or nothing before it.
    """
    entries: dict[str, str] = {}
    for text in assignments:
        key, found, value = text.partition("=")
        if not found or not key.strip():
            raise OptionError(f"{text!r} is not key=value")
        entries[key.strip()] = value.strip()
    return entries


# ruff: noqa: SIM905 - 310 names one a line would be the longest list of the house.
BROKER_KEYS: Final = frozenset(
    """
    accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    aclEnable adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync asyncSendEnable
    authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats bindAddress broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable
    brokerHeartbeatInterval brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis
    brokerPermission brokerTopicEnable cgColdReadThreshold channelExpiredTimeout
    channelNotActiveInterval checkSyncStateSetPeriod cleanOfflineBrokerInterval
    clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads clusterName clusterTopicEnable coldCtrStrategyEnable commercialBaseCount
    commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount
    commercialTransCount compatibleWithOldNameSrv compressedRegister configBlackList
    configManagerVersion configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
    defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums
    delayOffsetUpdateVersionStep disableCallbackExecutor disableConsumeIfConsumerReadSlowly
    disableNettyWorkerGroup enableBroadcastOffsetStore enableCalcFilterBitMap
    enableConnectionMetrics enableControllerMode enableCreateSysGroup enableDetailStat
    enableFastChannelEventProcess enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog
    enableLmqStats enableMessageStoreMetrics enableMixedMessageType enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
    enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableShutdownGracefully
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster
    enableSplitMetadata enableSplitRegistration enableStatsMetrics enableTransactionMetrics
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval forceRegister forwardTimeout globalColdReadThreshold
    heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
    initAuthenticationUser initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials
    isBrokerContainer isInBrokerContainer isScanAvailableNameSrv isolateLogEnable listenPort
    liteEventCheckInterval liteEventFullDispatchDelayTime
    liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
    liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
    litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills liteTtlCheckInterval
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity lockInStrictMode longPollingEnable maxClientEventCount
    maxDelayTime maxErrorRateOfBloomFilter maxLiteSubscriptionCount
    maxMessageFilterNumForNotification maxPopPollingSize maxReconnectIntervalTimeSeconds
    maxStatsIdleTimeInMinutes messageStorePlugIn metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled minLiteTTl
    msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable
    persistConsumerOffsetIncrementally popCkMaxBufferSize popCkOffsetMaxQueueSize
    popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popFromRetryProbabilityForPriority popInflightMessageThreshold
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent
    printChannelGroups printChannelGroupsMinNum priorityOrderAsc
    processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity realTimeNotifyConsumerChange recallMessageEnable
    recoverConcurrently recoverThreadPoolNums regionId registerBrokerTimeoutMills
    registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage
    replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
    reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome
    sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
    serverLoadBalancerEnable serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shortPollingTimeMills
    shutdownWaitTimeSeconds skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
    socksProxyConfig splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    storeReplyMessageEnable subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
    transactionTimeOut transferMsgByHeap updateNameServerAddrPeriod useEpollNativeSelector
    useMessageFilterForNotification usePIDColdCtrStrategy useSeparateRetryQueue
    useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription useTLS
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue writeBufferHighWaterMark
    writeBufferLowWaterMark
    """.split()
)
"""What broker.conf may hold besides the store's keys: BrokerConfig, Netty servers and clients, and
authentication, of 4.9.7 and 5.5.0. Only names: the broker knows what they mean."""
