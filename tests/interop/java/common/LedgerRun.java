import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
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
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Every kind of traffic at once while somebody kills the broker: {@code LedgerRun namesrv=HOST:PORT [only=sync,async]
 * [pause=MS] [arrival=S]}. Prints {"ready":true} when traffic flows; a line on stdin ends it. Then everything
 * acknowledged must arrive, nothing may arrive that was not sent, and queues must keep their order; one line of JSON
 * per kind tells what came of it. Kinds: sync, async, batch, order, delay, timer, transaction; retry (the first two
 * attempts fail), dlq (all fail, the dead-letter queue must get it), broadcast (two members, both must get it), and
 * pop (5.x only).
 */
public final class LedgerRun {
    private static final int TIMER_DELAY_MS = 1500;
    private static final AtomicBoolean STOP = new AtomicBoolean();

    private LedgerRun() { }

    /** One kind of traffic: what was tried, what was acknowledged, what arrived. */
    private static final class Ledger {
        final String kind;
        final String topic;
        final Set<String> sent = ConcurrentHashMap.newKeySet();
        final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        final AtomicInteger failures = new AtomicInteger();
        final Sink sink = new Sink();
        /** What a second member of a broadcast group got. */
        final Sink other = new Sink();
        private int next;

        void failed(Throwable e) {
            failures.incrementAndGet();
            System.err.println(System.currentTimeMillis() + " " + kind + ": " + e + ", cause: " + e.getCause());
        }

        Ledger(String kind, String topic) {
            this.kind = kind;
            this.topic = topic;
        }

        Message message() {
            Message m = Case.message(topic, "t", next++);
            sent.add(Case.id(m));
            return m;
        }

        void answer(SendResult r, Iterable<Message> messages) {
            for (Message m : messages) {
                if (r.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(Case.id(m));
                }
            }
        }
    }

    private interface Step {
        void run() throws Exception;
    }

