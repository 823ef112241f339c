"""The protobuf messages of ``apache.rocketmq.v2``, built from tables.

A line names a message and its fields in the order of their numbers, 1, 2, 3 and so on:

    TYPE      one value; a message, an enum or a scalar
    TYPE*     repeated
    TYPE?     optional: whether it was set is known
    TYPE|ONE  member of the oneof ONE
    map       from string to string; map<TYPE>: to a message
    -         no field has this number

`Message` classes come from the protobuf package: ``SendMessageRequest.FromString(raw)``. Names and
numbers are those of the public definitions of RocketMQ 5 (apache/rocketmq-apis).
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

from oberth.proxy.codes import Code

PACKAGE: Final = "apache.rocketmq.v2"

ENUMS: Final = """
TransactionResolution: TRANSACTION_RESOLUTION_UNSPECIFIED COMMIT ROLLBACK
TransactionSource: SOURCE_UNSPECIFIED SOURCE_CLIENT SOURCE_SERVER_CHECK
Permission: PERMISSION_UNSPECIFIED NONE READ WRITE READ_WRITE
FilterType: FILTER_TYPE_UNSPECIFIED TAG SQL
AddressScheme: ADDRESS_SCHEME_UNSPECIFIED IPv4 IPv6 DOMAIN_NAME
MessageType: MESSAGE_TYPE_UNSPECIFIED NORMAL FIFO DELAY TRANSACTION LITE PRIORITY
DigestType: DIGEST_TYPE_UNSPECIFIED CRC32 MD5 SHA1
ClientType: CLIENT_TYPE_UNSPECIFIED PRODUCER PUSH_CONSUMER SIMPLE_CONSUMER PULL_CONSUMER
    LITE_PUSH_CONSUMER LITE_SIMPLE_CONSUMER
Encoding: ENCODING_UNSPECIFIED IDENTITY GZIP
Language: LANGUAGE_UNSPECIFIED JAVA CPP DOT_NET GOLANG RUST PYTHON PHP NODE_JS RUBY OBJECTIVE_C
    DART KOTLIN
LiteSubscriptionAction: PARTIAL_ADD PARTIAL_REMOVE COMPLETE_ADD COMPLETE_REMOVE
QueryOffsetPolicy: BEGINNING END TIMESTAMP
OffsetOption.Policy: LAST MIN MAX
"""
"""An enum and its names, 0, 1, 2 and so on."""

MESSAGES: Final = """
FilterExpression: type FilterType, expression string
RetryPolicy: max_attempts int32, exponential_backoff ExponentialBackoff|strategy,
    customized_backoff CustomizedBackoff|strategy
ExponentialBackoff: initial Duration, max Duration, multiplier float
CustomizedBackoff: next Duration*
Resource: resource_namespace string, name string
SubscriptionEntry: topic Resource, expression FilterExpression
Address: host string, port int32
Endpoints: scheme AddressScheme, addresses Address*
Broker: name string, id int32, endpoints Endpoints
MessageQueue: topic Resource, id int32, permission Permission, broker Broker,
    accept_message_types MessageType*
Digest: type DigestType, checksum string
SystemProperties: tag string?, keys string*, message_id string, body_digest Digest,
    body_encoding Encoding, message_type MessageType, born_timestamp Timestamp, born_host
    string, store_timestamp Timestamp?, store_host string, delivery_timestamp Timestamp?,
    receipt_handle string?, queue_id int32, queue_offset int64?, invisible_duration Duration?,
    delivery_attempt int32?, message_group string?, trace_context string?,
    orphaned_transaction_recovery_duration Duration?, dead_letter_queue DeadLetterQueue?,
    lite_topic string?, priority int32?
DeadLetterQueue: topic string, message_id string
Message: topic Resource, user_properties map, system_properties SystemProperties, body bytes
Assignment: message_queue MessageQueue
Status: code Code, message string
UA: language Language, version string, platform string, hostname string
Settings: client_type ClientType?, access_point Endpoints?, backoff_policy RetryPolicy?,
    request_timeout Duration?, publishing Publishing|pub_sub, subscription Subscription|pub_sub,
    user_agent UA, metric Metric
