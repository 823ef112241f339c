import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.protocol.body.ConsumerConnection;
import org.apache.rocketmq.common.protocol.body.Connection;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.common.protocol.route.BrokerData;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What has another name or package in 4.x and 5.x; this is the 4.x side. */
final class Api {
    private Api() { }

    static void extraScenarios(Map<String, Case.Scenario> table) { }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static DefaultMQPushConsumer popConsumer(Case c, String topic, String group) {
        throw new Case.Skip("4.x has no POP");
    }

    static List<String> masters(DefaultMQAdminExt admin) throws Exception {
        List<String> found = new ArrayList<>();
        for (BrokerData broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            if (broker.getBrokerAddrs().containsKey(0L)) {
                found.add(broker.getBrokerAddrs().get(0L));
            }
        }
        return found;
    }

    static void group(DefaultMQAdminExt admin, String broker, String name, boolean orderly) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(name);
        config.setRetryMaxTimes(16);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    static int writeQueues(DefaultMQAdminExt admin, String topic) throws Exception {
        return admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getWriteQueueNums();
    }

    static List<String> clientIds(DefaultMQAdminExt admin, String group) throws Exception {
        ConsumerConnection connection = admin.examineConsumerConnectionInfo(group);
        List<String> ids = new ArrayList<>();
        for (Connection c : connection.getConnectionSet()) {
            ids.add(c.getClientId());
        }
        return ids;
    }

    static int runningQueues(DefaultMQAdminExt admin, String group, String clientId) throws Exception {
        return admin.getConsumerRunningInfo(group, clientId, false).getMqTable().size();
    }

    static String consumeDirectly(DefaultMQAdminExt admin, String group, String clientId, String topic, String msgId) throws Exception {
        return String.valueOf(admin.consumeMessageDirectly(group, clientId, topic, msgId).getConsumeResult());
    }
}
