import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** What an application does with the gRPC client; the suites of the other languages do the same. */
final class GrpcScenarios {
    private GrpcScenarios() { }

    static final Map<String, GrpcCase.Scenario> TABLE = new LinkedHashMap<>();

    static {
        TABLE.put("send-normal", GrpcScenarios::sendNormal);
        TABLE.put("push", GrpcScenarios::push);
        TABLE.put("push-retry", GrpcScenarios::pushRetry);
        TABLE.put("push-tags", c -> pushFiltered(c, new FilterExpression("A || C")));
        TABLE.put("push-sql92", c -> pushFiltered(c, GrpcCase.sql("TAGS IN ('A','C') AND i BETWEEN 0 AND 1000")));
        TABLE.put("push-fifo", GrpcScenarios::pushFifo);
        TABLE.put("push-fifo-retry", GrpcScenarios::pushFifoRetry);
        TABLE.put("simple", GrpcScenarios::simple);
        TABLE.put("simple-invisible", GrpcScenarios::simpleInvisible);
        TABLE.put("simple-tags", c -> simpleFiltered(c, new FilterExpression("A || C")));
        TABLE.put("simple-sql92", c -> simpleFiltered(c, GrpcCase.sql("TAGS IN ('A','C') AND i IS NOT NULL")));
        TABLE.put("simple-fifo", GrpcScenarios::simpleFifo);
        TABLE.put("delay", GrpcScenarios::delay);
        TABLE.put("recall", GrpcScenarios::recall);
        TABLE.put("transaction", GrpcScenarios::transaction);
        TABLE.put("transaction-check", GrpcScenarios::transactionCheck);
        TABLE.put("wrong-type", GrpcScenarios::wrongType);
        TABLE.put("priority", GrpcScenarios::priority);
        TABLE.put("lite", GrpcScenarios::lite);
    }

    private static void sendNormal(GrpcCase c) throws Exception {
        Producer producer = c.producer();
        Map<String, String> sent = new LinkedHashMap<>();
        for (int i = 0; i < 12; i++) {
            sent.put("" + i, producer.send(c.message(i)).getMessageId().toString());
        }
        Map<Integer, CompletableFuture<SendReceipt>> flying = new LinkedHashMap<>();
        for (int i = 12; i < 24; i++) {
            flying.put(i, producer.sendAsync(c.message(i)));
        }
        for (Map.Entry<Integer, CompletableFuture<SendReceipt>> entry : flying.entrySet()) {
            sent.put("" + entry.getKey(), entry.getValue().get().getMessageId().toString());
        }
        byte[] large = new byte[300_000];
        ThreadLocalRandom.current().nextBytes(large);
        producer.send(GrpcCase.PROVIDER.newMessageBuilder().setTopic(c.topic).setBody(large).addProperty("i", "large").build());
        for (MessageView view : GrpcCase.drain(c.simple(FilterExpression.SUB_ALL, 5), 25, 60)) {
            if (GrpcCase.id(view).equals("large")) {
                byte[] found = new byte[view.getBody().remaining()];
                view.getBody().get(found);
                GrpcCase.check(java.util.Arrays.equals(large, found), "the large body came back changed");
                continue;
            }
            c.checkContents(view);
            GrpcCase.same("A", view.getTag().orElse(""), "tag");
            GrpcCase.same(sent.get(GrpcCase.id(view)), view.getMessageId().toString(), "message id");
            c.observe("delivery attempt", view.getDeliveryAttempt());
        }
    }

    private static void push(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        Producer producer = c.producer();
        for (int i = 0; i < 60; i++) {
            producer.send(c.message(i));
        }
        sink.awaitIds(45, GrpcCase.range(0, 60));
        sink.awaitQuiet(1000);
        c.exactly(60, sink.views());
        sink.views().forEach(c::checkContents);
    }