Publishing: topics Resource*, max_body_size int32, validate_message_type bool
Subscription: group Resource?, subscriptions SubscriptionEntry*, fifo bool?, receive_batch_size
    int32?, long_polling_timeout Duration?, lite_subscription_quota int32?, max_lite_topic_size
    int32?
Metric: on bool, endpoints Endpoints?
OffsetOption: policy OffsetOption.Policy|offset_type, offset int64|offset_type, tail_n
    int64|offset_type, timestamp int64|offset_type
QueryRouteRequest: topic Resource, endpoints Endpoints
QueryRouteResponse: status Status, message_queues MessageQueue*
SendMessageRequest: messages Message*
SendResultEntry: status Status, message_id string, transaction_id string, offset int64,
    recall_handle string
SendMessageResponse: status Status, entries SendResultEntry*
QueryAssignmentRequest: topic Resource, group Resource, endpoints Endpoints
QueryAssignmentResponse: status Status, assignments Assignment*
ReceiveMessageRequest: group Resource, message_queue MessageQueue, filter_expression
    FilterExpression, batch_size int32, invisible_duration Duration?, auto_renew bool,
    long_polling_timeout Duration?, attempt_id string?
ReceiveMessageResponse: status Status|content, message Message|content, delivery_timestamp
    Timestamp|content
AckMessageEntry: message_id string, receipt_handle string, lite_topic string?
AckMessageRequest: group Resource, topic Resource, entries AckMessageEntry*
AckMessageResultEntry: message_id string, receipt_handle string, status Status
AckMessageResponse: status Status, entries AckMessageResultEntry*
ForwardMessageToDeadLetterQueueRequest: group Resource, topic Resource, receipt_handle string,
    message_id string, delivery_attempt int32, max_delivery_attempts int32, lite_topic string?
ForwardMessageToDeadLetterQueueResponse: status Status
HeartbeatRequest: group Resource?, client_type ClientType
HeartbeatResponse: status Status
EndTransactionRequest: topic Resource, message_id string, transaction_id string, resolution
    TransactionResolution, source TransactionSource, trace_context string
EndTransactionResponse: status Status
PrintThreadStackTraceCommand: nonce string
ReconnectEndpointsCommand: nonce string
ThreadStackTrace: nonce string, thread_stack_trace string?
VerifyMessageCommand: nonce string, message Message
VerifyMessageResult: nonce string
RecoverOrphanedTransactionCommand: message Message, transaction_id string
NotifyUnsubscribeLiteCommand: lite_topic string
TelemetryCommand: status Status?, settings Settings|command, thread_stack_trace
    ThreadStackTrace|command, verify_message_result VerifyMessageResult|command,
    recover_orphaned_transaction_command RecoverOrphanedTransactionCommand|command,
    print_thread_stack_trace_command PrintThreadStackTraceCommand|command,
    verify_message_command VerifyMessageCommand|command, reconnect_endpoints_command
    ReconnectEndpointsCommand|command, notify_unsubscribe_lite_command
    NotifyUnsubscribeLiteCommand|command
NotifyClientTerminationRequest: group Resource?
NotifyClientTerminationResponse: status Status
ChangeInvisibleDurationRequest: group Resource, topic Resource, receipt_handle string,
    invisible_duration Duration, message_id string, lite_topic string?, suspend bool?
ChangeInvisibleDurationResponse: status Status, receipt_handle string
PullMessageRequest: group Resource, message_queue MessageQueue, offset int64, batch_size int32,
    filter_expression FilterExpression, long_polling_timeout Duration
PullMessageResponse: status Status|content, message Message|content, next_offset int64|content
UpdateOffsetRequest: group Resource, message_queue MessageQueue, offset int64
UpdateOffsetResponse: status Status
GetOffsetRequest: group Resource, message_queue MessageQueue
GetOffsetResponse: status Status, offset int64
QueryOffsetRequest: message_queue MessageQueue, query_offset_policy QueryOffsetPolicy, timestamp
    Timestamp?
