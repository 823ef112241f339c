import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/** One run of one scenario: its topic and group, its clients, what it counted and what it observed. */
final class GrpcCase implements AutoCloseable {
    interface Scenario {
        void run(GrpcCase c) throws Exception;
    }

    /** What a push consumer was given, in order of arrival. */
    static final class Sink {
        private final List<MessageView> views = new ArrayList<>();
        private final Map<String, Long> first = new HashMap<>();
        private long last = System.nanoTime();

        synchronized void add(MessageView view) {
            views.add(view);
            first.putIfAbsent(id(view), System.currentTimeMillis());
            last = System.nanoTime();
            notifyAll();
        }

        synchronized List<MessageView> views() {
            return new ArrayList<>(views);
        }

        synchronized Map<String, Long> arrivals() {
            return new HashMap<>(first);
        }

        synchronized void await(int seconds, String what, Predicate<List<MessageView>> enough) throws InterruptedException {
            long deadline = System.nanoTime() + seconds * 1_000_000_000L;
            while (!enough.test(views)) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                check(left > 0, "not within %d s: %s; %d messages arrived", seconds, what, views.size());
                wait(left);
            }
        }

        void awaitIds(int seconds, Set<String> wanted) throws InterruptedException {
            try {
                await(seconds, wanted.size() + " ids", v -> ids(v).containsAll(wanted));
            } catch (AssertionError e) {
                covers(wanted, ids(views()), e.getMessage());
                throw e;
            }
        }

        /** Waits until nothing has come for so long. */
        synchronized void awaitQuiet(int millis) throws InterruptedException {
            for (long left = millis; left > 0; left = millis - (System.nanoTime() - last) / 1_000_000) {
                wait(left);
            }
        }
    }

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    final String topic;
    final String group;
    final Map<String, Object> counts = new LinkedHashMap<>();
    final Map<String, Object> observed = new TreeMap<>();
    private final Set<String> added = ConcurrentHashMap.newKeySet();
    private final String endpoint;
    private final Deque<AutoCloseable> closers = new ArrayDeque<>();

    GrpcCase(String endpoint, String topic) {
        this.endpoint = endpoint;
        this.topic = topic;
        this.group = topic + "_G";
    }

    // ---- checks

    static void check(boolean holds, String format, Object... args) {
        if (!holds) {
            throw new AssertionError(String.format(format, args));
        }
    }

    static void same(Object expected, Object found, String what) {
        check(expected.equals(found), "%s: expected %s, found %s", what, expected, found);
    }

    static void covers(Set<String> wanted, Set<String> found, String what) {
        Set<String> missing = new HashSet<>(wanted);
        missing.removeAll(found);
        check(missing.isEmpty(), "%s: %d of %d missing, such as %s", what, missing.size(), wanted.size(),
            missing.stream().sorted().limit(3).toList());
    }

    static String errorOf(Callable<?> call) {
        try {
            call.call();
            return "no error";
        } catch (Exception e) {
            return e.getClass().getSimpleName();
        }
    }

    /** So many different messages came and no others; what came twice is counted, since a machine that stands still allows it. */
    void exactly(int number, List<MessageView> views) {
        same(number, ids(views).size(), "messages");
        if (views.size() > number) {
            counts.put("twice", views.size() - number);
        }
    }

    void observe(String what, Object value) {
        observed.put(what, String.valueOf(value));
    }

    // ---- clients

    ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(Boolean.getBoolean("suite.tls"))
            .setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    <C extends AutoCloseable> C keep(C client) {
        closers.push(client);
        return client;
    }

    Producer producer() throws Exception {
        return keep(PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic).build());
    }

    Producer producer(TransactionChecker checker) throws Exception {
        return keep(PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic)
            .setTransactionChecker(checker).build());
    }

    static FilterExpression sql(String expression) {
        return new FilterExpression(expression, FilterExpressionType.SQL92);
    }

    interface Listener {
        ConsumeResult consume(MessageView view) throws Exception;
    }

    PushConsumer push(FilterExpression filter, Listener listener) throws Exception {
        return keep(PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, filter)).setConsumptionThreadCount(8)
            .setMessageListener(view -> {
                try {
                    return listener.consume(view);
                } catch (Exception e) {
                    return ConsumeResult.FAILURE;
                }
            }).build());
    }

    Sink push(FilterExpression filter) throws Exception {
        Sink sink = new Sink();
        push(filter, view -> {
            sink.add(view);
            return ConsumeResult.SUCCESS;
        });
        return sink;
    }

    SimpleConsumer simple(FilterExpression filter, int awaitSeconds) throws Exception {
        return keep(PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(awaitSeconds)).setSubscriptionExpressions(Map.of(topic, filter)).build());
    }

    /** Receives and acknowledges until so many different messages have come. */
    static List<MessageView> drain(SimpleConsumer consumer, int wanted, int seconds) throws Exception {
        List<MessageView> all = new ArrayList<>();
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (ids(all).size() < wanted) {
            check(System.nanoTime() < deadline, "%d of %d messages after %d s", ids(all).size(), wanted, seconds);
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(20))) {
                all.add(view);
                consumer.ack(view);
            }
        }
        return all;
    }

    // ---- messages

    static String body(int i) {
        return "body " + i + " \u00fc\u4e2d";
    }

    MessageBuilder builder(int i) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body(i).getBytes(StandardCharsets.UTF_8))
            .setKeys("k" + i).addProperty("i", "" + i);
    }

    Message message(int i) {
        return builder(i).setTag("A").build();
    }

    static String id(MessageView view) {
        return view.getProperties().get("i");
    }

    static Set<String> ids(Iterable<MessageView> views) {
        Set<String> ids = new HashSet<>();
        for (MessageView view : views) {
            ids.add(id(view));
        }
        return ids;
    }

    static Set<String> range(int from, int to) {
        return range(from, to, i -> true);
    }

    static Set<String> range(int from, int to, Predicate<Integer> which) {
        Set<String> ids = new HashSet<>();
        for (int i = from; i < to; i++) {
            if (which.test(i)) {
                ids.add("" + i);
            }
        }
        return ids;
    }

    /** Names of properties that nobody set and that came all the same. */
    void observeAdded() {
        observe("added properties", new java.util.TreeSet<>(added));
    }

    /** Everything that was given to message() came back. */
    void checkContents(MessageView view) {
        int i = Integer.parseInt(id(view));
        same(body(i), StandardCharsets.UTF_8.decode(view.getBody()).toString(), "body");
        same(topic, view.getTopic(), "topic");
        same(List.of("k" + i), new ArrayList<>(view.getKeys()), "keys");
        Map<String, String> own = new TreeMap<>(view.getProperties());
        same("" + i, own.remove("i"), "property");
        own.keySet().forEach(added::add);
        check(view.getBornTimestamp() > 0 && !view.getBornHost().isEmpty(), "born %d at %s", view.getBornTimestamp(),
            view.getBornHost());
    }

    static <K, V> Map<K, V> shared() {
        return new ConcurrentHashMap<>();
    }

    @Override
    public void close() {
        while (!closers.isEmpty()) {
            try {
                closers.pop().close();
            } catch (Exception e) {
                System.err.println("closing: " + e);
            }
        }
    }
}
