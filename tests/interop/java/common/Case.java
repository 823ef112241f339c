import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * One run of one scenario: names of its own, clients that are shut down when it ends, counts for the reader, and
 * observations that must be equal on every broker.
 */
final class Case implements AutoCloseable {
    interface Scenario {
        void run(Case c) throws Exception;
    }

    static final class Skip extends RuntimeException {
        Skip(String why) {
            super(why);
        }
    }

    private static final AtomicInteger SERIAL = new AtomicInteger();

    final String namesrv;
    final String prefix;
    /** Where producers and consumers ask for routes: a proxy, or the name server as administration does. */
    String front;
    final Map<String, Object> counts = new LinkedHashMap<>();
    final Map<String, Object> observed = new TreeMap<>();
    /** Topics and groups on every broker of the cluster, and not on the first alone. */
    boolean everywhere;
    private final Deque<Runnable> closers = new ArrayDeque<>();
    private DefaultMQAdminExt admin;

    Case(String namesrv, String prefix) {
        this.namesrv = namesrv;
        this.front = namesrv;
        this.prefix = prefix;
    }

    // ---- checks

    static void check(boolean holds, String format, Object... args) {
        if (!holds) {
            throw new AssertionError(String.format(format, args));
        }
    }

    static void same(Object expected, Object found, String what) {
        check(expected == null ? found == null : expected.equals(found), "%s: expected %s, found %s", what, expected, found);
    }

    /** Every id of wanted was found; tells the first few that were not. */
    static void covers(Set<String> wanted, Set<String> found, String what) {
        Set<String> missing = new HashSet<>(wanted);
        missing.removeAll(found);
        check(missing.isEmpty(), "%s: %d of %d missing, such as %s", what, missing.size(), wanted.size(),
            missing.stream().sorted().limit(3).toList());
    }

    /** Code of the broker's refusal, or what else came of the call. */
    static String codeOf(Callable<?> call) {
        try {
            call.call();
            return "no error";
        } catch (MQBrokerException e) {
            return "broker " + e.getResponseCode();
        } catch (MQClientException e) {
            if (e.getCause() instanceof MQBrokerException cause) {
                return "broker " + cause.getResponseCode();
            }
            return "client " + e.getResponseCode();
        } catch (Exception e) {
            return e.getClass().getSimpleName();
        }
    }