QueryOffsetResponse: status Status, offset int64
RecallMessageRequest: topic Resource, recall_handle string
RecallMessageResponse: status Status, message_id string
SyncLiteSubscriptionRequest: action LiteSubscriptionAction, topic Resource, group Resource,
    lite_topic_set string*, version int64?, offset_option OffsetOption?
SyncLiteSubscriptionResponse: status Status
"""

ADMIN_MESSAGES: Final = """
ChangeLogLevelRequest: level ChangeLogLevelRequest.Level
ChangeLogLevelResponse: remark string
DescribeTopicStatusRequest: deployment_name string?, topic Resource
DescribeTopicStatusResponse: status Status, topic_message_type MessageType, description string?,
    create_timestamp Timestamp?, tags map
ListSubscriptionRequest: deployment_name string?, topic Resource?, group Resource?
SubscriptionInfo: group Resource, topic Resource, expression FilterExpression, online bool,
    last_update_timestamp Timestamp, message_model MessageModel, subscription_consistency bool
ListSubscriptionResponse: status Status, subscription_info SubscriptionInfo*
DescribeSubscriptionRequest: deployment_name string?, topic Resource?, group Resource?
DescribeSubscriptionResponse: status Status, client_subscription_info
    DescribeSubscriptionResponse.ClientSubscriptionInfo*
DescribeSubscriptionResponse.ClientSubscriptionInfo: client_info ClientInfo, subscription_info
    SubscriptionInfo
DeleteSubscriptionRequest: deployment_name string?, topic Resource, group Resource, expression
    FilterExpression
DeleteSubscriptionResponse: status Status
ClientInfo: client_id string, version string, language string, hostname string, egress_ip string,
    message_model MessageModel
MessageQueueItem: message_queue MessageQueue, process_queue_info ProcessQueueInfo
ProcessQueueInfo: commit_offset int64, cached_msg_min_offset int64, cached_msg_max_offset int64,
    cached_msg_count int32, cached_msg_size_in_mib int32, transaction_msg_min_offset int64,
    transaction_msg_max_offset int64, transaction_msg_count int32, locked bool, try_unlock_times
    int64, last_lock_timestamp int64, dropped bool, last_pull_timestamp int64,
    last_consume_timestamp int64
ConsumeStatus: receive_rt double, receive_tps double, consume_rt double, consume_ok_tps double,
    consume_failed_tps double, consume_failed_msgs int64
ConsumerRunningInfo: properties map, subscriptions map<FilterExpression>, message_queue_table
    MessageQueueItem*, consume_status_table map<ConsumeStatus>
DescribeGroupAccumulationRequest: deployment_name string?, group Resource, topics Resource*,
    lite_topic string?
DescribeGroupAccumulationResponse: status Status, accumulation
    DescribeGroupAccumulationResponse.GroupAccumulation, topic_accumulation
    map<DescribeGroupAccumulationResponse.GroupAccumulation>, lite_topic_accumulation
    map<DescribeGroupAccumulationResponse.GroupAccumulation>
DescribeGroupAccumulationResponse.GroupAccumulation: inflight_messages int64, ready_messages int64,
    accumulation int64, deliver_delay_time Duration, last_consume_timestamp int64
QueryTimeSpanRequest: deployment_name string?, group Resource, topics Resource*
QueryTimeSpanResponse: status Status, queue_time_span_list QueryTimeSpanResponse.QueueTimeSpan*
QueryTimeSpanResponse.QueueTimeSpan: message_queue MessageQueue, min_timestamp int64, max_timestamp
    int64, consume_timestamp int64, delay_time_ms int64
ListConsumerConnectionRequest: deployment_name string?, group Resource, topic Resource?, liteTopic
    string?
ListConsumerConnectionResponse: status Status, client_info ClientInfo*
ResetGroupOffsetRequest: deployment_name string?, group Resource, topic Resource, reset_timestamp
    Timestamp
ResetGroupOffsetResponse: status Status
ListMessageRequest: deployment_name string?, topic Resource, max_message_nums int32,
    begin_timestamp Timestamp, end_timestamp Timestamp, message_id string|search_key, message_key
    string|search_key, subscription string|search_key, scroll_id string?, page_num int32?,
    page_size int32?, broker_name string?, queue_id int32?, lite_topic string|search_key