    private static void pushRetry(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = new GrpcCase.Sink();
        c.push(FilterExpression.SUB_ALL, view -> {
            sink.add(view);
            boolean poison = GrpcCase.id(view).equals("0");
            return poison || view.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        Producer producer = c.producer();
        for (int i = 0; i < 4; i++) {
            producer.send(c.message(i));
        }
        sink.await(80, "three attempts of one, two of the others",
            views -> views.stream().filter(v -> GrpcCase.id(v).equals("0")).count() >= 3 && views.size() >= 9);
        sink.awaitQuiet(8000);
        Map<String, List<Integer>> attempts = new LinkedHashMap<>();
        for (MessageView view : sink.views()) {
            c.checkContents(view);
            List<Integer> found = attempts.computeIfAbsent(GrpcCase.id(view), id -> new ArrayList<>());
            if (!found.contains(view.getDeliveryAttempt())) {
                found.add(view.getDeliveryAttempt());
            }
        }
        GrpcCase.same(List.of(1, 2, 3), attempts.remove("0"), "attempts of what always fails");
        attempts.forEach((id, found) -> GrpcCase.same(List.of(1, 2), found, "attempts of " + id));
    }

    private static final String[] TAGS = {"A", "B", "C"};

    private static void sendTagged(GrpcCase c, int number) throws Exception {
        Producer producer = c.producer();
        for (int i = 0; i < number; i++) {
            producer.send(c.builder(i).setTag(TAGS[i % 3]).build());
        }
    }

    private static void pushFiltered(GrpcCase c, FilterExpression filter) throws Exception {
        GrpcCase.Sink sink = c.push(filter);
        sendTagged(c, 30);
        sink.awaitIds(45, GrpcCase.range(0, 30, i -> i % 3 != 1));
        sink.awaitQuiet(1000);
        c.exactly(20, sink.views());
        sink.views().forEach(c::checkContents);
    }

    private static void simpleFiltered(GrpcCase c, FilterExpression filter) throws Exception {
        SimpleConsumer consumer = c.simple(filter, 5);
        sendTagged(c, 30);
        List<MessageView> views = GrpcCase.drain(consumer, 20, 60);
        GrpcCase.same(GrpcCase.range(0, 30, i -> i % 3 != 1), GrpcCase.ids(views), "messages");
        views.forEach(c::checkContents);
    }

    private static void sendGroups(GrpcCase c, int groups, int each) throws Exception {
        Producer producer = c.producer();
        for (int i = 0; i < groups * each; i++) {
            producer.send(c.builder(i).setTag("A").setMessageGroup("g" + i % groups).build());
        }
    }

    private static void checkOrder(List<MessageView> views, int groups) {
        Map<String, Integer> last = new LinkedHashMap<>();
        Set<String> seen = new HashSet<>();
        for (MessageView view : views) {
            if (!seen.add(GrpcCase.id(view))) {
                continue;
            }
            int i = Integer.parseInt(GrpcCase.id(view));
            String group = view.getMessageGroup().orElse("none");
            GrpcCase.same("g" + i % groups, group, "message group");
            Integer before = last.put(group, i);
            GrpcCase.check(before == null || before < i, "%s: %d after %d", group, i, before);
        }
    }

    private static void pushFifo(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        sendGroups(c, 5, 8);
        sink.awaitIds(60, GrpcCase.range(0, 40));
        sink.awaitQuiet(1000);
        c.exactly(40, sink.views());
        checkOrder(sink.views(), 5);
        sink.views().forEach(c::checkContents);
    }

    private static void pushFifoRetry(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = new GrpcCase.Sink();
        Set<String> failed = new HashSet<>();
        c.push(FilterExpression.SUB_ALL, view -> {
            synchronized (failed) {
                if (Integer.parseInt(GrpcCase.id(view)) < 4 && failed.add(GrpcCase.id(view))) {
                    return ConsumeResult.FAILURE;
                }
            }
            sink.add(view);
            return ConsumeResult.SUCCESS;
        });
        sendGroups(c, 2, 6);
        sink.awaitIds(80, GrpcCase.range(0, 12));
        sink.awaitQuiet(1000);
        c.exactly(12, sink.views());
        checkOrder(sink.views(), 2);
    }

    private static void simple(GrpcCase c) throws Exception {
        SimpleConsumer consumer = c.simple(FilterExpression.SUB_ALL, 5);
        Producer producer = c.producer();
        for (int i = 0; i < 20; i++) {
            producer.send(c.message(i));
        }
        Set<String> acknowledged = new HashSet<>();
        Set<String> left = new HashSet<>();
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (acknowledged.size() + left.size() < 20) {
            GrpcCase.check(System.nanoTime() < deadline, "only %s and %s came", acknowledged, left);
            for (MessageView view : consumer.receive(8, Duration.ofSeconds(10))) {
                c.checkContents(view);
                if (Integer.parseInt(GrpcCase.id(view)) % 4 != 0) {
                    consumer.ack(view);
                    acknowledged.add(GrpcCase.id(view));
                } else {
                    left.add(GrpcCase.id(view));
                }
            }
        }
        // What was not acknowledged comes again when its time is over, and nothing else does.
        List<MessageView> again = GrpcCase.drain(consumer, 5, 90);
        GrpcCase.same(left, GrpcCase.ids(again), "came again");
        again.forEach(c::checkContents);
        again.forEach(view -> GrpcCase.check(view.getDeliveryAttempt() > 1, "attempt %d", view.getDeliveryAttempt()));
    }

    private static MessageView one(SimpleConsumer consumer, int seconds, int invisible) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < deadline) {
            List<MessageView> views = consumer.receive(1, Duration.ofSeconds(invisible));
            if (!views.isEmpty()) {
                return views.get(0);
            }
        }
        throw new AssertionError("nothing received within " + seconds + " s");
    }

