import java.nio.charset.StandardCharsets;
import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What both client lines can do. */
final class Scenarios {
    private Scenarios() { }

    static void register(Map<String, Case.Scenario> table) {
        table.put("send-sync", Scenarios::sendSync);
        table.put("send-async", Scenarios::sendAsync);
        table.put("send-oneway", Scenarios::sendOneway);
        table.put("send-batch", Scenarios::sendBatch);
        table.put("send-selector", Scenarios::sendSelector);
        table.put("send-auto-create", Scenarios::sendAutoCreate);
        table.put("send-compressed", Scenarios::sendCompressed);
        table.put("send-large", Scenarios::sendLarge);
        table.put("send-namespace", Scenarios::sendNamespace);
        table.put("send-refused", Scenarios::sendRefused);
        table.put("delay-level", Scenarios::delayLevel);
        table.put("transaction", Scenarios::transaction);
        table.put("request-reply", Scenarios::requestReply);
        table.put("trace", Scenarios::trace);
        table.put("push-concurrent", Scenarios::pushConcurrent);
        table.put("push-orderly", Scenarios::pushOrderly);
        table.put("push-broadcast", Scenarios::pushBroadcast);
        table.put("push-tags", Scenarios::pushTags);
        table.put("push-sql92", Scenarios::pushSql92);
        table.put("push-fresh-group", Scenarios::pushFreshGroup);
        table.put("push-latency", Scenarios::pushLatency);
        table.put("retry-dlq", Scenarios::retryDlq);
        table.put("retry-order-dlq", Scenarios::retryOrderDlq);
        table.put("offsets-resume", Scenarios::offsetsResume);
        table.put("consume-from", Scenarios::consumeFrom);
        table.put("consume-from-timestamp", Scenarios::consumeFromTimestamp);
        table.put("rebalance", Scenarios::rebalance);
        table.put("reset-offset", Scenarios::resetOffset);
        table.put("pull", Scenarios::pull);
        table.put("pull-answers", Scenarios::pullAnswers);
        table.put("lite-pull-assign", Scenarios::litePullAssign);
        table.put("lite-pull-subscribe", Scenarios::litePullSubscribe);
        table.put("query", Scenarios::query);
        table.put("relay", Scenarios::relay);
    }

    // ---- sending

    private static void sendSync(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        Map<Integer, Long> nextOf = new HashMap<>();
        Set<String> messageIds = new HashSet<>();
        for (int i = 0; i < 200; i++) {
            SendResult r = p.send(Case.message(topic, "t" + i % 3, i));
            Case.same(SendStatus.SEND_OK, r.getSendStatus(), "status");
            int queue = r.getMessageQueue().getQueueId();
            Case.same(nextOf.getOrDefault(queue, 0L), r.getQueueOffset(), "offset in queue " + queue);
            nextOf.put(queue, r.getQueueOffset() + 1);
            Case.check(messageIds.add(r.getMsgId()), "id %s given twice", r.getMsgId());
            Case.check(r.getOffsetMsgId() != null && r.getOffsetMsgId().length() == 32, "offset id %s", r.getOffsetMsgId());
            c.observe("regionId", r.getRegionId());
        }
        List<MessageExt> stored = c.drain(topic);
        Case.same(200, stored.size(), "stored");
        for (MessageExt m : stored) {
            int i = Integer.parseInt(Case.id(m));
            Message sent = Case.message(topic, "t" + i % 3, i);
            Case.same(topic, m.getTopic(), "topic");
            Case.same(sent.getTags(), m.getTags(), "tags");
            Case.same(sent.getKeys(), m.getKeys(), "keys");
            Case.check(Arrays.equals(sent.getBody(), m.getBody()), "body of %d", i);
            Case.check(messageIds.remove(m.getMsgId()), "stored id %s was not acknowledged", m.getMsgId());
            Case.check(m.getStoreTimestamp() >= m.getBornTimestamp() - 1000, "times");
            c.observe("properties", Case.propertyNames(m));
            c.observe("sysFlag", m.getSysFlag());
        }
        c.observe("queues", nextOf.keySet());
    }

