// Prints, in RocketMQ 5.5.0, config files that none of the golden stores has:
// java -cp "rocketmq-libs/*" ConfigFiles.java > config-files-5.5.0.txt
import java.lang.reflect.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.*;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.statictopic.*;
import org.apache.rocketmq.remoting.protocol.subscription.*;

public class ConfigFiles {
    static DataVersion version() { DataVersion v = new DataVersion(); v.setTimestamp(1700000000000L); v.setStateVersion(3); return v; }
    static void print(String name, Object o) { System.out.println("=== " + name); System.out.println(RemotingSerializable.toJson(o, true)); }
    static void set(Object o, String f, Object v) throws Exception { Field x = o.getClass().getDeclaredField(f); x.setAccessible(true); x.set(o, v); }
    public static void main(String[] a) throws Exception {
        TopicQueueMappingDetail d = new TopicQueueMappingDetail("StaticTopic", 8, "broker-a", 1700000000001L);
        d.getCurrIdMap().put(0, 0); d.getCurrIdMap().put(3, 1);
        for (int q : new int[] {0, 3}) {
            List<LogicQueueMappingItem> items = new ArrayList<>();
            items.add(new LogicQueueMappingItem(0, q, "broker-a", 0, 0, 100, 1, 2));
            items.add(new LogicQueueMappingItem(1, q, "broker-b", 1000, 0, -1, -1, -1));
            TopicQueueMappingDetail.putMappingInfo(d, q, items);
        }
        TopicQueueMappingSerializeWrapper w = new TopicQueueMappingSerializeWrapper();
        w.setDataVersion(version()); w.setTopicQueueMappingInfoMap(new ConcurrentHashMap<>(Map.of("StaticTopic", d)));
        print("topicQueueMapping.json", w);

        SetMessageRequestModeRequestBody m = new SetMessageRequestModeRequestBody();
        m.setTopic("T"); m.setConsumerGroup("G"); m.setMode(MessageRequestMode.POP); m.setPopShareQueueNum(-1);
        MessageRequestModeSerializeWrapper mw = new MessageRequestModeSerializeWrapper();
        mw.setMessageRequestModeMap(new ConcurrentHashMap<>(Map.of("T", new ConcurrentHashMap<>(Map.of("G", m)))));
        print("messageRequestMode.json", mw);

        Class<?> oc = Class.forName("org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager$OrderInfo");
        Object o = oc.getDeclaredConstructor().newInstance();
        set(o, "popTime", 1700000000002L); set(o, "invisibleTime", 60000L); set(o, "offsetList", new ArrayList<>(List.of(5L, 1L, 2L)));
        set(o, "offsetNextVisibleTime", new HashMap<>(Map.of(5L, 1700000000003L))); set(o, "offsetConsumedCount", new HashMap<>(Map.of(5L, 2)));
        set(o, "attemptId", "try-1"); set(o, "commitOffsetBit", 5L); set(o, "lastConsumeTimestamp", 1700000000004L);
        TreeMap<String, Object> t = new TreeMap<>(); TreeMap<String, Object> tt = new TreeMap<>();
        tt.put("T@G", new ConcurrentHashMap<>(Map.of(0, o))); t.put("orderInfoCount", 1); t.put("orderedConsumptionLevel", "QUEUE"); t.put("table", tt);
        print("consumerOrderInfo.json", t);

        SubscriptionGroupWrapper g = new SubscriptionGroupWrapper(); g.setDataVersion(version());
        SubscriptionGroupConfig c = new SubscriptionGroupConfig(); c.setGroupName("G"); c.setAttributes(new HashMap<>(Map.of("k", "v")));
        c.setSubscriptionDataSet(new HashSet<>(Set.of(new SimpleSubscriptionData("T", "TAG", "a || b", 7))));
        GroupRetryPolicy p = new GroupRetryPolicy(); p.setType(GroupRetryPolicyType.EXPONENTIAL); p.setExponentialRetryPolicy(new ExponentialRetryPolicy()); p.setCustomizedRetryPolicy(new CustomizedRetryPolicy());
        c.setGroupRetryPolicy(p);
        SubscriptionGroupConfig e = new SubscriptionGroupConfig(); e.setGroupName("E"); e.setSubscriptionDataSet(new HashSet<>());
        g.getSubscriptionGroupTable().put("G", c); g.getSubscriptionGroupTable().put("E", e);
        g.getForbiddenTable().put("G", new ConcurrentHashMap<>(Map.of("T", 1)));
        print("subscriptionGroup.json", g);

        TopicConfigSerializeWrapper tw = new TopicConfigSerializeWrapper(); tw.setDataVersion(version());
        TopicConfig tc = new TopicConfig("T", 3, 4, 7); tc.setTopicFilterType(TopicFilterType.MULTI_TAG); tc.setOrder(true); tc.setTopicSysFlag(3);
        tc.getAttributes().put("queue.type", "BatchCQ"); tc.getAttributes().put("message.type", "FIFO");
        tw.getTopicConfigTable().put("T", tc);
        print("topics.json", tw);

        Class<?> kc = Class.forName("org.apache.rocketmq.namesrv.kvconfig.KVConfigSerializeWrapper");
        Object k = kc.getDeclaredConstructor().newInstance();
        set(k, "configTable", new HashMap<>(Map.of("ORDER_TOPIC_CONFIG", new HashMap<>(Map.of("T", "broker-a:4;broker-b:4")))));
        print("kvConfig.json", k);
    }
}
