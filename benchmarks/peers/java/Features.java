import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What a broker does beyond sending and pulling: `Features pop|sql|timer|trans key=value...`; prints one JSON line.
 * With pid= of the broker's process, cpu_us is its user and system time for each message of the measured part.
 */
public final class Features {
    static final Map<String, String> o = new HashMap<>();
    static int i(String k, int d) { return Integer.parseInt(o.getOrDefault(k, "" + d)); }
    static String s(String k, String d) { return o.getOrDefault(k, d); }

    public static void main(String[] a) throws Exception {
        for (int n = 1; n < a.length; n++) { String[] kv = a[n].split("=", 2); o.put(kv[0], kv[1]); }
        switch (a[0]) {
            case "pop": drain(true); break;
            case "sql": drain(false); break;
            case "timer": timer(); break;
            case "trans": trans(); break;
            default: throw new IllegalArgumentException(a[0]);
        }
        System.exit(0);
    }

    /** User and system time of the broker so far, in microseconds. Linux counts it in ticks of 10 ms. */
    static long cpuUs() throws Exception {
        if (!o.containsKey("pid")) return 0;
        String stat = Files.readString(Path.of("/proc/" + s("pid", "") + "/stat"));
        String[] f = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(f[11]) + Long.parseLong(f[12])) * 10_000;
    }
    static <P extends DefaultMQProducer> P started(P p) throws Exception {
        p.setNamesrvAddr(s("namesrv", "127.0.0.1:9876"));
        p.setInstanceName("p" + System.nanoTime());
        p.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        p.setRetryTimesWhenSendFailed(0); p.setRetryTimesWhenSendAsyncFailed(0);
        p.setSendMsgTimeout(60_000);
        p.start(); return p;
    }
    static byte[] body() { byte[] b = new byte[i("size", 128)]; new Random(1).nextBytes(b); return b; }
    /** A consumer that subscribes before the topic has a route waits half a minute for it; sends before there is a connection fail. */
    static void awaitRoute(DefaultMQProducer p) throws Exception {
        for (int t = 0; ; t++) try {
            List<MessageQueue> queues = p.fetchPublishMessageQueues(s("topic", ""));
            for (MessageQueue q : queues) p.maxOffset(q);
            if (!queues.isEmpty()) return;
        } catch (Exception e) { if (t == 100) throw e; Thread.sleep(100); }
    }
    interface Make { Message message(long n); }
    /** Sends n messages, 1 000 in flight; how many were refused. */
    static long fill(DefaultMQProducer p, long n, Make make) throws Exception {
        int width = i("inflight", 1000); Semaphore sem = new Semaphore(width); AtomicLong bad = new AtomicLong();
        for (long k = 0; k < n; k++) {
            sem.acquire();
            p.send(make.message(k), new SendCallback() {
                public void onSuccess(SendResult r) { sem.release(); if (r.getSendStatus() != SendStatus.SEND_OK) bad.incrementAndGet(); }
                public void onException(Throwable e) { sem.release(); if (bad.incrementAndGet() < 3) System.err.println(e); } });
        }
        sem.acquire(width); return bad.get();
    }
    static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(s("namesrv", "127.0.0.1:9876")); c.setInstanceName("c" + System.nanoTime());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPullBatchSize(32); c.setConsumeMessageBatchMaxSize(32); c.setPullThresholdForQueue(10_000);
        c.setPopBatchNums(32); c.setPopThresholdForQueue(1000); c.setPopInvisibleTime(60_000);
        return c;
    }

    /** A backlog through the push consumer: popped (each message acknowledged), or filtered by SQL. Warm groups come first. */
    static void drain(boolean pop) throws Exception {
        String topic = s("topic", pop ? "pop" : "sql"); o.put("topic", topic);
        int n = i("n", 100_000); byte[] body = body();
        DefaultMQProducer p = started(new DefaultMQProducer("fill"));
        awaitRoute(p);
        long bad = fill(p, n, k -> {
            Message m = new Message(topic, "t", body);
            if (!pop) { m.putUserProperty("color", k % 2 == 0 ? "red" : "blue"); m.putUserProperty("amount", "" + k % 1000);
                m.putUserProperty("region", "eu-" + k % 7); }
            return m; });
        long want = n;
        if (!pop) { want = 0; for (long k = 0; k < n; k++) if (k % 2 == 0 && k % 1000 >= 100 && k % 1000 <= 499) want++; }
        DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(s("namesrv", "")); admin.setInstanceName("a" + System.nanoTime());
        if (pop) admin.start();
        String line = "";
        for (int turn = 0; turn <= i("warm_turns", 1); turn++) {
            String group = topic + "-" + turn;
            if (pop) admin.setMessageRequestMode(s("broker", ""), topic, group, MessageRequestMode.POP, 0, 10_000);
            DefaultMQPushConsumer c = consumer(group);
            if (pop) { c.setClientRebalance(false); c.subscribe(topic, "*"); }
            else c.subscribe(topic, MessageSelector.bySql(s("sql", "color = 'red' AND amount BETWEEN 100 AND 499 AND region IS NOT NULL")));
            AtomicLong seen = new AtomicLong(), first = new AtomicLong(); long all = want, half = want / 2;
            AtomicLong halfAt = new AtomicLong(), end = new AtomicLong(); CountDownLatch done = new CountDownLatch(1);
            long cpu = cpuUs();
            c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
                first.compareAndSet(0, System.nanoTime());
                if (seen.addAndGet(ms.size()) >= all) { end.compareAndSet(0, System.nanoTime()); done.countDown(); }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
            c.start(); done.await(i("sec", 120), TimeUnit.SECONDS);
            if (end.get() == 0) end.set(System.nanoTime());
            Thread.sleep(500); // the last acknowledgements
            double sec = (end.get() - first.get()) / 1e9; cpu = cpuUs() - cpu;
            line = String.format("{\"mode\":\"%s\",\"ok\":%d,\"missing\":%d,\"bad\":%d,\"sec\":%.2f,\"per_s\":%.0f,\"cpu_us\":%.2f}",
                pop ? "pop" : "sql", seen.get(), Math.max(all - seen.get(), 0), bad, sec, n / sec, cpu / (double) n);
            c.shutdown();
        }
        System.out.println(line);
    }

    /** n messages for any time of spread seconds, all pending before the first is due; how late they come. Before that n of a delay level. */
    static void timer() throws Exception {
        String topic = s("topic", "timer"); o.put("topic", topic);
        int n = i("n", 100_000), spread = i("spread", 20) * 1000; byte[] body = body();
        DefaultMQProducer p = started(new DefaultMQProducer("fill"));
        awaitRoute(p);
        int warm = i("warm_n", n / 4); long far = System.currentTimeMillis() + 3_600_000;
        Make plain = k -> { Message m = new Message(topic, "t", body); m.setDelayTimeLevel(18); return m; };
        long bad = fill(p, warm, plain) + fill(p, warm, k -> { Message m = new Message(topic, "far", body); m.setDeliverTimeMs(far + k % 1000); return m; });
        long[] at = new long[n]; BitSet seen = new BitSet(n); long[] late = new long[n];
        AtomicLong early = new AtomicLong(), twice = new AtomicLong(); CountDownLatch done = new CountDownLatch(n);
        DefaultMQPushConsumer c = consumer("timer-" + System.currentTimeMillis()); c.subscribe(topic, "t");
        c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
            long now = System.currentTimeMillis();
            synchronized (seen) { for (MessageExt m : ms) {
                int k = Integer.parseInt(m.getUserProperty("i"));
                if (seen.get(k)) { twice.incrementAndGet(); continue; }
                seen.set(k);
                if (now < at[k]) early.incrementAndGet();
                late[k] = now - at[k]; done.countDown(); } }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
        c.start();
        long cpu = cpuUs(), t = System.nanoTime(); bad += fill(p, n, plain);
        double plainSec = (System.nanoTime() - t) / 1e9; Thread.sleep(300); double plainCpu = (cpuUs() - cpu) / (double) n;
        long base = System.currentTimeMillis() + i("lead", 30) * 1000L; Random random = new Random(7);
        for (int k = 0; k < n; k++) at[k] = base + random.nextInt(spread);
        cpu = cpuUs(); t = System.nanoTime();
        bad += fill(p, n, k -> { Message m = new Message(topic, "t", body); m.putUserProperty("i", "" + k); m.setDeliverTimeMs(at[(int) k]); return m; });
        double putSec = (System.nanoTime() - t) / 1e9; long spare = base - System.currentTimeMillis();
        Thread.sleep(Math.max(Math.min(spare - 500, 3000), 0)); // until all of them are in the wheel
        double putCpu = (cpuUs() - cpu) / (double) n;
        Thread.sleep(Math.max(base - System.currentTimeMillis(), 0)); cpu = cpuUs();
        done.await(spread + i("patience", 60) * 1000L, TimeUnit.MILLISECONDS);
        double deliverCpu = (cpuUs() - cpu) / (double) n;
        long[] sorted; synchronized (seen) { sorted = seen.stream().mapToLong(k -> late[k]).sorted().toArray(); }
        int m = sorted.length, precision = i("precision", 1000);
        long[] slot; synchronized (seen) { slot = seen.stream().mapToLong(k -> at[k] + late[k] - (at[k] + precision - 1) / precision * precision).sorted().toArray(); }
        System.out.printf("{\"mode\":\"timer\",\"ok\":%d,\"missing\":%d,\"bad\":%d,\"early\":%d,\"twice\":%d,\"spare_ms\":%d,\"plain_per_s\":%.0f,\"plain_cpu_us\":%.2f,"
            + "\"put_per_s\":%.0f,\"put_cpu_us\":%.2f,\"deliver_cpu_us\":%.2f,\"late_p50_ms\":%d,\"late_p99_ms\":%d,\"late_max_ms\":%d,\"slot_p99_ms\":%d}%n",
            m, n - m, bad, early.get(), twice.get(), spare, n / plainSec, plainCpu, n / putSec, putCpu, deliverCpu,
            m == 0 ? -1 : sorted[m / 2], m == 0 ? -1 : sorted[(int) (m * .99)], m == 0 ? -1 : sorted[m - 1], m == 0 ? -1 : slot[(int) (m * .99)]);
    }

    /** Transactions that commit at once; counts in the queues what became visible. */
    static void trans() throws Exception {
        String topic = s("topic", "trans"); o.put("topic", topic);
        int threads = i("threads", 32); byte[] body = body();
        TransactionMQProducer p = new TransactionMQProducer("trans-" + System.nanoTime());
        p.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object x) { return LocalTransactionState.COMMIT_MESSAGE; }
            public LocalTransactionState checkLocalTransaction(MessageExt m) { return LocalTransactionState.COMMIT_MESSAGE; } });
        started(p); awaitRoute(p);
        AtomicLong sent = new AtomicLong(), ok = new AtomicLong(), bad = new AtomicLong();
        long t0 = System.currentTimeMillis() + i("warm", 3) * 1000L, t1 = t0 + i("sec", 10) * 1000L;
        List<Thread> ts = new ArrayList<>();
        for (int t = 0; t < threads; t++) { Thread th = new Thread(() -> {
            while (System.currentTimeMillis() < t1) try {
                if (p.sendMessageInTransaction(new Message(topic, "t", body), null).getSendStatus() != SendStatus.SEND_OK) throw new Exception("not stored");
                sent.incrementAndGet(); if (System.currentTimeMillis() >= t0) ok.incrementAndGet();
            } catch (Exception e) { if (bad.incrementAndGet() < 3) System.err.println(e); } });
            ts.add(th); th.start(); }
        Thread.sleep(Math.max(t0 - System.currentTimeMillis(), 0)); long cpu = cpuUs(), before = ok.get();
        for (Thread t : ts) t.join();
        long visible = 0;
        for (int k = 0; k < 100 && visible < sent.get(); k++) { // ends are sent one way
            Thread.sleep(50); visible = 0;
            for (MessageQueue q : p.fetchPublishMessageQueues(topic)) visible += p.maxOffset(q);
        }
        cpu = cpuUs() - cpu; double sec = i("sec", 10);
        System.out.printf("{\"mode\":\"trans\",\"ok\":%d,\"missing\":%d,\"bad\":%d,\"sec\":%.2f,\"per_s\":%.0f,\"cpu_us\":%.2f}%n",
            ok.get(), sent.get() - visible, bad.get(), sec, ok.get() / sec, cpu / (double) Math.max(ok.get() - before, 1));
    }
}