ListMessageResponse: status Status, messages Message*, scroll_id string
PrintThreadStackTraceRequest: deployment_name string?, client_id string, group Resource
PrintThreadStackTraceResponse: status Status, thread_stack_trace string?
VerifyMessageRequest: deployment_name string?, client_id string, group Resource, topic Resource,
    message_id string
VerifyMessageResponse: status Status
AdminSendMessageRequest: deployment_name string?, topic Resource, tag string?, key string?, body
    bytes, user_properties map, system_properties SystemProperties?, ext_info map
AdminSendMessageResponse: status Status, message_id string
GetConsumerRunningInfoRequest: deployment_name string?, group Resource, client_id string
GetConsumerRunningInfoResponse: status Status, consumer_running_info ConsumerRunningInfo
GetTopicRouteRequest: deployment_name string?, topic Resource, network_type
    GetTopicRouteRequest.NetworkType, protocol_type string, stream_request_type bool,
    client_address string
GetTopicRouteResponse: status Status, topic_route_data string
GetProxyRuntimeStatsRequest:
GetProxyRuntimeStatsResponse: status Status, proxy_name string, version string, in_tps double,
    out_tps double, connections int64, producers int64, consumers int64
"""
ADMIN_ENUMS: Final = """
MessageModel: MESSAGE_MODEL_UNSPECIFIED CLUSTERING BROADCASTING LITE_SELECTIVE
ChangeLogLevelRequest.Level: TRACE DEBUG INFO WARN ERROR
GetTopicRouteRequest.NetworkType: INTERNAL INTERNET INTRANET
"""

HEALTH_MESSAGES: Final = """
HealthCheckRequest: service string
HealthCheckResponse: status HealthCheckResponse.ServingStatus
"""
HEALTH_ENUMS: Final = """
HealthCheckResponse.ServingStatus: UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN
"""

REFLECTION_MESSAGES: Final = """
ServerReflectionRequest: host string, -, file_by_filename string|message_request,
    file_containing_symbol string|message_request, file_containing_extension
    ExtensionRequest|message_request, all_extension_numbers_of_type string|message_request,
    list_services string|message_request
ExtensionRequest: containing_type string, extension_number int32
ServerReflectionResponse: valid_host string, original_request ServerReflectionRequest, -,
    file_descriptor_response FileDescriptorResponse|message_response,
    all_extension_numbers_response ExtensionNumberResponse|message_response,
    list_services_response ListServiceResponse|message_response,
    error_response ErrorResponse|message_response
FileDescriptorResponse: file_descriptor_proto bytes*
ExtensionNumberResponse: base_type_name string, extension_number int32*
ListServiceResponse: service ServiceResponse*
ServiceResponse: name string
ErrorResponse: error_code int32, error_message string
"""
REFLECTION_PACKAGES: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""The same under two names: tools ask for either."""

_SCALARS: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
}
_FIELD: Final = descriptor_pb2.FieldDescriptorProto


def parse_table(text: str) -> dict[str, str]:
    """Lines ``name: rest`` by name; a line that begins with a blank continues the one before."""
    joined: list[str] = []
    for line in filter(None, text.split("\n")):
        if line.startswith(" "):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in joined)}


