"""BrokerConfig: the options of a broker beside those of its store.

Keys, spelling and defaults are Apache's 5.5.0 unless a line says otherwise; `KEYS` of the class are
the ones that mean something here, and `formats.broker_conf.BROKER_KEYS` are those that a
``broker.conf`` may hold without a warning. RocketMQ: BrokerConfig, NettyServerConfig.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from oberth.errors import OptionError
from oberth.formats.broker_conf import BROKER_KEYS, KEYS_WITHOUT_EFFECT, MessageStoreConfig
from oberth.formats.java_properties import (
    PlacedText,
    bare_lines,
    parse_properties,
    place_of,
)
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.options import (
    format_options,
    naming_places,
    option,
    options_of,
    read_options,
    unknown_key_message,
)
from oberth.remoting.first_bytes import AddressSet, TrustedProxies

ENVIRONMENT_PREFIX: Final = "OBERTH_"
"""``OBERTH_brokerName=a`` sets brokerName: the prefix, then the key as broker.conf has it."""

NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
"""The variable that Apache's broker and clients read for namesrvAddr."""

DEFAULT_PORT: Final = 10911
FAST_PORT_DISTANCE: Final = 2
"""The fast (VIP) port lies this much below the port: clients compute it."""

PORT_MAX: Final = 65535

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