    private static Thread loop(Ledger ledger, Step step, long pauseMs) {
        Thread thread = new Thread(() -> {
            while (!STOP.get()) {
                try {
                    step.run();
                    Thread.sleep(pauseMs);
                } catch (Exception e) {
                    ledger.failed(e);
                    try {
                        Thread.sleep(50);
                    } catch (InterruptedException stop) {
                        return;
                    }
                }
            }
        }, ledger.kind);
        thread.start();
        return thread;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> o = new LinkedHashMap<>();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            o.put(pair[0], pair[1]);
        }
        int pauseMs = Integer.parseInt(o.getOrDefault("pause", "5"));
        // Without, each failure is one send that failed; see test_kill.py.
        int retries = Integer.parseInt(o.getOrDefault("retries", "0"));
        int arrivalS = Integer.parseInt(o.getOrDefault("arrival", "75"));
        List<String> kinds = List.of(o.getOrDefault("only", "sync,async,batch,order,delay,transaction").split(","));
        Case c = new Case(o.get("namesrv"), "Ledger" + Long.toString(System.currentTimeMillis() % 100_000_000L, 36));
        c.everywhere = true;
        List<Ledger> ledgers = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (String kind : kinds) {
            Ledger ledger = new Ledger(kind, c.topic(kind, 4, Map.of()));
            ledgers.add(ledger);
            consume(c, ledger);
            DefaultMQProducer p = kind.equals("transaction") ? transactional(c) : new DefaultMQProducer(c.name("P" + kind));
            p.setRetryTimesWhenSendFailed(retries);
            p.setRetryTimesWhenSendAsyncFailed(retries);
            c.configured(p);
            p.setSendMsgTimeout(3000);
            p.setSendLatencyFaultEnable(c.masters().size() > 1);
            p.start();
            threads.add(loop(ledger, step(kind, ledger, p), kind.equals("async") ? 0 : pauseMs));
        }
        System.out.println("{\"ready\":true}");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        STOP.set(true);
        for (Thread thread : threads) {
            thread.join(10_000);
        }
        Thread.sleep(3500); // what is in flight is answered or has timed out
        for (Ledger ledger : ledgers) {
            System.out.println(Json.of(settle(ledger, arrivalS)));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Step step(String kind, Ledger ledger, DefaultMQProducer p) {
        switch (kind) {
            case "async":
                Semaphore inFlight = new Semaphore(64);
                return () -> {
                    inFlight.acquire();
                    Message m = ledger.message();
                    try {
                        p.send(m, new SendCallback() {
                            @Override
                            public void onSuccess(SendResult r) {
                                ledger.answer(r, List.of(m));
                                inFlight.release();
                            }

                            @Override
                            public void onException(Throwable e) {
                                ledger.failed(e);
                                inFlight.release();
                            }
                        });
                    } catch (Exception e) {
                        inFlight.release();
                        throw e;
                    }
                    Thread.sleep(1);
                };
            case "batch":
                return () -> {
                    List<Message> batch = new ArrayList<>();
                    for (int i = 0; i < 8; i++) {
                        batch.add(ledger.message());
                    }
                    ledger.answer(p.send(batch), batch);
                };
            case "order":
                return () -> {
                    Message m = ledger.message();
                    ledger.answer(p.send(m, new SelectMessageQueueByHash(), Integer.parseInt(Case.id(m)) % 8), List.of(m));
                };
            case "delay":
                return () -> {
                    Message m = ledger.message();
                    m.setDelayTimeLevel(1);
                    ledger.answer(p.send(m), List.of(m));
                };
            case "timer":
                return () -> {
                    Message m = ledger.message();
                    MessageAccessor.putProperty(m, "TIMER_DELAY_MS", "" + TIMER_DELAY_MS);
                    ledger.answer(p.send(m), List.of(m));
                };
            case "transaction":
                return () -> {
                    Message m = ledger.message();
                    ledger.answer(((TransactionMQProducer) p).sendMessageInTransaction(m, null), List.of(m));
                };
            default:
                return () -> {
                    Message m = ledger.message();
                    ledger.answer(p.send(m), List.of(m));
                };
        }
    }

    private static TransactionMQProducer transactional(Case c) {
        TransactionMQProducer p = new TransactionMQProducer(c.name("TP"));
        p.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                // Every third waits for the check-back, so that there are half messages when the broker dies.
                return Integer.parseInt(Case.id(m)) % 3 == 0 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return p;
    }

    private static void consume(Case c, Ledger ledger) throws Exception {
        String group = c.group("G" + ledger.kind);
        DefaultMQPushConsumer consumer = ledger.kind.equals("pop") ? Api.popConsumer(c, ledger.topic, group) : c.consumer(group);
        consumer.subscribe(ledger.topic, "*");
        switch (ledger.kind) {
            case "order":
                consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                    ledger.sink.add(batch);
                    return ConsumeOrderlyStatus.SUCCESS;
                });
                break;
            case "retry":
                consumer.registerMessageListener(again(ledger.sink, 2));
                break;
            case "dlq":
                consumer.setMaxReconsumeTimes(1);
                consumer.registerMessageListener(again(new Sink(), Integer.MAX_VALUE));
                String dead = c.topicNamed("%DLQ%" + group, 1, 6, Map.of());
                DefaultMQPushConsumer reader = c.consumer(c.group("Gdead"));
                reader.subscribe(dead, "*");
                reader.registerMessageListener(ledger.sink);
                c.start(reader);
                break;
            case "broadcast":
                Api.broadcast(consumer);
                DefaultMQPushConsumer second = c.consumer(group);
                Api.broadcast(second);
                second.subscribe(ledger.topic, "*");
                second.registerMessageListener(ledger.other);
                c.start(second);
                consumer.registerMessageListener(ledger.sink);
                break;
            default:
                consumer.registerMessageListener(ledger.sink);
        }
        c.start(consumer);
    }

    /** Fails as often for each message, by its own count of attempts. */
    private static MessageListenerConcurrently again(Sink sink, int failures) {
        return (batch, context) -> {
            if (batch.get(0).getReconsumeTimes() < failures) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return sink.consumeMessage(batch, context);
        };
    }

    private static Map<String, Object> settle(Ledger ledger, int arrivalS) {
        String detail = "";
        try {
            ledger.sink.awaitIds(arrivalS, ledger.acknowledged);
            if (ledger.kind.equals("broadcast")) {
                ledger.other.awaitIds(arrivalS, ledger.acknowledged);
            }
            if (ledger.kind.equals("order")) {
                ledger.sink.checkOrderPerQueue();
            }
        } catch (AssertionError | InterruptedException e) {
            detail = e.getMessage();
        }
        Set<String> strangers = new HashSet<>(ledger.sink.ids());
        strangers.removeAll(ledger.sent);
        if (!strangers.isEmpty()) {
            detail += " arrived without having been sent: " + strangers.stream().limit(3).toList();
        }
        Map<String, Object> counts = new LinkedHashMap<>();
        counts.put("sent", ledger.sent.size());
        counts.put("acknowledged", ledger.acknowledged.size());
        counts.put("arrived", ledger.sink.ids().size());
        counts.put("duplicates", ledger.sink.duplicates());
        counts.put("failed sends", ledger.failures.get());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", "ledger-" + ledger.kind);
        line.put("ok", detail.isEmpty());
        line.put("ms", 0);
        line.put("detail", detail);
        line.put("counts", counts);
        return line;
    }
}