    private static void sendAsync(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        int n = 1000;
        CountDownLatch done = new CountDownLatch(n);
        Set<String> acked = ConcurrentHashMap.newKeySet();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int i = 0; i < n; i++) {
            Message m = Case.message(topic, "", i);
            p.send(m, new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    acked.add(Case.id(m));
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failure.set(e);
                    done.countDown();
                }
            });
        }
        Case.check(done.await(30, TimeUnit.SECONDS), "%d of %d answered", acked.size(), n);
        Case.check(failure.get() == null, "%s", failure.get());
        Case.same(Case.range(0, n), acked, "acknowledged");
        Case.same(acked, Case.ids(c.drain(topic)), "stored");
    }

    private static void sendOneway(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        p.send(Case.message(topic, "", 0)); // the connection is there before what nobody answers
        for (int i = 1; i < 200; i++) {
            p.sendOneway(Case.message(topic, "", i));
        }
        Case.await(15, "200 stored", () -> c.drain(topic).size() == 200);
        Case.same(Case.range(0, 200), Case.ids(c.drain(topic)), "stored");
    }

    private static void sendBatch(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        for (int b = 0; b < 5; b++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                batch.add(Case.message(topic, "t" + i % 2, b * 20 + i));
            }
            SendResult r = p.send(batch);
            Case.same(SendStatus.SEND_OK, r.getSendStatus(), "status");
            Case.same(20, r.getMsgId().split(",").length, "ids");
            Case.same(20, r.getOffsetMsgId().split(",").length, "offset ids");
        }
        List<MessageExt> stored = c.drain(topic);
        Case.same(Case.range(0, 100), Case.ids(stored), "stored");
        Map<Integer, Integer> queueOfBatch = new HashMap<>();
        Map<Integer, Integer> last = new HashMap<>();
        for (MessageExt m : stored) {
            int i = Integer.parseInt(Case.id(m));
            Integer queue = queueOfBatch.putIfAbsent(i / 20, m.getQueueId());
            Case.check(queue == null || queue == m.getQueueId(), "batch %d is in two queues", i / 20);
            Integer before = last.put(i / 20, i);
            Case.check(before == null || before == i - 1, "%d follows %s", i, before);
            Case.same("t" + i % 20 % 2, m.getTags(), "tags");
            c.observe("properties", Case.propertyNames(m));
        }
    }

    private static void sendSelector(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 80; i++) {
            String order = "order-" + i % 10;
            SendResult r = p.send(Case.message(topic, "", i), new SelectMessageQueueByHash(), order);
            Case.same(Math.abs(order.hashCode() % 4), r.getMessageQueue().getQueueId(), "queue of " + order);
        }
        for (int queue = 0; queue < 4; queue++) {
            MessageQueue q = new MessageQueue(topic, c.drain(topic).get(0).getBrokerName(), queue);
            p.send(Case.message(topic, "", 80 + queue), q);
        }
        List<MessageExt> stored = c.drain(topic);
        Case.same(84, stored.size(), "stored");
        for (MessageExt m : stored) {
            int i = Integer.parseInt(Case.id(m));
            Case.same(i < 80 ? Math.abs(("order-" + i % 10).hashCode() % 4) : i - 80, m.getQueueId(), "queue of " + i);
        }
    }

    private static void sendAutoCreate(Case c) throws Exception {
        String topic = c.name("auto");
        DefaultMQProducer p = c.producer();
        p.setDefaultTopicQueueNums(3);
        p.send(Case.message(topic, "", 0));
        Case.await(10, "route", () -> Api.writeQueues(c.admin(), topic) > 0);
        c.observe("queues", Api.writeQueues(c.admin(), topic));
        Case.same(Case.range(0, 1), Case.ids(c.drain(topic)), "stored");
    }

    private static void sendCompressed(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.producer();
        byte[] body = "all work and no play ".repeat(10_000).getBytes(StandardCharsets.UTF_8);
        p.send(new Message(topic, "", "k0", body));
        MessageExt stored = c.drain(topic).get(0);
        Case.check(Arrays.equals(body, stored.getBody()), "body of %d bytes came back as %d", body.length, stored.getBody().length);
        Case.check(stored.getStoreSize() < body.length / 10, "stored in %d bytes, thus not compressed", stored.getStoreSize());
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.await(20, "the message", m -> !m.isEmpty());
        Case.check(Arrays.equals(body, sink.messages().get(0).getBody()), "body through push");
    }

    private static void sendLarge(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.producer();
        p.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        p.setMaxMessageSize(16 * 1024 * 1024);
        p.setSendMsgTimeout(15_000);
        byte[] body = new byte[4 * 1024 * 1024 - 10_000];
        new Random(7).nextBytes(body);
        Case.same(SendStatus.SEND_OK, p.send(new Message(topic, body)).getSendStatus(), "status");
        for (int size : new int[] {0, 1, 1000, 1024 * 1024}) {
            if (size > 0) {
                p.send(new Message(topic, Arrays.copyOf(body, size)));
            }
        }
        p.setRetryTimesWhenSendFailed(0);
        c.observe("over 4 MiB", Case.codeOf(() -> p.send(new Message(topic, new byte[5 * 1024 * 1024]))));
        List<MessageExt> stored = c.drain(topic);
        Case.same(4, stored.size(), "stored");
        for (MessageExt m : stored) {
            Case.check(Arrays.equals(Arrays.copyOf(body, m.getBody().length), m.getBody()), "body of %d bytes", m.getBody().length);
        }
    }

    private static void sendNamespace(Case c) throws Exception {
        String space = c.name("NS");
        String topic = "orders";
        c.topicNamed(space + "%" + topic, 2, 6, Map.of());
        DefaultMQProducer p = new DefaultMQProducer(c.name("P"));
        p.setNamespace(space);
        c.start(p);
        for (int i = 0; i < 20; i++) {
            p.send(Case.message(topic, "", i));
        }
        DefaultMQPushConsumer consumer = c.consumer(c.name("G"));
        consumer.setNamespace(space);
        consumer.subscribe(topic, "*");
        Sink sink = new Sink();
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.awaitIds(30, Case.range(0, 20));
        Case.same(topic, sink.messages().get(0).getTopic(), "topic without its namespace");
        Case.same(Case.range(0, 20), Case.ids(c.drain(space + "%" + topic)), "stored under the full name");
    }

    private static void sendRefused(Case c) throws Exception {
        DefaultMQProducer p = c.producer();
        p.setRetryTimesWhenSendFailed(0);
        String readOnly = c.topicNamed(c.name("ro"), 1, 4, Map.of());
        MessageQueue q = new MessageQueue(readOnly, brokerName(c, readOnly), 0);
        c.observe("read-only topic, to a queue", Case.codeOf(() -> p.send(Case.message(readOnly, "", 0), q)));
        c.observe("read-only topic", Case.codeOf(() -> p.send(Case.message(readOnly, "", 0))));
        String topic = c.topic(2);
        MessageQueue beyond = new MessageQueue(topic, brokerName(c, topic), 9);
        c.observe("queue out of range", Case.codeOf(() -> p.send(Case.message(topic, "", 0), beyond)));
        c.observe("system topic", Case.codeOf(() -> p.send(Case.message("SCHEDULE_TOPIC_XXXX", "", 0))));
        Message many = Case.message(topic, "", 1);
        many.putUserProperty("big", "x".repeat(40_000));
        c.observe("properties over 32767", Case.codeOf(() -> p.send(many)));
        c.observe("no such topic, no auto creation", Case.codeOf(() -> c.admin().examineTopicRouteInfo(c.name("none"))));
        p.send(Case.message(topic, "", 2));
        Case.check(Case.ids(c.drain(topic)).contains("2"), "goes on after refusals");
    }

    private static String brokerName(Case c, String topic) throws Exception {
        return c.admin().examineTopicRouteInfo(topic).getBrokerDatas().get(0).getBrokerName();
    }

    private static void delayLevel(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        Map<String, Long> sent = new HashMap<>();
        for (int i = 0; i < 30; i++) {
            Message m = Case.message(topic, "t", i);
            m.setDelayTimeLevel(i % 3); // 0 at once, 1 after 1 s, 2 after 5 s
            sent.put("" + i, System.currentTimeMillis());
            Case.same(SendStatus.SEND_OK, p.send(m).getSendStatus(), "status");
        }
        sink.awaitIds(25, Case.range(0, 30));
        long[] due = {0, 1000, 5000};
        long latest = 0;
        for (Map.Entry<String, Long> e : sink.timeOf().entrySet()) {
            long after = e.getValue() - sent.get(e.getKey());
            long late = after - due[Integer.parseInt(e.getKey()) % 3];
            Case.check(late > -50 && late < 4000, "message %s of level %d came after %d ms", e.getKey(), Integer.parseInt(e.getKey()) % 3, after);
            latest = Math.max(latest, late);
        }
        Case.same(0, sink.duplicates(), "duplicates");
        for (MessageExt m : sink.messages()) {
            int level = Integer.parseInt(Case.id(m)) % 3;
            Case.same("t", m.getTags(), "tags");
            c.observe("properties of level " + level, Case.propertyNames(m));
        }
        c.count("latest_ms", latest);
    }

    private static void transaction(Case c) throws Exception {
        String topic = c.topic(2);
        Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        TransactionMQProducer p = new TransactionMQProducer(c.name("TP"));
        p.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                return LocalTransactionState.valueOf(m.getUserProperty("first"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                checks.computeIfAbsent(Case.id(m), k -> new AtomicInteger()).incrementAndGet();
                return LocalTransactionState.valueOf(m.getUserProperty("then"));
            }
        });
        c.start(p);
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        String[][] cases = {
            {"COMMIT_MESSAGE", "UNKNOW"}, {"ROLLBACK_MESSAGE", "UNKNOW"}, {"UNKNOW", "COMMIT_MESSAGE"}, {"UNKNOW", "ROLLBACK_MESSAGE"}};
        for (int i = 0; i < 40; i++) {
            Message m = Case.message(topic, "t", i);
            m.putUserProperty("first", cases[i % 4][0]);
            m.putUserProperty("then", cases[i % 4][1]);
            SendResult r = p.sendMessageInTransaction(m, null);
            Case.same(SendStatus.SEND_OK, r.getSendStatus(), "status");
        }
        Set<String> committed = new HashSet<>();
        Set<String> unknown = new HashSet<>();
        for (int i = 0; i < 40; i++) {
            if (i % 4 == 0 || i % 4 == 2) {
                committed.add("" + i);
            }
            if (i % 4 >= 2) {
                unknown.add("" + i);
            }
        }
        sink.awaitIds(60, committed);
        Case.await(30, "check-back of all " + unknown.size() + " unknown", () -> checks.keySet().containsAll(unknown));
        Case.same(unknown, checks.keySet(), "checked");
        Case.same(committed, sink.ids(), "consumed");
        Case.same(0, sink.duplicates(), "duplicates");
        for (MessageExt m : sink.messages()) {
            c.observe("properties after " + m.getUserProperty("first"), Case.propertyNames(m));
            c.observe("sysFlag", m.getSysFlag());
        }
        c.count("checks", checks.values().stream().mapToInt(AtomicInteger::get).sum());
    }

    private static void requestReply(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer asking = c.producer();
        DefaultMQProducer answering = c.producer();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, x) -> {
            for (MessageExt m : batch) {
                try {
                    if (m.getTags() != null && m.getTags().equals("silent")) {
                        continue;
                    }
                    answering.send(MessageUtil.createReplyMessage(m, ("re: " + Case.id(m)).getBytes(StandardCharsets.UTF_8)));
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start(consumer);
        Case.awaitQueues(2, topic, consumer);
        for (int i = 0; i < 20; i++) {
            Message reply = asking.request(Case.message(topic, "t", i), 10_000);
            Case.same("re: " + i, new String(reply.getBody(), StandardCharsets.UTF_8), "reply");
            c.observe("properties", Case.propertyNames(reply));
            c.observe("reply topic", reply.getTopic());
        }
        c.observe("nobody answers", Case.codeOf(() -> asking.request(Case.message(topic, "silent", 99), 1_500)));
    }

    private static void trace(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.start(new DefaultMQProducer(c.name("P"), null, true, null));
        Set<String> ids = new HashSet<>();
        for (int i = 0; i < 5; i++) {
            ids.add(p.send(Case.message(topic, "", i)).getMsgId());
        }
        DefaultMQPushConsumer consumer = c.configured(new DefaultMQPushConsumer(null, c.group("G"), null,
            new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely(), true, null));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Sink sink = new Sink();
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.awaitIds(20, Case.range(0, 5));
        Case.await(20, "traces of send and consumption", () -> {
            Set<String> kinds = new TreeSet<>();
            for (MessageExt m : c.drain("RMQ_SYS_TRACE_TOPIC")) {
                String text = new String(m.getBody(), StandardCharsets.UTF_8);
                if (ids.stream().anyMatch(text::contains)) {
                    for (String record : text.split("\u0002")) {
                        kinds.add(record.split("\u0001")[0]);
                    }
                }
            }
            c.observe("kinds", kinds);
            return kinds.containsAll(Set.of("Pub", "SubBefore", "SubAfter"));
        });
    }

    // ---- push consumers

    private static void sendAll(DefaultMQProducer p, String topic, String tags, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            Case.same(SendStatus.SEND_OK, p.send(Case.message(topic, tags, i)).getSendStatus(), "status");
        }
    }

    private static void pushConcurrent(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "t", 0, 200); // a backlog before anyone is there
        Sink both = new Sink();
        Sink[] own = {new Sink(), new Sink()};
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        for (int n = 0; n < 2; n++) {
            Sink mine = own[n];
            members[n] = c.consumer(group);
            members[n].subscribe(topic, "*");
            members[n].registerMessageListener((MessageListenerConcurrently) (batch, x) -> {
                mine.add(batch);
                both.add(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start(members[n]);
        }
        Case.awaitQueues(4, topic, members);
        sendAll(p, topic, "t", 200, 600);
        both.awaitIds(40, Case.range(0, 600));
        Case.check(own[0].messages().size() > 50 && own[1].messages().size() > 50, "shares %d and %d", own[0].messages().size(),
            own[1].messages().size());
        Set<String> late = new HashSet<>();
        for (MessageExt m : both.messages()) {
            if (Integer.parseInt(Case.id(m)) >= 200) {
                Case.check(late.add(Case.id(m)), "%s was consumed twice while nobody came or went", Case.id(m));
            }
        }
        c.observe("properties", Case.propertyNames(both.messages().get(0)));
        c.count("duplicates", both.duplicates());
    }

    private static void pushOrderly(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        Sink sink = new Sink();
        AtomicBoolean suspended = new AtomicBoolean();
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        ConcurrentHashMap<String, AtomicInteger> inside = new ConcurrentHashMap<>();
        AtomicBoolean overlap = new AtomicBoolean();
        for (int n = 0; n < 2; n++) {
            members[n] = c.consumer(group);
            members[n].subscribe(topic, "*");
            members[n].registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                String queue = context.getMessageQueue().toString();
                AtomicInteger mine = inside.computeIfAbsent(queue, k -> new AtomicInteger());
                if (mine.incrementAndGet() > 1) {
                    overlap.set(true);
                }
                try {
                    if (suspended.compareAndSet(false, true)) {
                        context.setSuspendCurrentQueueTimeMillis(200);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    sink.add(batch);
                    return ConsumeOrderlyStatus.SUCCESS;
                } finally {
                    mine.decrementAndGet();
                }
            });
            c.start(members[n]);
        }
        Case.awaitQueues(4, topic, members);
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 400; i++) {
            p.send(Case.message(topic, "", i), new SelectMessageQueueByHash(), i % 16);
        }
        sink.awaitIds(60, Case.range(0, 400));
        sink.checkOrderPerQueue();
        Case.check(!overlap.get(), "two listeners were inside one queue");
        Map<Integer, Integer> last = new HashMap<>();
        for (MessageExt m : sink.messages()) {
            int i = Integer.parseInt(Case.id(m));
            Integer before = last.put(i % 16, i);
            Case.check(before == null || before <= i, "order %d: %d after %s", i % 16, i, before);
        }
    }

    private static void pushBroadcast(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        Sink[] own = {new Sink(), new Sink()};
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer member = c.consumer(group);
            Api.broadcast(member);
            member.subscribe(topic, "*");
            member.registerMessageListener(own[n]);
            c.start(member);
            Case.await(30, "all 4 queues", () -> Case.queuesOf(member, topic) == 4);
        }
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "", 0, 100);
        for (Sink sink : own) {
            sink.awaitIds(30, Case.range(0, 100));
            Case.same(0, sink.duplicates(), "duplicates");
        }
    }

    private static void pushTags(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        // Two tags of equal Java hash: the broker lets both through, the client drops the other.
        String[] tags = {"red", "green", "AaAa", "BBBB", null};
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "red || AaAa");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        for (int i = 0; i < 250; i++) {
            p.send(Case.message(topic, tags[i % 5], i));
        }
        Set<String> wanted = new HashSet<>();
        for (int i = 0; i < 250; i += 5) {
            wanted.add("" + i);
            wanted.add("" + (i + 2));
        }
        sink.awaitIds(30, wanted);
        p.send(Case.message(topic, "red", 1000));
        sink.awaitIds(30, Set.of("1000"));
        wanted.add("1000");
        Case.same(wanted, sink.ids(), "consumed");
    }

    private static void pushSql92(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        Map<String, String> expressions = new TreeMap<>();
        expressions.put("between", "n BETWEEN 10 AND 19");
        expressions.put("in", "colour IN ('red', 'blue') AND n < 30");
        expressions.put("null", "special IS NOT NULL OR n = 5");
        expressions.put("not", "NOT (n > 3) AND colour <> 'red'");
        Map<String, Sink> sinks = new TreeMap<>();
        for (Map.Entry<String, String> e : expressions.entrySet()) {
            DefaultMQPushConsumer consumer = c.consumer(c.group("G" + e.getKey()));
            consumer.subscribe(topic, MessageSelector.bySql(e.getValue()));
            Sink sink = new Sink();
            consumer.registerMessageListener(sink);
            c.start(consumer);
            sinks.put(e.getKey(), sink);
        }
        String[] colours = {"red", "green", "blue"};
        Map<String, Set<String>> wanted = new TreeMap<>();
        for (String key : expressions.keySet()) {
            wanted.put(key, new HashSet<>());
        }
        for (int i = 0; i < 60; i++) {
            Message m = Case.message(topic, "", i);
            m.putUserProperty("n", "" + i);
            m.putUserProperty("colour", colours[i % 3]);
            if (i % 20 == 0) {
                m.putUserProperty("special", "yes");
            }
            p.send(m);
            if (i >= 10 && i <= 19) {
                wanted.get("between").add("" + i);
            }
            if (i % 3 != 1 && i < 30) {
                wanted.get("in").add("" + i);
            }
            if (i % 20 == 0 || i == 5) {
                wanted.get("null").add("" + i);
            }
            if (i <= 3 && i % 3 != 0) {
                wanted.get("not").add("" + i);
            }
        }
        for (String key : expressions.keySet()) {
            sinks.get(key).awaitIds(45, wanted.get(key));
        }
        for (String key : expressions.keySet()) {
            Case.same(wanted.get(key), sinks.get(key).ids(), expressions.get(key));
        }
        DefaultMQPushConsumer wrong = c.consumer(c.group("Gwrong"));
        wrong.subscribe(topic, MessageSelector.bySql("n >"));
        wrong.registerMessageListener(new Sink());
        c.observe("broken expression", Case.codeOf(() -> c.start(wrong)));
        wrong.shutdown();
    }

    /** A group that nobody created: the first heartbeat makes its retry topic. */
    private static void pushFreshGroup(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.name("fresh");
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "", 0, 50);
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.awaitIds(30, Case.range(0, 50));
        Case.await(10, "retry topic", () -> Api.writeQueues(c.admin(), "%RETRY%" + group) > 0);
        c.observe("retry queues", Api.writeQueues(c.admin(), "%RETRY%" + group));
        Case.same(1, Api.clientIds(c.admin(), group).size(), "members");
        consumer.shutdown();
        c.observe("after leaving", Case.codeOf(() -> Api.clientIds(c.admin(), group)));
    }

    /** An idle consumer gets a message as soon as it is stored, and not at its next poll. */
    private static void pushLatency(Case c) throws Exception {
        String topic = c.topic(1);
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        Case.awaitQueues(1, topic, consumer);
        DefaultMQProducer p = c.producer();
        List<Long> took = new ArrayList<>();
        for (int i = 0; i < 30; i++) {
            Thread.sleep(100); // long enough for the pull to be held
            long begin = System.currentTimeMillis();
            p.send(Case.message(topic, "", i));
            String id = "" + i;
            sink.await(10, "message " + i, m -> Case.ids(m).contains(id));
            took.add(System.currentTimeMillis() - begin);
        }
        Collections.sort(took);
        c.count("median_ms", took.get(15));
        c.count("max_ms", took.get(29));
        Case.check(took.get(15) < 100, "median %d ms from send to listener", took.get(15));
    }

    private static void retryDlq(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.group("G");
        Map<String, List<Integer>> attempts = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        Sink good = new Sink();
        Map<String, String> retryProperties = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt m : batch) {
                attempts.computeIfAbsent(Case.id(m), k -> Collections.synchronizedList(new ArrayList<>())).add(m.getReconsumeTimes());
                if (m.getReconsumeTimes() > 0) {
                    retryProperties.put("" + m.getReconsumeTimes(), Case.propertyNames(m));
                    Case.same(topic, m.getTopic(), "topic of a retry");
                }
            }
            if (Integer.parseInt(Case.id(batch.get(0))) % 2 == 0 || batch.get(0).getReconsumeTimes() == 1 && Case.id(batch.get(0)).equals("1")) {
                good.add(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        c.start(consumer);
        Case.awaitQueues(2, topic, consumer);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "t", 0, 10);
        String dead = "%DLQ%" + group;
        Case.await(45, "4 dead letters", () -> {
            // A dead-letter topic may be write-only: open it for reading.
            Api.writeQueues(c.admin(), dead);
            return c.admin().examineTopicStats(dead).getOffsetTable().values().stream().mapToLong(o -> o.getMaxOffset()).sum() == 4;
        });
        c.observe("dead-letter queues", Api.writeQueues(c.admin(), dead));
        c.observe("dead-letter perm", c.admin().examineTopicRouteInfo(dead).getQueueDatas().get(0).getPerm());
        for (int i = 0; i < 10; i++) {
            List<Integer> expected = i % 2 == 0 ? List.of(0) : i == 1 ? List.of(0, 1) : List.of(0, 1, 2);
            Case.same(expected, attempts.get("" + i), "attempts of " + i);
        }
        c.topicNamed(dead, 1, 6, Map.of());
        List<MessageExt> letters = c.drain(dead);
        Case.same(Set.of("3", "5", "7", "9"), Case.ids(letters), "dead letters");
        for (MessageExt m : letters) {
            c.observe("dead-letter properties", Case.propertyNames(m));
            c.observe("dead-letter reconsumeTimes", m.getReconsumeTimes());
            Case.check(topic.equals(m.getProperty(MessageConst.PROPERTY_RETRY_TOPIC)), "RETRY_TOPIC %s", m.getProperties());
        }
        c.observe("retry properties", retryProperties);
    }

    /** An orderly consumer that never succeeds sends back after its attempts and goes on. */
    private static void retryOrderDlq(Case c) throws Exception {
        String topic = c.topic(1);
        String group = c.group("G");
        AtomicInteger attempts = new AtomicInteger();
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            if (Case.id(batch.get(0)).equals("3")) {
                attempts.incrementAndGet();
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            sink.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start(consumer);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "", 0, 8);
        Set<String> others = Case.range(0, 8);
        others.remove("3");
        sink.awaitIds(45, others);
        sink.checkOrderPerQueue();
        c.observe("attempts", attempts.get());
        String dead = "%DLQ%" + group;
        Case.await(30, "a dead letter", () -> c.admin().examineTopicStats(dead).getOffsetTable().values().stream()
            .mapToLong(o -> o.getMaxOffset()).sum() == 1);
    }

    private static void offsetsResume(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        for (int round = 0; round < 3; round++) {
            sendAll(p, topic, "", round * 50, round * 50 + 50);
            Sink sink = new Sink();
            DefaultMQPushConsumer consumer = c.consumer(group);
            consumer.setAwaitTerminationMillisWhenShutdown(5000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(sink);
            c.start(consumer);
            sink.awaitIds(30, Case.range(round * 50, round * 50 + 50));
            consumer.shutdown();
            Case.same(Case.range(round * 50, round * 50 + 50), sink.ids(), "round " + round);
        }
        long committed = c.admin().examineConsumeStats(group).getOffsetTable().entrySet().stream()
            .filter(e -> e.getKey().getTopic().equals(topic)).mapToLong(e -> e.getValue().getConsumerOffset()).sum();
        Case.same(150L, committed, "committed");
    }

    private static void consumeFrom(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "", 0, 20);
        for (ConsumeFromWhere where : new ConsumeFromWhere[] {ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET}) {
            Sink sink = new Sink();
            DefaultMQPushConsumer consumer = c.consumer(c.group(where.name()));
            consumer.setConsumeFromWhere(where);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(sink);
            c.start(consumer);
            Case.awaitQueues(1, topic, consumer);
            int marker = 1000 + where.ordinal();
            p.send(Case.message(topic, "", marker));
            sink.awaitIds(45, Set.of("" + marker));
            sink.awaitQuiet();
            c.observe(where.name() + ", all of the first 20", sink.ids().containsAll(Case.range(0, 20)));
        }
    }

    private static void consumeFromTimestamp(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "", 0, 20);
        Thread.sleep(2500);
        Date middle = new Date(System.currentTimeMillis() / 1000 * 1000);
        Thread.sleep(1500);
        sendAll(p, topic, "", 20, 40);
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(c.group("G"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(middle));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.awaitIds(45, Case.range(20, 40));
        sink.awaitQuiet();
        c.observe("older ones", sink.ids().contains("0"));
    }

    private static void rebalance(Case c) throws Exception {
        String topic = c.topic(8);
        String group = c.group("G");
        Sink sink = new Sink();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        AtomicBoolean stop = new AtomicBoolean();
        AtomicInteger sent = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        DefaultMQProducer p = c.producer();
        Thread sending = new Thread(() -> {
            while (!stop.get()) {
                try {
                    p.send(Case.message(topic, "", sent.get()));
                    sent.incrementAndGet();
                    Thread.sleep(5);
                } catch (Exception e) {
                    failure.set(e);
                    return;
                }
            }
        });
        sending.start();
        try {
            for (int n = 0; n < 3; n++) {
                DefaultMQPushConsumer member = c.consumer(group);
                member.subscribe(topic, "*");
                member.registerMessageListener(sink);
                members.add(c.start(member));
                long begin = System.currentTimeMillis();
                Case.awaitQueues(8, topic, members.toArray(new DefaultMQPushConsumer[0]));
                c.count("join_" + n + "_ms", System.currentTimeMillis() - begin);
            }
            Set<Integer> shares = new TreeSet<>();
            for (DefaultMQPushConsumer member : members) {
                shares.add(Case.queuesOf(member, topic));
            }
            Case.same(new TreeSet<>(Set.of(2, 3)), shares, "shares of 8 queues among 3");
            while (members.size() > 1) {
                members.remove(0).shutdown();
                Case.awaitQueues(8, topic, members.toArray(new DefaultMQPushConsumer[0]));
            }
        } finally {
            stop.set(true);
            sending.join();
        }
        Case.check(failure.get() == null, "%s", failure.get());
        sink.awaitIds(30, Case.range(0, sent.get()));
        c.count("sent", sent.get());
        c.count("duplicates", sink.duplicates());
    }

    private static void resetOffset(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        long start = System.currentTimeMillis() - 1000;
        sendAll(p, topic, "", 0, 30);
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        sink.awaitIds(30, Case.range(0, 30));
        Case.await(10, "offsets at the broker", () -> committed(c, group, topic) == 30);
        Map<MessageQueue, Long> to = c.admin().resetOffsetByTimestamp(topic, group, start, true);
        Case.same(2, to.size(), "queues that were reset");
        Case.check(to.values().stream().allMatch(o -> o == 0), "reset to %s", to);
        sink.await(60, "all 30 again", all -> all.size() >= 60);
        consumer.shutdown();
        Set<String> again = new HashSet<>();
        for (MessageExt m : sink.messages().subList(30, 60)) {
            again.add(Case.id(m));
        }
        Case.same(Case.range(0, 30), again, "second time");
        c.observe("offline", Case.codeOf(() -> c.admin().resetOffsetByTimestamp(topic, group, start, true)));
    }

    private static long committed(Case c, String group, String topic) throws Exception {
        return c.admin().examineConsumeStats(group).getOffsetTable().entrySet().stream()
            .filter(e -> e.getKey().getTopic().equals(topic)).mapToLong(e -> e.getValue().getConsumerOffset()).sum();
    }

    // ---- pull consumers

    private static void pull(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        MessageQueue q = new MessageQueue(topic, brokerName(c, topic), 1);
        List<Long> times = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            p.send(Case.message(topic, "t" + i % 2, i), q);
            if (i % 25 == 0) {
                Thread.sleep(50);
                times.add(System.currentTimeMillis());
                Thread.sleep(50);
            }
        }
        DefaultMQPullConsumer consumer = c.pullConsumer(c.group("G"));
        Case.same(0L, consumer.minOffset(q), "min offset");
        Case.same(100L, consumer.maxOffset(q), "max offset");
        Case.check(consumer.earliestMsgStoreTime(q) > System.currentTimeMillis() - 120_000, "earliest time");
        for (int n = 0; n < times.size(); n++) {
            c.observe("offset at time " + n, consumer.searchOffset(q, times.get(n))); // 4.x goes by file times
        }
        c.observe("nothing committed", consumer.fetchConsumeOffset(q, true));
        PullResult some = consumer.pull(q, "*", 10, 16);
        Case.same(16, some.getMsgFoundList().size(), "found");
        Case.same(26L, some.getNextBeginOffset(), "next offset");
        PullResult tagged = consumer.pull(q, "t1", 0, 10);
        Case.check(tagged.getMsgFoundList().stream().allMatch(m -> m.getTags().equals("t1")), "tags");
        Case.same(10, tagged.getMsgFoundList().size(), "found by tag");
        consumer.updateConsumeOffset(q, 42);
        consumer.getOffsetStore().persist(q);
        Case.await(10, "committed 42", () -> consumer.fetchConsumeOffset(q, true) == 42);
        PullResult held = consumer.pullBlockIfNotFound(q, "*", 99, 1);
        Case.same(1, held.getMsgFoundList().size(), "found");
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(500);
                p.send(Case.message(topic, "late", 100), q);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        later.start();
        long begin = System.currentTimeMillis();
        PullResult woken = consumer.pullBlockIfNotFound(q, "*", 100, 1);
        long took = System.currentTimeMillis() - begin;
        later.join();
        Case.same(1, woken.getMsgFoundList().size(), "found after waiting");
        Case.check(took >= 400 && took < 4000, "held for %d ms", took);
        c.count("held_ms", took);
    }

    private static void pullAnswers(Case c) throws Exception {
        String topic = c.topic(1);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "t", 0, 10);
        DefaultMQPullConsumer consumer = c.pullConsumer(c.group("G"));
        MessageQueue q = new MessageQueue(topic, brokerName(c, topic), 0);
        for (long offset : new long[] {0, 9, 10, 11, 1000}) {
            PullResult r = consumer.pull(q, "*", offset, 32);
            c.observe("pull at " + offset, r.getPullStatus() + " next " + r.getNextBeginOffset() + " min " + r.getMinOffset() + " max " + r.getMaxOffset());
        }
        PullResult none = consumer.pull(q, "other", 0, 32);
        c.observe("no tag matches", none.getPullStatus() + " next " + none.getNextBeginOffset());
        MessageQueue beyond = new MessageQueue(topic, q.getBrokerName(), 7);
        c.observe("queue out of range", Case.codeOf(() -> consumer.pull(beyond, "*", 0, 1)));
        String writeOnly = c.topicNamed(c.name("wo"), 1, 2, Map.of());
        MessageQueue w = new MessageQueue(writeOnly, q.getBrokerName(), 0);
        c.observe("write-only topic", Case.codeOf(() -> consumer.pull(w, "*", 0, 1)));
        MessageQueue nowhere = new MessageQueue(c.name("nowhere"), q.getBrokerName(), 0);
        c.observe("unknown topic", Case.codeOf(() -> consumer.pull(nowhere, "*", 0, 1)));
        c.observe("max offset, queue out of range", Case.codeOf(() -> consumer.maxOffset(beyond)));
        c.observe("search, queue out of range", Case.codeOf(() -> consumer.searchOffset(beyond, 0)));
    }

    private static void litePullAssign(Case c) throws Exception {
        String topic = c.topic(2);
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "t", 0, 100);
        DefaultLitePullConsumer consumer = c.litePullConsumer(c.group("G"));
        consumer.setAutoCommit(false);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
        Case.same(2, queues.size(), "queues");
        consumer.assign(queues);
        Set<String> got = poll(consumer, 100);
        Case.same(Case.range(0, 100), got, "polled");
        consumer.commitSync();
        Case.await(10, "committed", () -> {
            long sum = 0;
            for (MessageQueue q : queues) {
                sum += Math.max(0, consumer.committed(q));
            }
            return sum == 100;
        });
        for (MessageQueue q : queues) {
            consumer.seekToBegin(q);
        }
        Case.same(Case.range(0, 100), poll(consumer, 100), "after seekToBegin");
        for (MessageQueue q : queues) {
            consumer.seek(q, 40);
        }
        Case.same(20, poll(consumer, 20).size(), "after seek to 40");
        for (MessageQueue q : queues) {
            consumer.seekToEnd(q);
        }
        consumer.pause(queues.subList(0, 1));
        Case.same(0, consumer.poll(500).size(), "after seekToEnd");
        consumer.resume(queues.subList(0, 1));
        sendAll(p, topic, "t", 100, 110);
        Case.same(Case.range(100, 110), poll(consumer, 10), "new ones");
        Long at = consumer.offsetForTimestamp(queues.get(0), 0L);
        Case.same(0L, at, "offset for time 0");
    }

    private static Set<String> poll(DefaultLitePullConsumer consumer, int wanted) {
        Set<String> got = new HashSet<>();
        long deadline = System.currentTimeMillis() + 20_000;
        while (got.size() < wanted && System.currentTimeMillis() < deadline) {
            got.addAll(Case.ids(consumer.poll(500)));
        }
        return got;
    }

    private static void litePullSubscribe(Case c) throws Exception {
        String topic = c.topic(4);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        sendAll(p, topic, "a", 0, 60);
        sendAll(p, topic, "b", 60, 70);
        DefaultLitePullConsumer consumer = c.litePullConsumer(group);
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.subscribe(topic, "a");
        consumer.start();
        Case.same(Case.range(0, 60), poll(consumer, 60), "polled");
        Case.await(20, "committed by itself", () -> {
            consumer.poll(100);
            return committed(c, group, topic) >= 60;
        });
        consumer.shutdown();
        DefaultLitePullConsumer next = c.litePullConsumer(group);
        next.subscribe(topic, "*");
        next.start();
        sendAll(p, topic, "a", 70, 80);
        Set<String> got = new HashSet<>();
        Case.await(20, "new ones", () -> {
            got.addAll(Case.ids(next.poll(500)));
            return got.containsAll(Case.range(70, 80));
        });
        got.removeAll(Case.range(60, 70)); // tag b behind the committed offsets may come
        Case.same(Case.range(70, 80), got, "goes on where the first one stopped");
    }

    // ---- queries and relayed calls

    private static void query(Case c) throws Exception {
        String topic = c.topic(4);
        DefaultMQProducer p = c.producer();
        long begin = System.currentTimeMillis() - 10_000;
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message m = new Message(topic, "t", ("body " + i).getBytes(StandardCharsets.UTF_8));
            m.setKeys(List.of("one-" + i, "common"));
            m.putUserProperty("i", "" + i);
            results.add(p.send(m));
        }
        long end = System.currentTimeMillis() + 10_000;
        Case.await(15, "20 messages by a common key", () -> p.queryMessage(topic, "common", 64, begin, end).getMessageList().size() == 20);
        for (int i = 0; i < 20; i++) {
            List<MessageExt> one = p.queryMessage(topic, "one-" + i, 32, begin, end).getMessageList();
            Case.same(Set.of("" + i), Case.ids(one), "by key one-" + i);
            Case.same("" + i, Case.id(p.viewMessage(topic, results.get(i).getMsgId())), "by unique id");
            Case.same("" + i, Case.id(c.admin().viewMessage(topic, results.get(i).getMsgId())), "by unique id, admin");
            Case.same("" + i, Case.id(p.viewMessage(topic, results.get(i).getOffsetMsgId())), "by offset id");
        }
        Case.same(5, p.queryMessage(topic, "common", 5, begin, end).getMessageList().size(), "at most 5");
        c.observe("unknown key", Case.codeOf(() -> p.queryMessage(topic, "none", 32, begin, end)));
        c.observe("key outside the times", Case.codeOf(() -> p.queryMessage(topic, "common", 32, begin - 7_200_000, begin - 3_600_000)));
        String wrong = results.get(0).getOffsetMsgId().substring(0, 16) + "00000000FFFFFFFF";
        c.observe("offset id beyond the log", Case.codeOf(() -> p.viewMessage(topic, wrong)));
    }

    /** Calls that the broker relays to a live consumer. */
    private static void relay(Case c) throws Exception {
        String topic = c.topic(2);
        String group = c.group("G");
        DefaultMQProducer p = c.producer();
        Sink sink = new Sink();
        DefaultMQPushConsumer consumer = c.consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(sink);
        c.start(consumer);
        Case.awaitQueues(2, topic, consumer);
        List<String> members = new ArrayList<>();
        Case.await(10, "the consumer is listed", () -> {
            members.clear();
            members.addAll(Api.clientIds(c.admin(), group));
            return members.size() == 1;
        });
        String client = members.get(0);
        c.observe("queues in its running info", Api.runningQueues(c.admin(), group, client));
        SendResult r = p.send(Case.message(topic, "t", 1));
        sink.awaitIds(20, Set.of("1"));
        c.observe("consumed directly", Api.consumeDirectly(c.admin(), group, client, topic, r.getOffsetMsgId()));
        sink.await(20, "the message again", all -> all.size() == 2);
        c.observe("unknown client", Case.codeOf(() -> Api.runningQueues(c.admin(), group, "nobody")));
    }
}