@dataclass(slots=True, kw_only=True)
class BrokerConfig:
    """What a broker is and does. Mutable: some keys may be changed while it runs.

    ``listen_host`` and ``namesrv_addr`` decide who can reach the broker and where it is announced.
    """

    # Identity
    broker_cluster_name: str = option(
        "brokerClusterName", "DefaultCluster", "name of the broker's cluster"
    )
    broker_name: str = option("brokerName", "", "name of master and slaves; empty: the host's name")
    broker_id: int = option("brokerId", 0, "0 is the master, above 0 a slave")
    enable_controller_mode: bool = option(
        "enableControllerMode", False, "a controller says whether this broker is the master"
    )
    controller_addr: str = option(
        "controllerAddr", "", "host:port;host:port of controllers, with enableControllerMode"
    )
    controller_heartbeat_timeout_ms: int = option(
        "controllerHeartBeatTimeoutMills", 10_000,
        "ms of silence after which the controller takes this broker for dead", low=1,
    )  # fmt: skip
    broker_heartbeat_interval_ms: int = option(
        "brokerHeartbeatInterval",
        1000,
        "ms between heartbeats to controllers, or to name servers with enableSlaveActingMaster",
        low=1,
    )
    broker_election_priority: int = option(
        "brokerElectionPriority", 2**31 - 1,
        "of replicas with equal logs the controller elects the one with the smallest",
    )  # fmt: skip
    enable_slave_acting_master: bool = option(
        "enableSlaveActingMaster", False,
        "while the master is away its slave with the smallest id delivers what is due",
    )  # fmt: skip
    enable_remote_escape: bool = option(
        "enableRemoteEscape", False,
        "an acting slave sends what it delivers to brokers of other names",
    )  # fmt: skip
    skip_pre_online: bool = option(
        "skipPreOnline", False, "with enableSlaveActingMaster: go online at once"
    )
    broker_not_active_timeout_ms: int = option(
        "brokerNotActiveTimeoutMillis", 10_000,
        "with enableSlaveActingMaster: silence after which name servers take the broker for gone",
        low=1,
    )  # fmt: skip
    sync_broker_metadata_period_ms: int = option(
        "syncBrokerMetadataPeriod", 5000, "ms between questions for the master at controllers",
        low=1,
    )  # fmt: skip
    region_id: str = option("regionId", "DefaultRegion", "told to producers in MSG_REGION")
    broker_permission: int = option(
        "brokerPermission", 6, "what clients may do: 4 read, 2 write, 6 both", high=15
    )

    # Addresses
    listen_host: str = option(
        "bindAddress", "127.0.0.1", "address to listen on; Apache's default is every address"
    )
    listen_port: int = option("listenPort", DEFAULT_PORT, "0: any free one", high=PORT_MAX)
    fast_listen_port: int = option(
        "fastListenPort", -1, "-1: listenPort - 2, or any free one; 0: none (Oberth's own key)",
        low=-1, high=PORT_MAX,
    )  # fmt: skip
    broker_ip1: str = option(
        "brokerIP1", "", "address that clients are told; empty: the one it listens on"
    )
    broker_ip2: str = option("brokerIP2", "", "address for slaves; empty: brokerIP1")
    namesrv_addr: str | None = option("namesrvAddr", None, "host:port;host:port of name servers")
    server_channel_max_idle_time_s: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "seconds of silence after which a peer is dropped"
    )
    busy_poll_us: int = option(
        "busyPollMicros", 400,
        "us behind an answer for which the broker stays awake if one peer alone asks, each time "
        "sooner than that, over gRPC 2.5 times as long: takes what is idle of a processor; 0, or "
        "fewer than two processors: never (Oberth's own key)",
        high=100_000,
    )  # fmt: skip
    slow_senders_behind_bytes: int = option(
        "slowSendersBehindBytes", -1,
        "bytes that a connected group may be behind before senders of its topic are slowed down: "
        "-1: the part of memory that accessMessageInMemoryMaxRatio says, 0: never (Oberth's own "
        "key)",
        low=-1,
    )  # fmt: skip
    tls_mode: str = option(
        "tlsServerMode", "permissive", "disabled, permissive or enforcing (tls.server.mode)"
    )
    tls_cert_path: str = option("tlsServerCertPath", "", "PEM certificate chain of the server")
    tls_key_path: str = option("tlsServerKeyPath", "", "PEM key of the certificate")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath", "",
        "PEM certificates by which those of name servers, controllers and brokers are judged; they "
        "are asked over TLS with this, and with tlsServerMode=enforcing (tls.client.trustCertPath)",
    )  # fmt: skip
    ha_allowed_addresses: str = option(
        "haAllowedAddresses",
        "",
        "addresses and networks (10.0.0.7;192.168.0.0/16) that may connect to the HA port, which "
        "sends them the whole log; empty: any, or with access control nobody (Oberth's own key)",
    )
    ha_tls_cert_path: str = option(
        "haTlsCertPath",
        "",
        "PEM certificate chain that this broker shows on the HA port, where then nothing but TLS "
        "is spoken; needs haTlsTrustCertPath; Apache's brokers cannot (Oberth's own key)",
    )
    ha_tls_key_path: str = option(
        "haTlsKeyPath",
        "",
        "PEM key of haTlsCertPath; empty: it is in the same file (Oberth's own key)",
    )
    ha_tls_trust_cert_path: str = option(
        "haTlsTrustCertPath",
        "",
        "PEM certificates by which the peer's on the HA port is judged (Oberth's own key)",
    )
    proxy_protocol_trusted: str = option(
        "proxyProtocolTrusted",
        "",
        "addresses and networks (10.0.0.7;192.168.0.0/16) whose PROXY headers are believed; every "
        "other peer that sends one is closed; Apache 5.5 believes all",
    )

    grpc_server_port: int = option(
        "grpcServerPort", -1,
        "port for RocketMQ 5's gRPC clients: -1: none, 0: any free one; `oberth up` takes 8081 "
        "unless listenPort is 0; Apache's proxy has this key",
        low=-1, high=PORT_MAX,
    )  # fmt: skip
    grpc_date_age_max_s: int = option(
        "grpcDateAgeMaxSeconds", 0,
        "s that the signed date of a gRPC call may differ from this machine's UTC, so that a call "
        "that was overheard is not valid for ever; 0: any. The client for Java signs its local "
        "time (Oberth's own key)",
    )  # fmt: skip

    min_invisible_ms_for_receive: int = option(
        "minInvisibleTimeMillsForRecv", 10_000,
        "ms: the shortest time for which gRPC clients may be handed a message; Apache's proxy has "
        "this key",
        high=43_200_000,
    )  # fmt: skip
    grpc_poll_ms_min: int = option(
        "grpcClientConsumerMinLongPollingTimeoutMillis", 5_000,
        "ms: the shortest time for which a gRPC client's receive waits for messages; Apache's "
        "proxy has this key",
        high=20_000,
    )  # fmt: skip

    # Access control
    acl_enable: bool = option(
        "aclEnable", False, "only accounts of plain_acl.yml may ask for anything"
    )
    acl_file: str = option(
        "aclFile", "", "that file; empty: config/plain_acl.yml of the store (Oberth's own key)"
    )
    authentication_enabled: bool = option(
        "authenticationEnabled", False, "only users of 3001 to 3005 may ask for anything"
    )
    authorization_enabled: bool = option(
        "authorizationEnabled", False, "and only for what policies of 3006 to 3010 grant them"
    )
    init_authentication_user: str = option(
        "initAuthenticationUser", "", "JSON with username and password: made as Super user at start"
    )
    inner_client_authentication_credentials: str = option(
        "innerClientAuthenticationCredentials", "",
        "JSON with accessKey and secretKey: what the broker signs its own requests with",
    )  # fmt: skip
    listen_without_access_control: bool = option(
        "listenWithoutAccessControl", False,
        "let everybody who reaches bindAddress do everything (Oberth's own key)",
    )  # fmt: skip

    # Observation
    http_address: str = option(
        "httpAddress", "127.0.0.1", "where /metrics, /healthz and /readyz listen (Oberth's own key)"
    )
    http_port: int = option(
        "httpPort", -1, "their port; -1: none, 0: any free one (Oberth's own key)",
        low=-1, high=PORT_MAX,
    )  # fmt: skip

    # Registration
    register_name_server_period_ms: int = option(
        "registerNameServerPeriod", 30_000, "ms between registrations, kept within 10 to 60 s"
    )
    register_broker_timeout_ms: int = option(
        "registerBrokerTimeoutMills", 24_000, "ms that one registration may take"
    )
    force_register: bool = option("forceRegister", True, "send the full table every period")
    compressed_register: bool = option(
        "compressedRegister", False, "compress registrations at name servers with zlib"
    )
    enable_single_topic_register: bool = option(
        "enableSingleTopicRegister", False,
        "announce a changed topic by itself, as a name server with "
        "deleteTopicWithBrokerRegistration needs it",
    )  # fmt: skip
    enable_split_registration: bool = option(
        "enableSplitRegistration", False, "send the full table in parts of splitRegistrationSize"
    )
    split_registration_size: int = option(
        "splitRegistrationSize", 800,
        "topics of one part; a name server takes a single one only from a broker that it knows",
        low=2,
    )  # fmt: skip

    # Topics and groups
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums",
        8,
        "queues of TBW102, the template of topics that sends create",
        high=65536,
    )
    auto_create_topic_enable: bool = option(
        "autoCreateTopicEnable", True, "first send makes a topic"
    )
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup", True, "first use makes a group"
    )
    cluster_topic_enable: bool = option(
        "clusterTopicEnable", True, "perm 7 for the cluster's topic"
    )
    broker_topic_enable: bool = option("brokerTopicEnable", True, "perm 7 for the broker's topic")
    trace_topic_enable: bool = option("traceTopicEnable", False, "make the trace topic at start")
    msg_trace_topic_name: str = option(
        "msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the trace topic"
    )
    trace_on: bool = option("traceOn", True, "told to producers in TRACE_ON")
    enable_mixed_message_type: bool = option(
        "enableMixedMessageType", False, "allow message.type=MIXED"
    )
    validate_system_topic_when_update_topic: bool = option(
        "validateSystemTopicWhenUpdateTopic", True, "refuse to create system topics"
    )
    notify_consumer_ids_changed_enable: bool = option(
        "notifyConsumerIdsChangedEnable", True, "tell a group when its members change"
    )
    reject_pull_consumer_enable: bool = option(
        "rejectPullConsumerEnable", False, "refuse consumers that pull actively"
    )
    clear_retry_topic_when_delete_topic: bool = option(
        "clearRetryTopicWhenDeleteTopic", True, "also delete POP retry topics"
    )

    # Sending
    reject_transaction_message: bool = option(
        "rejectTransactionMessage", False, "refuse half messages"
    )
    start_accept_send_request_timestamp: int = option(
        "startAcceptSendRequestTimeStamp", 0, "ms since the epoch before which sends are refused",
        high=2**63 - 1,
    )  # fmt: skip
    store_reply_message_enable: bool = option(
        "storeReplyMessageEnable", True, "keep the replies of request-reply"
    )
    recall_message_enable: bool = option(
        "recallMessageEnable", False, "delayed sends can be recalled"
    )

    # Pulling
    long_polling_enable: bool = option("longPollingEnable", True, "hold a pull that found nothing")
    short_polling_time_ms: int = option(
        "shortPollingTimeMills",
        1000,
        "ms that a pull without messages waits when longPollingEnable is false",
    )
    lite_pull_message_enable: bool = option(
        "litePullMessageEnable", True, "answer LITE_PULL_MESSAGE"
    )

    # Lite topics
    lite_event_check_interval_ms: int = option(
        "liteEventCheckInterval",
        10_000,
        "ms between looks for clients that do not come for their lite topics",
        low=1,
    )
    max_client_event_count: int = option(
        "maxClientEventCount", 100, "lite topics with something to take noted per client", low=1
    )
    lite_event_full_dispatch_delay_ms: int = option(
        "liteEventFullDispatchDelayTime",
        10_000,
        "ms from a full list of them to a look at all that the client takes",
    )
    lite_event_full_dispatch_delay_wildcard_ms: int = option(
        "liteEventFullDispatchDelayTimeForWildcardGroup",
        10_000,
        "the same for a group that takes every lite topic",
    )
    max_lite_subscription_count: int = option(
        "maxLiteSubscriptionCount", 100_000, "pairs of a client and a lite topic"
    )
    lite_subscription_check_interval_ms: int = option(
        "liteSubscriptionCheckInterval", 120_000, "ms between looks for silent clients", low=1
    )
    lite_subscription_check_timeout_ms: int = option(
        "liteSubscriptionCheckTimeoutMills",
        180_000,
        "ms without a word after which a client takes no lite topics any more",
    )
    lite_ttl_check_interval_ms: int = option(
        "liteTtlCheckInterval", 120_000, "ms between looks for expired lite topics", low=1
    )
    min_lite_ttl_ms: int = option(
        "minLiteTTl", 900_000, "ms after a start, or a message, before a lite topic may expire"
    )
    lite_lag_latency_collect_enable: bool = option(
        "liteLagLatencyCollectEnable", False, "tell the oldest unconsumed lite topics of a group"
    )

    # Between brokers and slaves
    forward_timeout_ms: int = option(
        "forwardTimeout",
        3000,
        "ms that another broker gets to answer for its part of a queue",
        low=1,
    )
    slave_read_enable: bool = option("slaveReadEnable", False, "send slow consumers to a slave")
    cg_cold_read_threshold: int = option(
        "cgColdReadThreshold",
        3 << 20,
        "bytes of old messages that a group may read in 5 s, with coldDataFlowControlEnable",
        low=0,
    )
    global_cold_read_threshold: int = option(
        "globalColdReadThreshold", 100 << 20, "the same for all groups together", low=0
    )
    enable_property_filter: bool = option(
        "enablePropertyFilter", False, "allow SQL92 subscriptions"
    )
    enable_calc_filter_bit_map: bool = option(
        "enableCalcFilterBitMap", False, "filter at dispatch and keep the result"
    )
    filter_support_retry: bool = option(
        "filterSupportRetry", False, "judge retries by the SQL92 expression of their real topic"
    )
    expect_consumer_num_use_filter: int = option(
        "expectConsumerNumUseFilter", 32, "consumers for which the Bloom filter is made", low=1
    )
    max_error_rate_of_bloom_filter: int = option(
        "maxErrorRateOfBloomFilter", 20, "per cent", low=1, high=99
    )
    filter_data_clean_time_span_ms: int = option(
        "filterDataCleanTimeSpan", 86_400_000, "ms that a dead filter is kept"
    )

    # POP
    pop_from_retry_probability: int = option(
        "popFromRetryProbability", 20, "per cent of pops that look for retries first", high=100
    )
    pop_from_retry_probability_for_priority: int = option(
        "popFromRetryProbabilityForPriority", 0, "the same for pops by priority", high=100
    )
    priority_order_asc: bool = option(
        "priorityOrderAsc", True, "a higher number is a higher priority"
    )
    use_separate_retry_queue: bool = option(
        "useSeparateRetryQueue", False,
        "POP retry topics have the queues of their topic, so that retries keep their priority",
    )  # fmt: skip
    enable_notify_after_pop_order_lock_release: bool = option(
        "enableNotifyAfterPopOrderLockRelease", True,
        "an ordered pop that waits is answered as soon as its queue is no longer blocked",
    )  # fmt: skip
    enable_retry_topic_v2: bool = option(
        "enableRetryTopicV2", False, "name POP retry topics group+topic instead of group_topic"
    )
    retrieve_message_from_pop_retry_topic_v1: bool = option(
        "retrieveMessageFromPopRetryTopicV1", True, "with v2: also read the older retry topics"
    )
    enable_pop_buffer_merge: bool = option(
        "enablePopBufferMerge", False, "keep check points in memory while acks come"
    )
    pop_ck_stay_buffer_time_ms: int = option(
        "popCkStayBufferTime", 10_000, "ms that a check point stays in memory"
    )
    pop_ck_stay_buffer_timeout_ms: int = option(
        "popCkStayBufferTimeOut", 3000, "ms before its time at which it is stored in any case"
    )
    pop_ck_max_buffer_size: int = option(
        "popCkMaxBufferSize", 200_000, "check points of POP that are kept in memory", low=1
    )
    pop_polling_size: int = option(
        "popPollingSize", 1024, "pops that wait at one queue for one group", low=1
    )
    max_pop_polling_size: int = option(
        "maxPopPollingSize", 100_000, "pops that may wait for messages at the same time", low=1
    )
    default_message_request_mode: str = option(
        "defaultMessageRequestMode", "PULL", "PULL or POP, where no mode was set"
    )
    default_pop_share_queue_num: int = option(
        "defaultPopShareQueueNum", -1, "clients that share a queue; up to 0: all", low=-1
    )
    server_load_balancer_enable: bool = option(
        "serverLoadBalancerEnable", True, "assign queues; off: everybody gets all"
    )

    # Offsets
    flush_consumer_offset_interval_ms: int = option(
        "flushConsumerOffsetInterval", 5000, "ms between writes of consumerOffset.json", low=1
    )
    consumer_offset_update_version_step: int = option(
        "consumerOffsetUpdateVersionStep", 500, "commits that make a new data version", low=1
    )
    delay_offset_update_version_step: int = option(
        "delayOffsetUpdateVersionStep", 200, "deliveries that make a new data version", low=1
    )
    use_server_side_reset_offset: bool = option(
        "useServerSideResetOffset", True, "222 answers the next pull instead of calling clients"
    )

    # Clients
    channel_expired_timeout_ms: int = option(
        "channelExpiredTimeout", 120_000, "ms without a heartbeat after which a client is dropped"
    )
    subscription_expired_timeout_ms: int = option(
        "subscriptionExpiredTimeout", 600_000, "ms after which an unused subscription is dropped"
    )
    rebalance_lock_max_live_time_ms: int = option(
        "rebalanceLockMaxLiveTime", 60_000,
        "ms that a queue stays locked (rocketmq.broker.rebalance.lockMaxLiveTime)",
    )  # fmt: skip

    # Transactions
    transaction_timeout_ms: int = option("transactionTimeOut", 6000, "ms before the first check")
    transaction_check_max: int = option(
        "transactionCheckMax", 15, "checks before a half is dropped"
    )
    transaction_check_interval_ms: int = option(
        "transactionCheckInterval", 30_000, "ms between two checks of half messages", low=1
    )
    transaction_op_msg_max_size: int = option(
        "transactionOpMsgMaxSize", 4096, "bytes that close a batch of op offsets", low=32
    )
    transaction_op_batch_interval_ms: int = option(
        "transactionOpBatchInterval", 3000, "ms that an op offset waits for others"
    )

    # Flow control
    broker_fast_failure_enable: bool = option(
        "brokerFastFailureEnable", True, "answer requests that waited too long with code 2"
    )
    wait_time_ms_in_admin_queue: int = option(
        "waitTimeMillsInAdminBrokerQueue",
        5000,
        "ms that an administrative request may wait before it is refused",
    )

    config_black_list: str = option("configBlackList", "", "keys that 25 refuses, joined by ;")
    broker_config_path: str = option("brokerConfigPath", "", "configuration file that was read")

    def __post_init__(self) -> None:
        if not self.broker_name:
            self.broker_name = default_broker_name()
        if not (
            is_loopback(self.listen_host)
            or self.acl_enable
            or self.authentication_enabled
            or self.listen_without_access_control
        ):
            raise OptionError(
                f"bindAddress {self.listen_host} is reached by other machines and there is no "
                "access control: set aclEnable=true or authenticationEnabled=true, or "
                "listenWithoutAccessControl=true to let everybody in"
            )
        if self.tls_mode not in TLS_MODES:
            raise OptionError(
                f"tlsServerMode: {self.tls_mode!r} is not one of {', '.join(TLS_MODES)}"
            )
        TrustedProxies(self.proxy_protocol_trusted)
        AddressSet(self.ha_allowed_addresses, "haAllowedAddresses")
        if bool(self.ha_tls_cert_path) != bool(self.ha_tls_trust_cert_path):
            raise OptionError(
                "haTlsCertPath and haTlsTrustCertPath go together: each broker shows its "
                "certificate and judges the other's"
            )

    @property
    def namesrv_addresses(self) -> list[str]:
        """The name servers, in the order they are given."""
        return [each for part in (self.namesrv_addr or "").split(";") if (each := part.strip())]

    @property
    def writable(self) -> bool:
        """Whether the broker's own permission has the write bit."""
        return self.broker_permission & PERM_WRITE != 0

    @property
    def readable(self) -> bool:
        """Whether the broker's own permission has the read bit."""
        return self.broker_permission & PERM_READ != 0