def build_file(
    package: str, messages: str, enums: str, *, services: dict[str, dict[str, Method]] | None = None
) -> descriptor_pb2.FileDescriptorProto:
    """A file's descriptor from its tables."""
    file = descriptor_pb2.FileDescriptorProto(
        name=package.replace(".", "/") + ".proto",
        package=package,
        syntax="proto3",
        dependency=[duration_pb2.DESCRIPTOR.name, timestamp_pb2.DESCRIPTOR.name],
    )
    enum_values = {
        name: list(enumerate(words.split())) for name, words in parse_table(enums).items()
    }
    if package == PACKAGE:
        enum_values["Code"] = [(int(code), code.name) for code in Code]
    message_names = set(parse_table(messages))
    for name, values in enum_values.items():
        if "." not in name:
            _add_enum(file.enum_type.add(), name, values)
    for name, words in parse_table(messages).items():
        outer, _, inner = name.rpartition(".")
        if outer:
            parent = next(each for each in file.message_type if each.name == outer)
            message = parent.nested_type.add(name=inner)
        else:
            message = file.message_type.add(name=name)
        for nested, values in enum_values.items():
            if nested.startswith(name + "."):
                _add_enum(message.enum_type.add(), nested.partition(".")[2], values)
        for number, field in enumerate(words.split(","), 1):
            if field.strip() not in ("", "-"):
                _add_field(
                    f"{package}.{outer}" if outer else package,
                    package,
                    message,
                    number,
                    field.split(),
                    message_names,
                )
        # Optional fields are oneofs of their own, behind the others.
        for one in message.field:
            if one.proto3_optional:
                one.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name="_" + one.name)
    for name, methods in (services or {}).items():
        service = file.service.add(name=name)
        for method, kind in methods.items():
            service.method.add(
                name=method,
                input_type=f".{package}.{kind.request}",
                output_type=f".{package}.{kind.response}",
                client_streaming=kind.streams_in,
                server_streaming=kind.streams_out,
            )
    return file


def _add_enum(
    enum: descriptor_pb2.EnumDescriptorProto, name: str, values: list[tuple[int, str]]
) -> None:
    enum.name = name
    for number, value in values:
        enum.value.add(name=value, number=number)


def _add_field(
    scope: str,
    package: str,
    message: descriptor_pb2.DescriptorProto,
    number: int,
    words: list[str],
    message_names: set[str],
) -> None:
    name, kind = words
    kind, _, oneof = kind.partition("|")
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith("map"):
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        for place, part in ((1, "key"), (2, "value")):
            entry.field.add(
                name=part, number=place, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING
            )
        value = kind[4:-1]
        if value:
            entry.field[1].type = _FIELD.TYPE_MESSAGE
            entry.field[1].type_name = f".{package}.{value}"
        field.label = _FIELD.LABEL_REPEATED
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{scope}.{message.name}.{entry.name}"
        return
    if kind.endswith("*"):
        field.label = _FIELD.LABEL_REPEATED
    field.proto3_optional = kind.endswith("?")
    kind = kind.rstrip("*?")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in ("Duration", "Timestamp"):
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".google.protobuf.{kind}"
    else:
        field.type = _FIELD.TYPE_MESSAGE if kind in message_names else _FIELD.TYPE_ENUM
        field.type_name = f".{package}.{kind}"
    if oneof:
        declared = [one.name for one in message.oneof_decl]
        if oneof not in declared:
            message.oneof_decl.add(name=oneof)
            declared.append(oneof)
        field.oneof_index = declared.index(oneof)


class Method:
    """How a method is called.

    Attributes:
        request, response: names of its messages.
        streams_in: whether the client sends any number of messages.
        streams_out: whether the server does.
    """

    __slots__ = ("request", "response", "streams_in", "streams_out")

    def __init__(
        self, request: str, response: str, *, streams_in: bool = False, streams_out: bool = False
    ) -> None:
        self.request = request
        self.response = response
        self.streams_in = streams_in
        self.streams_out = streams_out


def _unary(*names: str) -> dict[str, Method]:
    return {name: Method(f"{name}Request", f"{name}Response") for name in names}


METHODS: Final = {
    **_unary(
        "QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "AckMessage",
        "ForwardMessageToDeadLetterQueue", "UpdateOffset", "GetOffset", "QueryOffset",
        "EndTransaction", "NotifyClientTermination", "ChangeInvisibleDuration", "RecallMessage",
        "SyncLiteSubscription",
    ),
    "ReceiveMessage": Method("ReceiveMessageRequest", "ReceiveMessageResponse", streams_out=True),
    "PullMessage": Method("PullMessageRequest", "PullMessageResponse", streams_out=True),
    "Telemetry": Method("TelemetryCommand", "TelemetryCommand", streams_in=True, streams_out=True),
}  # fmt: skip
"""The calls of ``MessagingService``."""