    private static void simpleInvisible(GrpcCase c) throws Exception {
        SimpleConsumer consumer = c.simple(FilterExpression.SUB_ALL, 5);
        Producer producer = c.producer();
        producer.send(c.message(0));
        MessageView first = one(consumer, 90, 60);
        long before = System.nanoTime();
        consumer.changeInvisibleDuration(first, Duration.ofSeconds(3));
        MessageView second = one(consumer, 90, 10);
        long seconds = (System.nanoTime() - before) / 1_000_000_000L;
        c.counts.put("came after s", seconds);
        GrpcCase.check(seconds >= 2 && seconds < 90, "made visible after 3 s, came after %d", seconds);
        GrpcCase.same("0", GrpcCase.id(second), "message");
        c.observe("attempt", second.getDeliveryAttempt());
        // Longer than it was received for: it must stay away.
        consumer.changeInvisibleDuration(second, Duration.ofSeconds(40));
        long until = System.nanoTime() + 15_000_000_000L;
        while (System.nanoTime() < until) {
            GrpcCase.check(consumer.receive(1, Duration.ofSeconds(10)).isEmpty(), "it came although it was kept invisible");
        }
        consumer.ack(second);
    }

    private static void simpleFifo(GrpcCase c) throws Exception {
        SimpleConsumer consumer = c.simple(FilterExpression.SUB_ALL, 5);
        Producer producer = c.producer();
        for (int i = 0; i < 3; i++) {
            producer.send(c.builder(i).setTag("A").setMessageGroup("g").build());
        }
        MessageView view = one(consumer, 90, 10);
        GrpcCase.same("0", GrpcCase.id(view), "first");
        GrpcCase.check(consumer.receive(1, Duration.ofSeconds(10)).isEmpty(), "the second came before the first was acknowledged");
        consumer.ack(view);
        view = one(consumer, 90, 10);
        GrpcCase.same("1", GrpcCase.id(view), "second");
        view = one(consumer, 90, 10);
        GrpcCase.same("1", GrpcCase.id(view), "second, not acknowledged in time");
        c.observe("attempt", view.getDeliveryAttempt());
        consumer.ack(view);
        view = one(consumer, 90, 10);
        GrpcCase.same("2", GrpcCase.id(view), "third");
        consumer.ack(view);
    }

    private static void delay(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        Producer producer = c.producer();
        Map<String, Long> due = new LinkedHashMap<>();
        for (int i = 0; i < 8; i++) {
            long at = System.currentTimeMillis() + 3000 + 500 * i;
            due.put("" + i, at);
            producer.send(c.builder(i).setTag("A").setDeliveryTimestamp(at).build());
        }
        sink.awaitIds(45, due.keySet());
        long latest = 0;
        for (Map.Entry<String, Long> arrival : sink.arrivals().entrySet()) {
            long late = arrival.getValue() - due.get(arrival.getKey());
            GrpcCase.check(late > -1000, "%s came %d ms early", arrival.getKey(), -late);
            latest = Math.max(latest, late);
        }
        c.counts.put("late ms", latest);
        GrpcCase.check(latest < 6000, "%d ms late", latest);
        for (MessageView view : sink.views()) {
            c.checkContents(view);
            GrpcCase.same(due.get(GrpcCase.id(view)), view.getDeliveryTimestamp().orElse(0L), "delivery timestamp");
        }
    }

    private static void recall(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        Producer producer = c.producer();
        long at = System.currentTimeMillis() + 8000;
        Map<Integer, SendReceipt> receipts = new LinkedHashMap<>();
        for (int i = 0; i < 6; i++) {
            receipts.put(i, producer.send(c.builder(i).setTag("A").setDeliveryTimestamp(at).build()));
        }
        for (int i = 0; i < 6; i += 2) {
            String id = producer.recallMessage(c.topic, receipts.get(i).getRecallHandle()).getMessageId().toString();
            GrpcCase.same(receipts.get(i).getMessageId().toString(), id, "id of the recalled message");
        }
        c.observe("not a handle", GrpcCase.errorOf(() -> producer.recallMessage(c.topic, "AAAA")));
        sink.awaitIds(45, Set.of("1", "3", "5"));
        sink.awaitQuiet(3000);
        c.exactly(3, sink.views());
        String late = receipts.get(1).getRecallHandle();
        c.observe("after delivery", GrpcCase.errorOf(() -> producer.recallMessage(c.topic, late)));
    }