TLS_MODES: Final = ("disabled", "permissive", "enforcing")


def is_loopback(host: str) -> bool:
    """Whether a listening address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_broker_name() -> str:
    """The host's name, as Apache names a broker that nobody named.

    The broker makes a topic of this name, so what a topic may not have becomes ``-``.
    """
    name = "".join(
        c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in socket.gethostname()
    )
    return name or "DEFAULT_BROKER"


def read_entries(
    path: str | os.PathLike[str] | None,
    *,
    overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Every setting as text: the file's, over them the environment's, over them ``overrides``.

    Raises:
        ConfigFormatError: the file is no properties text.
        OSError: it cannot be read.
    """
    entries: dict[str, str] = {}
    if path is not None:
        entries |= parse_properties(Path(path).read_bytes(), name=str(path), placed=True)
        entries["brokerConfigPath"] = str(Path(path).resolve())
    environment = os.environ if environment is None else environment
    if NAMESRV_ENVIRONMENT in environment:
        entries.setdefault("namesrvAddr", environment[NAMESRV_ENVIRONMENT])
    entries |= {
        name.removeprefix(ENVIRONMENT_PREFIX): PlacedText(value, f"variable {name}")
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
        and name.removeprefix(ENVIRONMENT_PREFIX) in _our_keys()
    }
    entries |= overrides or {}
    return entries


