import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * One producer, and two groups of two members each (one concurrent, one in order) while brokers come and go:
 * {@code FailoverRun HOST:PORT TOPIC GROUP ORDERLY_GROUP SENDERS PAUSE_MS}; each of so many threads pauses between its
 * sends. A line on stdin is answered by one line of JSON: how many messages are acknowledged by which broker, how many
 * have arrived, how long at most no send was acknowledged. At the line "stop" sending ends, and the answer comes when
 * everything acknowledged has arrived in both groups, or after a minute tells what has not; a message that was never
 * sent is told as well.
 */
public final class FailoverRun {
    private static final int SEND_TIMEOUT_MS = 2000;
    private static final int RETRIES = 4;
    private static final int POLL_MS = 1000;
    private static final int SETTLE_S = 60;

    private final Set<String> attempted = ConcurrentHashMap.newKeySet();
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    private final Map<String, Integer> byBroker = new ConcurrentHashMap<>();
    private final Map<String, String> lastId = new ConcurrentHashMap<>();
    private final AtomicInteger numbers = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicLong lastAcknowledgedMs = new AtomicLong();
    private final AtomicLong gapMs = new AtomicLong();
    private final Sink concurrent = new Sink();
    private final Sink orderly = new Sink();

    private void send(DefaultMQProducer producer, String topic, int pauseMs) {
        while (!stopped.get()) {
            Message message = Case.message(topic, "t", numbers.getAndIncrement());
            attempted.add(Case.id(message));
            try {
                Thread.sleep(pauseMs);
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(Case.id(message));
                    noteAcknowledged();
                    byBroker.merge(result.getMessageQueue().getBrokerName(), 1, Integer::sum);
                    lastId.put(result.getMessageQueue().getBrokerName(), result.getOffsetMsgId());
                }
            } catch (InterruptedException e) {
                return;
            } catch (Exception e) {
                failed.incrementAndGet();
            }
        }
    }

    private void noteAcknowledged() {
        long now = System.nanoTime() / 1_000_000;
        long before = lastAcknowledgedMs.getAndSet(now);
        if (before != 0) {
            gapMs.accumulateAndGet(now - before, Math::max);
        }
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String topic, String group, int number, Sink sink,
        boolean inOrder) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group + number);
        consumer.setPollNameServerInterval(POLL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        if (inOrder) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                sink.add(batch);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener(sink);
        }
        consumer.start();
        return consumer;
    }

    private Map<String, Object> status() {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("acknowledged", acknowledged.size());
        line.put("failed", failed.get());
        line.put("gapMs", gapMs.getAndSet(0));
        line.put("byBroker", new TreeMap<>(byBroker));
        line.put("lastId", new TreeMap<>(lastId));
        line.put("concurrent", concurrent.ids().size());
        line.put("orderly", orderly.ids().size());
        return line;
    }

    private Map<String, Object> settle() {
        String detail = "";
        try {
            concurrent.awaitIds(SETTLE_S, acknowledged);
            orderly.awaitIds(SETTLE_S, acknowledged);
            orderly.checkOrderPerQueue();
            Case.covers(concurrent.ids(), attempted, "consumed, and sent");
            Case.covers(orderly.ids(), attempted, "consumed in order, and sent");
        } catch (AssertionError | InterruptedException e) {
            detail = e.getMessage();
        }
        Map<String, Object> line = status();
        line.put("detail", detail);
        return line;
    }

    public static void main(String[] args) throws Exception {
        FailoverRun run = new FailoverRun();
        DefaultMQProducer producer = new DefaultMQProducer("FailoverProducers");
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(POLL_MS);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(RETRIES);
        producer.start();
        List<DefaultMQPushConsumer> consumers = List.of(
            consumer(args[0], args[1], args[2], 1, run.concurrent, false),
            consumer(args[0], args[1], args[2], 2, run.concurrent, false),
            consumer(args[0], args[1], args[3], 1, run.orderly, true),
            consumer(args[0], args[1], args[3], 2, run.orderly, true));
        List<Thread> senders = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[4]); n++) {
            senders.add(new Thread(() -> run.send(producer, args[1], Integer.parseInt(args[5]))));
        }
        senders.forEach(Thread::start);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.equals("stop")) {
                run.stopped.set(true);
                for (Thread sender : senders) {
                    sender.join();
                }
                System.out.println(Json.of(run.settle()));
                break;
            }
            System.out.println(Json.of(run.status()));
        }
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
        System.exit(0);
    }
}
