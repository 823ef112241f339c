import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** What only the 5.x client can do. */
final class Scenarios5 {
    private Scenarios5() { }

    static void register(Map<String, Case.Scenario> table) {
        table.put("timer", Scenarios5::timer);
        table.put("timer-recall", Scenarios5::timerRecall);
        table.put("compression-types", Scenarios5::compressionTypes);
        table.put("auto-batch", Scenarios5::autoBatch);
        table.put("batch-queue", Scenarios5::batchQueue);
        table.put("message-types", Scenarios5::messageTypes);
        table.put("server-rebalance", Scenarios5::serverRebalance);
        table.put("pop", Scenarios5::pop);
        table.put("pop-order", Scenarios5::popOrder);
        table.put("pop-push", Scenarios5::popPush);
        table.put("pop-push-retry", Scenarios5::popPushRetry);
        table.put("pop-push-orderly", Scenarios5::popPushOrderly);
    }

    private static Sink push(Case c, String topic) throws Exception {
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        return sink;
    }

    private static void timer(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        Sink sink = push(c, topic);
        Map<String, Long> due = new HashMap<>();
        for (int i = 0; i < 40; i++) {
            Message m = Case.message(topic, "t", i);
            long now = System.currentTimeMillis();
            switch (i % 4) {
                case 0 -> {
                    m.setDelayTimeMs(2500);
                    due.put("" + i, now + 2500);
                }
                case 1 -> {
                    m.setDeliverTimeMs(now + 4000);
                    due.put("" + i, now + 4000);
                }
                case 2 -> {
                    m.setDelayTimeSec(3);
                    due.put("" + i, now + 3000);
                }
                default -> {
                    m.setDeliverTimeMs(now - 1000); // past: at once
                    due.put("" + i, now);
                }
            }
            p.send(m);
        }
        sink.awaitIds(30, Case.range(0, 40));
        long latest = 0;
        for (Map.Entry<String, Long> e : sink.timeOf().entrySet()) {
            long late = e.getValue() - due.get(e.getKey());
            Case.check(late > -1100 && late < 4000, "message %s was %d ms late", e.getKey(), late);
            latest = Math.max(latest, late);
        }
        Case.same(0, sink.duplicates(), "duplicates");
        for (MessageExt m : sink.messages()) {
            Case.same("t", m.getTags(), "tags");
            c.observe("properties of kind " + Integer.parseInt(Case.id(m)) % 4, Case.propertyNames(m));
        }
        p.setRetryTimesWhenSendFailed(0);
        c.observe("30 days ahead", Case.codeOf(() -> {
            Message far = Case.message(topic, "", 100);
            far.setDelayTimeSec(30L * 24 * 3600);
            return p.send(far);
        }));
        c.count("latest_ms", latest);
    }