    static void await(int seconds, String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        Exception last = null;
        while (true) {
            try {
                if (condition.call()) {
                    return;
                }
                last = null;
            } catch (Exception e) {
                last = e;
            }
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + seconds + " s: " + what + (last == null ? "" : " (" + last + ")"));
            }
            Thread.sleep(20);
        }
    }

    // ---- names and administration

    String name(String what) {
        return prefix + "_" + what;
    }

    DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(10_000);
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName("admin" + SERIAL.incrementAndGet());
            admin.start();
            DefaultMQAdminExt started = admin;
            closers.push(started::shutdown);
        }
        return admin;
    }

    List<String> masters() throws Exception {
        return Api.masters(admin());
    }

    String topic(int queues) throws Exception {
        return topic("T", queues, Map.of());
    }

    String topic(String what, int queues, Map<String, String> attributes) throws Exception {
        return topicNamed(name(what), queues, 6, attributes);
    }

    /** Creates the topic on the first broker and waits for its route. */
    String topicNamed(String topic, int queues, int perm, Map<String, String> attributes) throws Exception {
        TopicConfig config = new TopicConfig(topic, queues, queues, perm);
        if (!attributes.isEmpty()) {
            config.getClass().getMethod("setAttributes", Map.class).invoke(config, attributes);
        }
        List<String> brokers = everywhere ? masters() : masters().subList(0, 1);
        for (String broker : brokers) {
            admin().createAndUpdateTopicConfig(broker, config);
        }
        await(10, "route of " + topic, () -> Api.writeQueues(admin(), topic) == queues
            && admin().examineTopicRouteInfo(topic).getQueueDatas().size() >= brokers.size());
        return topic;
    }

    /** A group that exists with its retry topic, so that nobody waits for the next poll of the route. */
    String group(String what) throws Exception {
        String group = name(what);
        for (String broker : everywhere ? masters() : masters().subList(0, 1)) {
            Api.group(admin(), broker, group, false);
        }
        topicNamed("%RETRY%" + group, 1, 6, Map.of());
        return group;
    }

    // ---- clients

    <C extends org.apache.rocketmq.client.ClientConfig> C configured(C client) {
        client.setNamesrvAddr(front);
        client.setInstanceName("i" + SERIAL.incrementAndGet());
        client.setPollNameServerInterval(1000);
        client.setPersistConsumerOffsetInterval(1000);
        return client;
    }

    DefaultMQProducer producer() throws Exception {
        return start(new DefaultMQProducer(name("P" + SERIAL.incrementAndGet())));
    }

    <P extends DefaultMQProducer> P start(P producer) throws Exception {
        configured(producer);
        producer.setSendMsgTimeout(5000);
        producer.start();
        closers.push(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    <C extends DefaultMQPushConsumer> C start(C consumer) throws Exception {
        consumer.start();
        closers.push(consumer::shutdown);
        return consumer;
    }

    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(group));
        consumer.start();
        closers.push(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = configured(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        closers.push(consumer::shutdown);
        return consumer;
    }

    /** Waits until the members of a group have shared out this many queues of the topic among them. */
    static void awaitQueues(int queues, String topic, DefaultMQPushConsumer... members) throws Exception {
        await(45, queues + " queues shared by " + members.length, () -> {
            int sum = 0;
            for (DefaultMQPushConsumer member : members) {
                int own = queuesOf(member, topic);
                if (own == 0 && queues >= members.length) {
                    return false;
                }
                sum += own;
            }
            return sum == queues;
        });
    }

    static int queuesOf(DefaultMQPushConsumer member, String topic) {
        int own = 0;
        for (MessageQueue q : member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            own += q.getTopic().equals(topic) ? 1 : 0;
        }
        return own;
    }

    /** Every message of the topic, queue by queue, by plain pulls. */
    List<MessageExt> drain(String topic) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        DefaultMQPullConsumer consumer = pullConsumer(name("drain" + SERIAL.incrementAndGet()));
        for (MessageQueue q : consumer.fetchSubscribeMessageQueues(topic)) {
            long next = consumer.minOffset(q);
            long end = consumer.maxOffset(q);
            while (next < end) {
                PullResult result = consumer.pull(q, "*", next, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    all.addAll(result.getMsgFoundList());
                }
                check(result.getNextBeginOffset() > next, "pull of %s at %d: %s", q, next, result);
                next = result.getNextBeginOffset();
            }
        }
        return all;
    }

    // ---- messages

    static Message message(String topic, String tags, int i) {
        Message m = new Message(topic, tags, "k" + i, ("body " + i + " \u00fc\u4e2d").getBytes(StandardCharsets.UTF_8));
        m.putUserProperty("i", "" + i);
        return m;
    }

    static String id(Message m) {
        return m.getUserProperty("i");
    }

    static Set<String> ids(Iterable<? extends Message> messages) {
        Set<String> ids = new HashSet<>();
        for (Message m : messages) {
            ids.add(id(m));
        }
        return ids;
    }

    static Set<String> range(int from, int to) {
        Set<String> ids = new HashSet<>();
        for (int i = from; i < to; i++) {
            ids.add("" + i);
        }
        return ids;
    }

    /** Names of the properties that a broker or client added, without those that only some releases know. */
    static String propertyNames(Message m) {
        return new java.util.TreeSet<>(m.getProperties().keySet()).toString();
    }

    void count(String what, Object number) {
        counts.put(what, number);
    }

    /** What must be the same on every broker. */
    void observe(String what, Object value) {
        observed.put(what, String.valueOf(value));
    }

    @Override
    public void close() {
        while (!closers.isEmpty()) {
            try {
                closers.pop().run();
            } catch (RuntimeException e) {
                System.err.println("closing: " + e);
            }
        }
    }

    void onClose(Runnable closer) {
        closers.push(closer);
    }
}