def _our_keys() -> frozenset[str]:
    return frozenset(
        each.java_name for kind in (BrokerConfig, MessageStoreConfig) for each in options_of(kind)
    )


def read_configs(entries: Mapping[str, str]) -> tuple[BrokerConfig, MessageStoreConfig, list[str]]:
    """The broker's and the store's options, and warnings about lines of the file.

    They name every key that changes nothing: one that nobody knows, and one that Apache knows and
    that has no effect here, unless it has Apache's default; and every key without a value. A value
    that does not parse is an error.

    Raises:
        OptionError: a value that does not parse or is out of range, or a slave with a master's id.
    """
    known = _our_keys() | BROKER_KEYS | set(KEYS_WITHOUT_EFFECT)
    for each in options_of(MessageStoreConfig):
        known |= set(each.aliases)
    warnings = bare_lines(entries)
    for key, text in entries.items():
        place = place_of(text)
        where = "" if place is None else f"{place}: "
        is_idle = key in BROKER_KEYS and key not in _our_keys()
        if key not in known:
            warnings.append(where + unknown_key_message(key, known))
        elif is_idle or KEYS_WITHOUT_EFFECT.get(key, text.strip()) != text.strip():
            warnings.append(f"{where}{key}: has no effect here")
    broker = read_options(BrokerConfig, entries)
    mine = {each.java_name for each in options_of(BrokerConfig)}
    store = MessageStoreConfig.from_properties(
        {key: value for key, value in entries.items() if key not in mine},
        also_known=BROKER_KEYS,
        strict=False,
    )
    is_slave = store.broker_role is BrokerRole.SLAVE
    if is_slave and broker.broker_id == 0 and not broker.enable_controller_mode:
        with naming_places(entries):
            raise OptionError(
                "brokerRole SLAVE needs a brokerId above 0, such as brokerId=1; "
                "0 is the master's, and clients would take this broker for it"
            )
    return broker, store, warnings


def format_config(broker: BrokerConfig, store: MessageStoreConfig) -> dict[str, str]:
    """Every option with its value, as GET_BROKER_CONFIG shows them."""
    return {**format_options(broker), **format_options(store)}