    private static void timerRecall(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.producer();
        Sink sink = push(c, topic);
        List<String> handles = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message m = Case.message(topic, "", i);
            m.setDelayTimeMs(6000);
            handles.add(p.send(m).getRecallHandle());
        }
        for (int i = 0; i < 10; i += 2) {
            String handle = handles.get(i);
            Case.check(handle != null, "no recall handle");
            p.recallMessage(topic, handle);
        }
        sink.awaitIds(25, Set.of("1", "3", "5", "7", "9"));
        Thread.sleep(1500);
        Case.same(Set.of("1", "3", "5", "7", "9"), sink.ids(), "not recalled");
        c.observe("recall of a delivered one", Case.codeOf(() -> p.recallMessage(topic, handles.get(1))));
        c.observe("recall by nonsense", Case.codeOf(() -> p.recallMessage(topic, "nonsense")));
    }

    private static void compressionTypes(Case c) throws Exception {
        String topic = c.topic(1);
        byte[] body = "round and round it goes ".repeat(5000).getBytes(StandardCharsets.UTF_8);
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer p = new DefaultMQProducer(c.name("P" + type));
            p.setCompressType(type);
            c.start(p);
            p.send(new Message(topic, type.name(), body));
        }
        List<MessageExt> stored = c.drain(topic);
        Case.same(CompressionType.values().length, stored.size(), "stored");
        for (MessageExt m : stored) {
            Case.check(Arrays.equals(body, m.getBody()), "%s: body of %d bytes", m.getTags(), m.getBody().length);
            Case.check(m.getStoreSize() < body.length / 10, "%s: stored in %d bytes", m.getTags(), m.getStoreSize());
        }
    }

    private static void autoBatch(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = new DefaultMQProducer(c.name("P"));
        p.setAutoBatch(true);
        c.start(p);
        int n = 300;
        CountDownLatch done = new CountDownLatch(n);
        Set<String> acked = ConcurrentHashMap.newKeySet();
        List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < n; i++) {
            Message m = Case.message(topic, "t", i);
            p.send(m, new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    acked.add(Case.id(m));
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failures.add(e);
                    done.countDown();
                }
            });
        }
        Case.check(done.await(30, TimeUnit.SECONDS), "%d of %d answered", acked.size(), n);
        Case.check(failures.isEmpty(), "%s", failures);
        Case.same(Case.range(0, n), Case.ids(c.drain(topic)), "stored");
    }

    /** A topic whose batches stay one record. */
    private static void batchQueue(Case c) throws Exception {
        String topic = c.topic("B", 2, Map.of("+queue.type", "BatchCQ"));
        DefaultMQProducer p = c.producer();
        for (int b = 0; b < 10; b++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                batch.add(Case.message(topic, "t", b * 10 + i));
            }
            p.send(batch);
        }
        Sink sink = push(c, topic);
        sink.awaitIds(30, Case.range(0, 100));
        Case.same(0, sink.duplicates(), "duplicates");
        List<MessageExt> stored = c.drain(topic);
        Case.same(Case.range(0, 100), Case.ids(stored), "stored");
        c.observe("properties", Case.propertyNames(stored.get(0)));
    }

    private static void messageTypes(Case c) throws Exception {
        DefaultMQProducer p = c.producer();
        for (String type : List.of("NORMAL", "FIFO", "DELAY", "TRANSACTION")) {
            String topic = c.topic(type, 2, Map.of("+message.type", type));
            p.send(Case.message(topic, "", 1));
            c.observe(type + ", stored", c.drain(topic).size());
        }
        c.observe("unknown type", Case.codeOf(() -> c.topic("odd", 1, Map.of("+message.type", "ODD"))));
        c.observe("unknown attribute", Case.codeOf(() -> c.topic("odd", 1, Map.of("+no.such", "1"))));
    }

    /** Queues are assigned by the broker (400). */
    private static void serverRebalance(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        Sink sink = new Sink();
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        for (int n = 0; n < 2; n++) {
            members[n] = c.consumer(group);
            members[n].setClientRebalance(false);
            members[n].subscribe(topic, "*");
            members[n].registerMessageListener(sink);
            c.start(members[n]);
        }
        Case.awaitQueues(4, topic, members);
        c.observe("shares", Case.queuesOf(members[0], topic) + " and " + Case.queuesOf(members[1], topic));
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 100; i++) {
            p.send(Case.message(topic, "", i));
        }
        sink.awaitIds(30, Case.range(0, 100));
    }

    // ---- POP by single requests

    private static final class Popper {
        final MQClientAPIImpl api;
        final String broker;
        final String addr;
        final String group;
        final String topic;

        Popper(Case c, String group, String topic) throws Exception {
            this.api = c.producer().getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
            this.broker = c.admin().examineTopicRouteInfo(topic).getBrokerDatas().get(0).getBrokerName();
            this.addr = c.masters().get(0);
            this.group = group;
            this.topic = topic;
        }

        PopResult pop(int queue, int max, long invisibleMs, long pollMs, boolean order, String tag) throws Exception {
            PopMessageRequestHeader h = new PopMessageRequestHeader();
            h.setConsumerGroup(group);
            h.setTopic(topic);
            h.setQueueId(queue);
            h.setMaxMsgNums(max);
            h.setInvisibleTime(invisibleMs);
            h.setPollTime(pollMs);
            h.setBornTime(System.currentTimeMillis());
            h.setInitMode(ConsumeInitMode.MIN);
            h.setExpType("TAG");
            h.setExp(tag);
            h.setOrder(order);
            CompletableFuture<PopResult> answer = new CompletableFuture<>();
            api.popMessageAsync(broker, addr, h, pollMs + 5000, new PopCallback() {
                @Override
                public void onSuccess(PopResult r) {
                    answer.complete(r);
                }

                @Override
                public void onException(Throwable e) {
                    answer.completeExceptionally(e);
                }
            });
            return answer.get(pollMs + 6000, TimeUnit.MILLISECONDS);
        }

        AckResult ack(MessageExt m, String receipt) throws Exception {
            AckMessageRequestHeader h = new AckMessageRequestHeader();
            h.setConsumerGroup(group);
            h.setTopic(m.getTopic());
            h.setQueueId(m.getQueueId());
            h.setOffset(m.getQueueOffset());
            h.setExtraInfo(receipt);
            Answer answer = new Answer();
            api.ackMessageAsync(addr, 5000, answer, h);
            return answer.result.get(6, TimeUnit.SECONDS);
        }

        AckResult invisible(MessageExt m, String receipt, long ms) throws Exception {
            ChangeInvisibleTimeRequestHeader h = new ChangeInvisibleTimeRequestHeader();
            h.setConsumerGroup(group);
            h.setTopic(m.getTopic());
            h.setQueueId(m.getQueueId());
            h.setOffset(m.getQueueOffset());
            h.setExtraInfo(receipt);
            h.setInvisibleTime(ms);
            Answer answer = new Answer();
            api.changeInvisibleTimeAsync(broker, addr, h, 5000, answer);
            return answer.result.get(6, TimeUnit.SECONDS);
        }
    }

    private static final class Answer implements AckCallback {
        final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult r) {
            result.complete(r);
        }

        @Override
        public void onException(Throwable e) {
            result.completeExceptionally(e);
        }
    }

    private static String receipt(MessageExt m) {
        return m.getProperty(MessageConst.PROPERTY_POP_CK);
    }

    private static void pop(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 20; i++) {
            p.send(Case.message(topic, "t" + i % 2, i));
        }
        Popper popper = new Popper(c, group, topic);
        Set<String> acked = new HashSet<>();
        Set<String> left = new HashSet<>();
        MessageExt changed = null;
        String changedReceipt = null;
        long begin = System.currentTimeMillis();
        while (acked.size() + left.size() < 20 && System.currentTimeMillis() < begin + 20_000) {
            PopResult r = popper.pop(-1, 8, 3000, 500, false, "*");
            if (r.getMsgFoundList() == null) {
                continue;
            }
            for (MessageExt m : r.getMsgFoundList()) {
                Case.same(8, receipt(m).split(" ").length, "parts of " + receipt(m));
                c.observe("properties", Case.propertyNames(m));
                int i = Integer.parseInt(Case.id(m));
                if (i % 4 != 3) {
                    c.observe("ack", popper.ack(m, receipt(m)).getStatus());
                    acked.add(Case.id(m));
                } else {
                    left.add(Case.id(m));
                    if (changed == null) {
                        changed = m;
                        AckResult a = popper.invisible(m, receipt(m), 8000);
                        c.observe("change invisible time", a.getStatus());
                        changedReceipt = a.getExtraInfo();
                    }
                }
            }
        }
        Case.same(20, acked.size() + left.size(), "popped once");
        Case.check(changed != null && changedReceipt != null, "no receipt after changing the invisible time");
        c.observe("nothing left", popper.pop(-1, 8, 3000, 300, false, "*").getPopStatus());
        // What was not acknowledged comes back, the changed one later than the others.
        Map<String, Long> back = new HashMap<>();
        while (back.size() < left.size() && System.currentTimeMillis() < begin + 40_000) {
            PopResult r = popper.pop(-1, 8, 20_000, 1000, false, "*");
            if (r.getMsgFoundList() != null) {
                for (MessageExt m : r.getMsgFoundList()) {
                    back.putIfAbsent(Case.id(m), System.currentTimeMillis() - begin);
                    c.observe("reconsumeTimes", m.getReconsumeTimes());
                    c.observe("topic of a revived one is the original", m.getTopic().equals(topic));
                    c.observe("properties of a revived one", Case.propertyNames(m));
                    Case.check(receipt(m) != null, "a revived one has no receipt");
                    c.observe("ack of a revived one", ackRevived(popper, m));
                }
            }
        }
        Case.same(left, back.keySet(), "came back");
        for (Map.Entry<String, Long> e : back.entrySet()) {
            Case.check(e.getValue() >= 2500, "%s came back after %d ms", e.getKey(), e.getValue());
            Case.check(!e.getKey().equals(Case.id(changed)) || e.getValue() >= 6500, "the changed one came back after %d ms", e.getValue());
        }
        c.observe("nothing after that", popper.pop(-1, 8, 3000, 4000, false, "*").getPopStatus());
        // Long polling wakes on arrival.
        long sent = System.currentTimeMillis();
        CompletableFuture<PopResult> held = CompletableFuture.supplyAsync(() -> {
            try {
                return popper.pop(-1, 1, 5000, 10_000, false, "*");
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        Thread.sleep(1000);
        p.send(Case.message(topic, "late", 100));
        PopResult woken = held.get(15, TimeUnit.SECONDS);
        Case.same("100", Case.id(woken.getMsgFoundList().get(0)), "woken by");
        c.count("woken_after_ms", System.currentTimeMillis() - sent - 1000);
        c.observe("more than 32", Case.codeOf(() -> popOrThrow(popper, -1, 33)));
        c.observe("queue out of range", Case.codeOf(() -> popOrThrow(popper, 9, 1)));
    }

    private static Object ackRevived(Popper popper, MessageExt m) throws Exception {
        // The receipt says whether the record lies in a retry topic, and where.
        String[] parts = receipt(m).split(" ");
        String topic = switch (parts[4]) {
            case "1" -> "%RETRY%" + popper.group + "_" + popper.topic;
            case "2" -> "%RETRY%" + popper.group + "+" + popper.topic;
            default -> popper.topic;
        };
        AckMessageRequestHeader h = new AckMessageRequestHeader();
        h.setConsumerGroup(popper.group);
        h.setTopic(topic);
        h.setQueueId(Integer.parseInt(parts[6]));
        h.setOffset(Long.parseLong(parts[7]));
        h.setExtraInfo(receipt(m));
        Answer answer = new Answer();
        popper.api.ackMessageAsync(popper.addr, 5000, answer, h);
        return answer.result.get(6, TimeUnit.SECONDS).getStatus();
    }

    private static PopResult popOrThrow(Popper popper, int queue, int max) throws Exception {
        try {
            return popper.pop(queue, max, 1000, 0, false, "*");
        } catch (java.util.concurrent.ExecutionException e) {
            throw (Exception) e.getCause();
        }
    }

    /** Ordered POP: a queue gives nothing more until what it gave is acknowledged. */
    private static void popOrder(Case c) throws Exception {
        String topic = c.topic(1);
        String group = c.name("G");
        Api.group(c.admin(), c.masters().get(0), group, true);
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 10; i++) {
            p.send(Case.message(topic, "", i));
        }
        Popper popper = new Popper(c, group, topic);
        PopResult first = popper.pop(0, 3, 4000, 0, true, "*");
        Case.same(3, first.getMsgFoundList().size(), "first pop");
        Case.same(List.of("0", "1", "2"), first.getMsgFoundList().stream().map(Case::id).toList(), "order");
        c.observe("while held", popper.pop(0, 3, 4000, 0, true, "*").getPopStatus());
        for (MessageExt m : first.getMsgFoundList()) {
            c.observe("ack", popper.ack(m, receipt(m)).getStatus());
        }
        PopResult second = popper.pop(0, 2, 2000, 0, true, "*");
        Case.same(List.of("3", "4"), second.getMsgFoundList().stream().map(Case::id).toList(), "after acks");
        List<PopResult> again = new ArrayList<>();
        Case.await(15, "the same again after the invisible time", () -> {
            PopResult r = popper.pop(0, 2, 2000, 0, true, "*");
            if (r.getMsgFoundList() != null && !r.getMsgFoundList().isEmpty()) {
                again.add(r);
            }
            return !again.isEmpty();
        });
        Case.same(List.of("3", "4"), again.get(0).getMsgFoundList().stream().map(Case::id).toList(), "again");
        c.observe("reconsumeTimes", again.get(0).getMsgFoundList().get(0).getReconsumeTimes());
    }

    // ---- POP behind the push consumer

    static DefaultMQPushConsumer popConsumer(Case c, String topic, String group) throws Exception {
        for (String master : c.masters()) {
            c.admin().setMessageRequestMode(master, topic, group, MessageRequestMode.POP, 0, 5000);
        }
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.setPopInvisibleTime(10_000);
        return consumer;
    }

    private static void popPush(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 100; i++) {
            p.send(Case.message(topic, "t", i));
        }
        Sink sink = new Sink();
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer consumer = popConsumer(c, topic, group);
            consumer.registerMessageListener(sink);
            c.start(consumer);
        }
        sink.awaitIds(40, Case.range(0, 100));
        for (int i = 100; i < 300; i++) {
            p.send(Case.message(topic, "t", i));
        }
        sink.awaitIds(40, Case.range(0, 300));
        Case.same(0, sink.duplicates(), "duplicates");
        c.observe("popped, not pulled", sink.messages().stream().allMatch(m -> receipt(m) != null));
    }

    private static void popPushRetry(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.group("G");
        Map<String, AtomicInteger> attempts = new ConcurrentHashMap<>();
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = popConsumer(c, topic, group);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt m : batch) {
                if (attempts.computeIfAbsent(Case.id(m), k -> new AtomicInteger()).incrementAndGet() == 1 && Integer.parseInt(Case.id(m)) % 5 == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            sink.add(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start(consumer);
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 20; i++) {
            p.send(Case.message(topic, "t", i));
        }
        sink.awaitIds(60, Case.range(0, 20));
        for (MessageExt m : sink.messages()) {
            c.observe(Integer.parseInt(Case.id(m)) % 5 == 0 ? "reconsumeTimes of a retry" : "reconsumeTimes", m.getReconsumeTimes());
        }
    }

    private static void popPushOrderly(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.name("G");
        Api.group(c.admin(), c.masters().get(0), group, true);
        c.topicNamed("%RETRY%" + group, 1, 6, Map.of());
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = popConsumer(c, topic, group);
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            sink.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start(consumer);
        DefaultMQProducer p = c.producer();
        String broker = c.admin().examineTopicRouteInfo(topic).getBrokerDatas().get(0).getBrokerName();
        for (int i = 0; i < 60; i++) {
            p.send(Case.message(topic, "t", i), new MessageQueue(topic, broker, i % 2));
        }
        sink.awaitIds(60, Case.range(0, 60));
        sink.checkOrderPerQueue();
    }
}