    private static void transaction(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        Producer producer = c.producer(view -> TransactionResolution.UNKNOWN);
        for (int i = 0; i < 10; i++) {
            Transaction transaction = producer.beginTransaction();
            producer.send(c.message(i), transaction);
            if (i % 2 == 0) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        }
        sink.awaitIds(45, GrpcCase.range(0, 10, i -> i % 2 == 0));
        sink.awaitQuiet(3000);
        c.exactly(5, sink.views());
        sink.views().forEach(c::checkContents);
    }

    private static void transactionCheck(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = c.push(FilterExpression.SUB_ALL);
        Map<String, Integer> asked = GrpcCase.shared();
        Producer producer = c.producer(view -> {
            int times = asked.merge(GrpcCase.id(view), 1, Integer::sum);
            c.checkContents(view);
            int i = Integer.parseInt(GrpcCase.id(view));
            return i % 3 == 0 ? TransactionResolution.COMMIT : i % 3 == 1 ? TransactionResolution.ROLLBACK
                : times == 1 ? TransactionResolution.UNKNOWN : TransactionResolution.COMMIT;
        });
        for (int i = 0; i < 6; i++) {
            producer.send(c.message(i), producer.beginTransaction());
        }
        sink.awaitIds(80, GrpcCase.range(0, 6, i -> i % 3 != 1));
        sink.awaitQuiet(3000);
        GrpcCase.same(GrpcCase.range(0, 6), asked.keySet(), "asked about");
        c.exactly(4, sink.views());
        c.counts.put("asked", asked.values().stream().mapToInt(n -> n).sum());
        sink.views().forEach(c::checkContents);
    }

    private static void wrongType(GrpcCase c) throws Exception {
        Producer producer = c.producer();
        c.observe("message group to a normal topic", GrpcCase.errorOf(
            () -> producer.send(c.builder(0).setMessageGroup("g").build())));
        c.observe("delivery timestamp to a normal topic", GrpcCase.errorOf(
            () -> producer.send(c.builder(0).setDeliveryTimestamp(System.currentTimeMillis() + 5000).build())));
        c.observe("unknown topic", GrpcCase.errorOf(() -> producer.send(GrpcCase.PROVIDER.newMessageBuilder()
            .setTopic(c.topic + "-none").setBody("x".getBytes(StandardCharsets.UTF_8)).build())));
        producer.send(c.message(1));
        GrpcCase.same(Set.of("1"), GrpcCase.ids(GrpcCase.drain(c.simple(FilterExpression.SUB_ALL, 5), 1, 30)), "messages");
    }

    private static void priority(GrpcCase c) throws Exception {
        Producer producer = c.producer();
        for (int i = 0; i < 12; i++) {
            producer.send(c.builder(i).setTag("A").setPriority(1 + i % 3).build());
        }
        List<MessageView> views = GrpcCase.drain(c.simple(FilterExpression.SUB_ALL, 5), 12, 60);
        for (MessageView view : views) {
            c.checkContents(view);
            GrpcCase.same(1 + Integer.parseInt(GrpcCase.id(view)) % 3, view.getPriority().orElse(-1), "priority");
        }
    }

    private static void lite(GrpcCase c) throws Exception {
        GrpcCase.Sink sink = new GrpcCase.Sink();
        LitePushConsumer consumer = c.keep(GrpcCase.PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(c.configuration()).setConsumerGroup(c.group).bindTopic(c.topic)
            .setMessageListener(view -> {
                sink.add(view);
                return ConsumeResult.SUCCESS;
            }).build());
        consumer.subscribeLite("one");
        consumer.subscribeLite("two");
        Producer producer = c.producer();
        String[] topics = {"one", "two", "three"};
        for (int i = 0; i < 15; i++) {
            producer.send(c.builder(i).setTag("A").setLiteTopic(topics[i % 3]).build());
        }
        sink.awaitIds(45, GrpcCase.range(0, 15, i -> i % 3 != 2));
        sink.awaitQuiet(2000);
        c.exactly(10, sink.views());
        for (MessageView view : sink.views()) {
            c.checkContents(view);
            GrpcCase.same(topics[Integer.parseInt(GrpcCase.id(view)) % 3], view.getLiteTopic().orElse(""), "lite topic");
        }
    }
}
