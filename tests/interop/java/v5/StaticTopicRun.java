import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * A static topic that moves from broker to broker under traffic: {@code StaticTopicRun namesrv=HOST:PORT}.
 * The official mqadmin makes and moves it, the official clients send to its logical queues and consume them in order.
 * Everything acknowledged must arrive, in the order and with the growing offsets of its queue; a consumer that comes
 * back after a move without it goes on where it was. Prints one line of JSON.
 */
public final class StaticTopicRun {
    private static final int QUEUES = 4;

    private StaticTopicRun() { }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");
        Map<String, Object> out = new LinkedHashMap<>();
        try (Case c = new Case(args[0].substring("namesrv=".length()), "Static" + System.currentTimeMillis() % 1_000_000)) {
            run(c, out);
            out.put("ok", true);
        } catch (Throwable why) {
            out.put("ok", false);
            out.put("detail", String.valueOf(why));
            why.printStackTrace();
        }
        System.out.println(Json.of(out));
        System.exit(0);
    }

    private static void command(Case c, String name, String topic, String broker) {
        List<String> line = new ArrayList<>(List.of(name, "-n", c.namesrv, "-t", topic, "-b", broker));
        if (name.equals("updateStaticTopic")) {
            line.addAll(List.of("-qn", String.valueOf(QUEUES)));
        }
        java.io.PrintStream stdout = System.out;
        System.setOut(System.err);
        try {
            MQAdminStartup.main0(line.toArray(new String[0]), null);
        } finally {
            System.setOut(stdout);
        }
    }

    private static DefaultMQPushConsumer consumer(Case c, String topic, Map<Integer, List<MessageExt>> seen)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(c.name("G"));
        consumer.setNamesrvAddr(c.namesrv);
        consumer.setInstanceName("consumer" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(300);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                List<MessageExt> queue = seen.computeIfAbsent(m.getQueueId(), id -> new ArrayList<>());
                synchronized (queue) {
                    queue.add(m);
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static int count(Map<Integer, List<MessageExt>> seen) {
        return bodies(seen).size();
    }

    private static Set<String> bodies(Map<Integer, List<MessageExt>> seen) {
        Set<String> found = new TreeSet<>();
        for (List<MessageExt> queue : seen.values()) {
            synchronized (queue) {
                for (MessageExt m : queue) {
                    found.add(new String(m.getBody()));
                }
            }
        }
        return found;
    }

    private static void run(Case c, Map<String, Object> out) throws Exception {
        List<String> brokers = new ArrayList<>(new TreeSet<>(c.admin().examineBrokerClusterInfo().getBrokerAddrTable().keySet()));
        Case.same(3, brokers.size(), "brokers");
        String topic = c.name("T");
        command(c, "updateStaticTopic", topic, brokers.get(0));
        c.admin().createAndUpdateSubscriptionGroupConfig(address(c, brokers.get(0)), group(c));
        c.admin().createAndUpdateSubscriptionGroupConfig(address(c, brokers.get(1)), group(c));
        c.admin().createAndUpdateSubscriptionGroupConfig(address(c, brokers.get(2)), group(c));
        Map<Integer, List<MessageExt>> seen = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer(c, topic, seen);

        DefaultMQProducer producer = new DefaultMQProducer(c.name("P"));
        producer.setNamesrvAddr(c.namesrv);
        producer.setPollNameServerInterval(300);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Map<Integer, Long> lastOffset = new HashMap<>();
        AtomicInteger failures = new AtomicInteger();
        AtomicInteger undecided = new AtomicInteger();
        AtomicBoolean stop = new AtomicBoolean();
        String[] wrong = new String[1];
        Thread traffic = new Thread(() -> {
            for (int n = 0; !stop.get(); n++) {
                int queueId = n % QUEUES;
                String body = String.format("%d-%07d", queueId, n);
                try {
                    List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
                    Case.same(QUEUES, queues.size(), "logical queues");
                    MessageQueue queue = queues.stream().filter(q -> q.getQueueId() == queueId).findFirst().get();
                    Case.same("__syslo__global__", queue.getBrokerName(), "broker name");
                    while (!stop.get()) {
                        try {
                            SendResult result = producer.send(new Message(topic, body.getBytes()), queue);
                            if (result.getSendStatus() != SendStatus.SEND_OK) {
                                continue;
                            }
                            acknowledged.add(body);
                            Case.same(queueId, result.getMessageQueue().getQueueId(), "queue id");
                            if (result.getQueueOffset() < 0) {
                                undecided.incrementAndGet();
                            } else {
                                Long last = lastOffset.put(queueId, result.getQueueOffset());
                                Case.check(last == null || last < result.getQueueOffset(), "offset %d after %d", result.getQueueOffset(), last);
                            }
                            break;
                        } catch (org.apache.rocketmq.client.exception.MQBrokerException moved) {
                            Case.same(501, moved.getResponseCode(), "refusal");
                            failures.incrementAndGet();
                            Thread.sleep(20);
                        }
                    }
                    Thread.sleep(2);
                } catch (Throwable e) {
                    wrong[0] = wrong[0] == null ? String.valueOf(e) : wrong[0];
                    return;
                }
            }
        });
        traffic.start();
        int moves = 0;
        for (String target : List.of(brokers.get(1), brokers.get(2), brokers.get(0))) {
            int before = acknowledged.size();
            Case.await(30, "traffic", () -> acknowledged.size() > before + 200 || wrong[0] != null);
            command(c, "remappingStaticTopic", topic, target);
            moves++;
        }
        int last = acknowledged.size();
        Case.await(60, "traffic after the last move", () -> acknowledged.size() > last + 200 || wrong[0] != null);
        stop.set(true);
        traffic.join();
        Case.check(wrong[0] == null, "producer: %s", wrong[0]);
        out.put("acknowledged", acknowledged.size());
        out.put("refused", failures.get());
        out.put("undecided", undecided.get());
        out.put("moves", moves);
        try {
            Case.await(90, "everything consumed", () -> bodies(seen).containsAll(acknowledged));
        } finally {
            out.put("consumed", count(seen));
        }
        int redelivered = 0;
        for (Map.Entry<Integer, List<MessageExt>> entry : seen.entrySet()) {
            String newest = "";
            long offset = -1;
            for (MessageExt m : entry.getValue()) {
                String body = new String(m.getBody());
                Case.check(body.startsWith(entry.getKey() + "-"), "%s in queue %d", body, entry.getKey());
                if (m.getQueueOffset() <= offset) {
                    redelivered++;
                    continue;
                }
                Case.check(body.compareTo(newest) > 0, "%s at %d after %s at %d", body, m.getQueueOffset(), newest, offset);
                newest = body;
                offset = m.getQueueOffset();
            }
        }
        out.put("redelivered", redelivered);

        // The group's offsets are where it stopped: on the broker that the queues now leave.
        consumer.shutdown();
        command(c, "remappingStaticTopic", topic, brokers.get(1));
        Thread.sleep(1_000);
        Map<Integer, List<MessageExt>> later = new ConcurrentHashMap<>();
        Set<String> more = new TreeSet<>();
        for (int n = 0; n < QUEUES; n++) {
            int queueId = n;
            String body = n + "-later";
            Case.await(30, "send after a move", () -> {
                MessageQueue queue = producer.fetchPublishMessageQueues(topic).stream().filter(q -> q.getQueueId() == queueId).findFirst().get();
                return producer.send(new Message(topic, body.getBytes()), queue).getSendStatus() == SendStatus.SEND_OK;
            });
            more.add(body);
        }
        DefaultMQPushConsumer again = consumer(c, topic, later);
        Case.await(60, "what was sent meanwhile", () -> bodies(later).containsAll(more));
        Set<String> twice = bodies(later);
        twice.removeAll(more);
        out.put("twice", twice.size());
        Case.check(twice.isEmpty(), "consumed again: %s", twice);
        again.shutdown();
        producer.shutdown();
    }

    private static String address(Case c, String broker) throws Exception {
        return c.admin().examineBrokerClusterInfo().getBrokerAddrTable().get(broker).getBrokerAddrs().get(0L);
    }

    private static org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig group(Case c) {
        org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig config =
            new org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig();
        config.setGroupName(c.name("G"));
        return config;
    }
}
