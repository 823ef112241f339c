"""Which header a code has: request code → (header of the request, header of its response).

None: there is no header, or nobody reads it. Codes without either are not listed.
"""

from __future__ import annotations

from typing import Final

from oberth.remoting.code import RequestCode as Code
from oberth.remoting.headers import (
    admin,
    controller,
    group,
    namesrv,
    pop,
    pull,
    replication,
    send,
    transaction,
)
from oberth.remoting.headers.base import CommandHeader

HeaderTypes = tuple[type[CommandHeader] | None, type[CommandHeader] | None]

HEADERS: Final[dict[Code, HeaderTypes]] = {
    # Sending
    Code.SEND_MESSAGE: (send.SendMessageRequestHeader, send.SendMessageResponseHeader),
    Code.SEND_MESSAGE_V2: (send.SendMessageRequestHeaderV2, send.SendMessageResponseHeader),
    Code.SEND_BATCH_MESSAGE: (send.SendMessageRequestHeaderV2, send.SendMessageResponseHeader),
    Code.SEND_REPLY_MESSAGE: (send.SendMessageRequestHeader, send.SendMessageResponseHeader),
    Code.SEND_REPLY_MESSAGE_V2: (send.SendMessageRequestHeaderV2, send.SendMessageResponseHeader),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: (send.ReplyMessageRequestHeader, None),
    Code.CONSUMER_SEND_MSG_BACK: (send.ConsumerSendMsgBackRequestHeader, None),
    Code.RECALL_MESSAGE: (send.RecallMessageRequestHeader, send.RecallMessageResponseHeader),
    # Pulling and offsets
    Code.PULL_MESSAGE: (pull.PullMessageRequestHeader, pull.PullMessageResponseHeader),
    Code.LITE_PULL_MESSAGE: (pull.PullMessageRequestHeader, pull.PullMessageResponseHeader),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: (
        pull.SearchOffsetRequestHeader,
        pull.SearchOffsetResponseHeader,
    ),
    Code.GET_MAX_OFFSET: (pull.GetMaxOffsetRequestHeader, pull.GetMaxOffsetResponseHeader),
    Code.GET_MIN_OFFSET: (pull.GetMinOffsetRequestHeader, pull.GetMinOffsetResponseHeader),
    Code.GET_EARLIEST_MSG_STORETIME: (
        pull.GetEarliestMsgStoretimeRequestHeader,
        pull.GetEarliestMsgStoretimeResponseHeader,
    ),
    Code.QUERY_CONSUMER_OFFSET: (
        pull.QueryConsumerOffsetRequestHeader,
        pull.QueryConsumerOffsetResponseHeader,
    ),
    Code.UPDATE_CONSUMER_OFFSET: (pull.UpdateConsumerOffsetRequestHeader, None),
    # Clients and groups
    Code.UNREGISTER_CLIENT: (group.UnregisterClientRequestHeader, None),
    Code.GET_CONSUMER_LIST_BY_GROUP: (group.GetConsumerListByGroupRequestHeader, None),
    Code.NOTIFY_CONSUMER_IDS_CHANGED: (group.NotifyConsumerIdsChangedRequestHeader, None),
    Code.GET_CONSUMER_CONNECTION_LIST: (group.GetConsumerConnectionListRequestHeader, None),
    Code.GET_PRODUCER_CONNECTION_LIST: (group.GetProducerConnectionListRequestHeader, None),
    Code.GET_CONSUME_STATS: (group.GetConsumeStatsRequestHeader, None),
    Code.GET_BROKER_CONSUME_STATS: (group.GetConsumeStatsInBrokerHeader, None),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (group.ResetOffsetRequestHeader, None),
    Code.RESET_CONSUMER_CLIENT_OFFSET: (group.ResetOffsetRequestHeader, None),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (group.GetConsumerStatusRequestHeader, None),
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: (group.GetConsumerStatusRequestHeader, None),
    Code.GET_CONSUMER_RUNNING_INFO: (group.GetConsumerRunningInfoRequestHeader, None),
    Code.CONSUME_MESSAGE_DIRECTLY: (group.ConsumeMessageDirectlyResultRequestHeader, None),
    Code.CLONE_GROUP_OFFSET: (group.CloneGroupOffsetRequestHeader, None),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: (group.QueryTopicConsumeByWhoRequestHeader, None),
    Code.QUERY_TOPICS_BY_CONSUMER: (group.QueryTopicsByConsumerRequestHeader, None),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (group.QuerySubscriptionByConsumerRequestHeader, None),
    Code.QUERY_CONSUME_TIME_SPAN: (group.QueryConsumeTimeSpanRequestHeader, None),
    Code.QUERY_CORRECTION_OFFSET: (group.QueryCorrectionOffsetHeader, None),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (group.GetSubscriptionGroupConfigRequestHeader, None),
    Code.DELETE_SUBSCRIPTIONGROUP: (group.DeleteSubscriptionGroupRequestHeader, None),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (group.UpdateGroupForbiddenRequestHeader, None),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        group.GetAllSubscriptionGroupRequestHeader,
        group.GetAllSubscriptionGroupResponseHeader,
    ),
    # Transactions
    Code.END_TRANSACTION: (transaction.EndTransactionRequestHeader, None),
    Code.CHECK_TRANSACTION_STATE: (transaction.CheckTransactionStateRequestHeader, None),
    Code.RESUME_CHECK_HALF_MESSAGE: (transaction.ResumeCheckHalfMessageRequestHeader, None),
    # POP
    Code.POP_MESSAGE: (pop.PopMessageRequestHeader, pop.PopMessageResponseHeader),
    Code.ACK_MESSAGE: (pop.AckMessageRequestHeader, None),
    Code.CHANGE_MESSAGE_INVISIBLETIME: (
        pop.ChangeInvisibleTimeRequestHeader,
        pop.ChangeInvisibleTimeResponseHeader,
    ),
    Code.PEEK_MESSAGE: (pop.PeekMessageRequestHeader, pop.PopMessageResponseHeader),
    Code.NOTIFICATION: (pop.NotificationRequestHeader, pop.NotificationResponseHeader),
    Code.POLLING_INFO: (pop.PollingInfoRequestHeader, pop.PollingInfoResponseHeader),
    # Lite topics
    Code.POP_LITE_MESSAGE: (pop.PopLiteMessageRequestHeader, pop.PopLiteMessageResponseHeader),
    Code.NOTIFY_UNSUBSCRIBE_LITE: (pop.NotifyUnsubscribeLiteRequestHeader, None),
    Code.GET_PARENT_TOPIC_INFO: (admin.GetParentTopicInfoRequestHeader, None),
    Code.GET_LITE_TOPIC_INFO: (admin.GetLiteTopicInfoRequestHeader, None),
    Code.GET_LITE_CLIENT_INFO: (admin.GetLiteClientInfoRequestHeader, None),
    Code.GET_LITE_GROUP_INFO: (admin.GetLiteGroupInfoRequestHeader, None),
    Code.TRIGGER_LITE_DISPATCH: (admin.TriggerLiteDispatchRequestHeader, None),
    # Administration
    Code.UPDATE_AND_CREATE_TOPIC: (admin.CreateTopicRequestHeader, None),
    Code.DELETE_TOPIC_IN_BROKER: (admin.DeleteTopicRequestHeader, None),
    Code.GET_TOPIC_CONFIG: (admin.GetTopicConfigRequestHeader, None),
    Code.GET_ALL_TOPIC_CONFIG: (
        admin.GetAllTopicConfigRequestHeader,
        admin.GetAllTopicConfigResponseHeader,
    ),
    Code.GET_TOPIC_STATS_INFO: (admin.GetTopicStatsInfoRequestHeader, None),
    Code.QUERY_MESSAGE: (admin.QueryMessageRequestHeader, admin.QueryMessageResponseHeader),
    Code.VIEW_MESSAGE_BY_ID: (admin.ViewMessageRequestHeader, None),
    Code.OBERTH_PURGE_TOPIC: (admin.PurgeTopicRequestHeader, None),
    Code.VIEW_BROKER_STATS_DATA: (admin.ViewBrokerStatsDataRequestHeader, None),
    Code.QUERY_CONSUME_QUEUE: (admin.QueryConsumeQueueRequestHeader, None),
    Code.GET_BROKER_CONFIG: (None, admin.GetBrokerConfigResponseHeader),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: (admin.CheckRocksdbCqWriteProgressRequestHeader, None),
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: (admin.ExportRocksDBConfigToJsonRequestHeader, None),
    Code.AUTH_CREATE_USER: (admin.CreateUserRequestHeader, None),
    Code.AUTH_UPDATE_USER: (admin.CreateUserRequestHeader, None),
    Code.AUTH_DELETE_USER: (admin.DeleteUserRequestHeader, None),
    Code.AUTH_GET_USER: (admin.GetUserRequestHeader, None),
    Code.AUTH_LIST_USER: (admin.ListUsersRequestHeader, None),
    Code.AUTH_CREATE_ACL: (admin.CreateAclRequestHeader, None),
    Code.AUTH_UPDATE_ACL: (admin.CreateAclRequestHeader, None),
    Code.AUTH_DELETE_ACL: (admin.DeleteAclRequestHeader, None),
    Code.AUTH_GET_ACL: (admin.GetAclRequestHeader, None),
    Code.AUTH_LIST_ACL: (admin.ListAclsRequestHeader, None),
    # Name server
    Code.REGISTER_BROKER: (
        namesrv.RegisterBrokerRequestHeader,
        namesrv.RegisterBrokerResponseHeader,
    ),
    Code.UNREGISTER_BROKER: (namesrv.UnRegisterBrokerRequestHeader, None),
    Code.QUERY_DATA_VERSION: (
        namesrv.QueryDataVersionRequestHeader,
        namesrv.QueryDataVersionResponseHeader,
    ),
    Code.BROKER_HEARTBEAT: (namesrv.BrokerHeartbeatRequestHeader, None),
    Code.GET_ROUTEINFO_BY_TOPIC: (namesrv.GetRouteInfoRequestHeader, None),
    Code.PUT_KV_CONFIG: (namesrv.PutKVConfigRequestHeader, None),
    Code.GET_KV_CONFIG: (namesrv.GetKVConfigRequestHeader, namesrv.GetKVConfigResponseHeader),
    Code.DELETE_KV_CONFIG: (namesrv.DeleteKVConfigRequestHeader, None),
    Code.GET_KVLIST_BY_NAMESPACE: (namesrv.GetKVListByNamespaceRequestHeader, None),
    Code.WIPE_WRITE_PERM_OF_BROKER: (
        namesrv.WipeWritePermOfBrokerRequestHeader,
        namesrv.WipeWritePermOfBrokerResponseHeader,
    ),
    Code.ADD_WRITE_PERM_OF_BROKER: (
        namesrv.AddWritePermOfBrokerRequestHeader,
        namesrv.AddWritePermOfBrokerResponseHeader,
    ),
    Code.DELETE_TOPIC_IN_NAMESRV: (namesrv.DeleteTopicFromNamesrvRequestHeader, None),
    Code.REGISTER_TOPIC_IN_NAMESRV: (namesrv.RegisterTopicRequestHeader, None),
    Code.GET_TOPICS_BY_CLUSTER: (namesrv.GetTopicsByClusterRequestHeader, None),
    Code.GET_BROKER_MEMBER_GROUP: (namesrv.GetBrokerMemberGroupRequestHeader, None),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: (namesrv.NotifyMinBrokerIdChangeRequestHeader, None),
    # The controller
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: (
        controller.AlterSyncStateSetRequestHeader,
        controller.AlterSyncStateSetResponseHeader,
    ),
    Code.CONTROLLER_ELECT_MASTER: (
        controller.ElectMasterRequestHeader,
        controller.ElectMasterResponseHeader,
    ),
    Code.CONTROLLER_REGISTER_BROKER: (
        controller.RegisterBrokerToControllerRequestHeader,
        controller.RegisterBrokerToControllerResponseHeader,
    ),
    Code.CONTROLLER_GET_REPLICA_INFO: (
        controller.GetReplicaInfoRequestHeader,
        controller.GetReplicaInfoResponseHeader,
    ),
    Code.CONTROLLER_GET_METADATA_INFO: (None, controller.GetMetaDataResponseHeader),
    Code.NOTIFY_BROKER_ROLE_CHANGED: (controller.NotifyBrokerRoleChangedRequestHeader, None),
    Code.CLEAN_BROKER_DATA: (controller.CleanControllerBrokerDataRequestHeader, None),
    Code.CONTROLLER_GET_NEXT_BROKER_ID: (
        controller.GetNextBrokerIdRequestHeader,
        controller.GetNextBrokerIdResponseHeader,
    ),
    Code.CONTROLLER_APPLY_BROKER_ID: (
        controller.ApplyBrokerIdRequestHeader,
        controller.ApplyBrokerIdResponseHeader,
    ),
    # Broker to broker
    Code.EXCHANGE_BROKER_HA_INFO: (
        replication.ExchangeHAInfoRequestHeader,
        replication.ExchangeHAInfoResponseHeader,
    ),
    Code.RESET_MASTER_FLUSH_OFFSET: (replication.ResetMasterFlushOffsetHeader, None),
    Code.OBERTH_GET_LOG_CHECKSUMS: (replication.LogChecksumsRequestHeader, None),
    Code.ADD_BROKER: (replication.AddBrokerRequestHeader, None),
    Code.REMOVE_BROKER: (replication.RemoveBrokerRequestHeader, None),
}