ADMIN_METHODS: Final = {
    **_unary(
        "ChangeLogLevel", "DescribeTopicStatus", "ListSubscription", "DescribeSubscription",
        "DeleteSubscription", "DescribeGroupAccumulation", "ListConsumerConnection",
        "ResetGroupOffset", "PrintThreadStackTrace", "VerifyMessage", "AdminSendMessage",
        "GetConsumerRunningInfo", "GetTopicRoute", "QueryTimeSpan", "GetProxyRuntimeStats",
    ),
    "QueryMessage": Method("ListMessageRequest", "ListMessageResponse"),
}  # fmt: skip
"""The calls of ``Admin``."""

POOL: Final = descriptor_pool.DescriptorPool()
"""Not the process's own pool: an official client in the same process brings the same names."""

FILES: Final = [
    descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for module in (duration_pb2, timestamp_pb2)
] + [
    build_file(
        PACKAGE,
        MESSAGES + ADMIN_MESSAGES.lstrip(),
        ENUMS + ADMIN_ENUMS.lstrip(),
        services={"MessagingService": METHODS, "Admin": ADMIN_METHODS},
    ),
    build_file(
        "grpc.health.v1",
        HEALTH_MESSAGES,
        HEALTH_ENUMS,
        services={
            "Health": {
                "Check": Method("HealthCheckRequest", "HealthCheckResponse"),
                "Watch": Method("HealthCheckRequest", "HealthCheckResponse", streams_out=True),
            }
        },
    ),
    *(
        build_file(
            package,
            REFLECTION_MESSAGES,
            "",
            services={
                "ServerReflection": {
                    "ServerReflectionInfo": Method(
                        "ServerReflectionRequest",
                        "ServerReflectionResponse",
                        streams_in=True,
                        streams_out=True,
                    )
                }
            },
        )
        for package in REFLECTION_PACKAGES
    ),
]
"""Every file, each behind those that it needs."""

for _file in FILES:
    POOL.Add(_file)


def message_class(name: str, package: str = PACKAGE) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


FIELDS_MAX: Final = 10_000
"""Fields of a message, with those of the messages in it. Every one costs some 60 ns and 35 bytes
when it is parsed, in one piece, and may itself be two bytes long."""

UNCOUNTED_SIZE_MAX: Final = 16 * 1024
"""Bytes of a message whose fields need not be counted: they cannot be too many."""


def count_fields(descriptor: Any, raw: bytes) -> int:
    """How many fields a message has, with those of the messages in it; a broken one up to there.

    Raises:
        ValueError: more than FIELDS_MAX, or a group, which no message has.
    """
    return FIELDS_MAX - _count(descriptor, raw, 0, len(raw), FIELDS_MAX)


def _count(descriptor: Any, raw: bytes, position: int, end: int, left: int) -> int:
    """Of ``left`` fields those that are not used up."""
    fields = descriptor.fields_by_number
    while position < end:
        if left == 0:
            raise ValueError(f"more than {FIELDS_MAX} fields")
        left -= 1
        tag, position = _varint(raw, position, end)
        kind = tag & 7
        if kind == _BYTES:
            size, position = _varint(raw, position, end)
            field = fields.get(tag >> 3)
            if field is not None and field.message_type is not None:
                left = _count(field.message_type, raw, position, min(position + size, end), left)
            position += size
        elif kind in _SIZES:
            position += _SIZES[kind]
        elif kind == 0:
            _, position = _varint(raw, position, end)
        else:
            raise ValueError(f"a field of wire type {kind}, allowed 0, 1, 2 and 5")
    return left


_BYTES: Final = 2
_SIZES: Final = {1: 8, 5: 4}
"""Bytes of the wire types of fixed size."""


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = raw[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    return 0, end


_CLASSES: Final = {name: message_class(name) for name in parse_table(MESSAGES + ADMIN_MESSAGES)}


def __getattr__(name: str) -> Any:
    try:
        return _CLASSES[name]
    except KeyError:
        raise AttributeError(f"no message {name!r}") from None


def enum_values(name: str) -> dict[str, int]:
    """The numbers of an enum by name."""
    return {
        value.name: value.number for value in POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values
    }
