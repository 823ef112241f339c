import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load through the official gRPC client: {@code GrpcLoad send|consume key=value ...}; prints one JSON line. {@code pids} (commas
 * between) are processes whose processor time is counted, from the end of the warm-up on.
 */
public final class GrpcLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, String> OPTIONS = new HashMap<>();

    private static int number(String key, int otherwise) {
        return Integer.parseInt(OPTIONS.getOrDefault(key, "" + otherwise));
    }

    public static void main(String[] args) throws Exception {
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            OPTIONS.put(pair[0], pair[1]);
        }
        switch (args[0]) {
            case "send" -> send();
            case "consume" -> consume();
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    private static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(OPTIONS.get("endpoint"))
            .enableSsl(number("tls", 0) != 0).setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    /** Clock ticks that the processes have used, a hundredth of a second each. */
    private static long ticks() throws Exception {
        long sum = 0;
        for (String pid : OPTIONS.getOrDefault("pids", "").split(",")) {
            if (!pid.isEmpty()) {
                String stat = Files.readString(Path.of("/proc", pid, "stat"));
                String[] words = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
                sum += Long.parseLong(words[11]) + Long.parseLong(words[12]);
            }
        }
        return sum;
    }

    private static Producer producer() throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return PROVIDER.newProducerBuilder().setClientConfiguration(configuration())
                    .setTopics(OPTIONS.get("topic")).setMaxAttempts(1).build();
            } catch (Exception e) { // the topic may not be in the proxy's routes yet
                if (attempt == 30) {
                    throw e;
                }
                Thread.sleep(1000);
            }
        }
    }

    private static void send() throws Exception {
        int inflight = number("inflight", 64);
        byte[] body = new byte[number("size", 128)];
        new Random(1).nextBytes(body);
        Producer producer = producer();
        Message message = PROVIDER.newMessageBuilder().setTopic(OPTIONS.get("topic")).setKeys("key").setTag("t").setBody(body).build();
        Semaphore room = new Semaphore(inflight);
        AtomicLong ok = new AtomicLong();
        AtomicLong bad = new AtomicLong();
        long limit = number("n", Integer.MAX_VALUE);
        long[] took = new long[2_000_000];
        AtomicLong samples = new AtomicLong();
        long from = System.nanoTime() + number("warm", 3) * 1_000_000_000L;
        long until = from + number("sec", 10) * 1_000_000_000L;
        long okBefore = -1;
        long ticksBefore = 0;
        long began = 0;
        for (long sent = 0; sent < limit && System.nanoTime() < until; sent++) {
            if (okBefore < 0 && System.nanoTime() >= from) {
                okBefore = ok.get();
                ticksBefore = ticks();
                began = System.nanoTime();
            }
            boolean counts = okBefore >= 0;
            long start;
            if (inflight == 1) {
                start = System.nanoTime();
                try {
                    producer.send(message);
                    ok.incrementAndGet();
                } catch (Exception e) {
                    bad(bad, e);
                }
                if (counts && samples.get() < took.length) {
                    took[(int) samples.getAndIncrement()] = System.nanoTime() - start;
                }
                continue;
            }
            room.acquire();
            start = System.nanoTime();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                room.release();
                if (error == null) {
                    ok.incrementAndGet();
                } else {
                    bad(bad, error);
                }
                int at = (int) (counts ? samples.getAndIncrement() : took.length);
                if (at < took.length) {
                    took[at] = System.nanoTime() - start;
                }
            });
        }
        long measured = ok.get() - okBefore;
        double seconds = (System.nanoTime() - began) / 1e9;
        long ticks = ticks() - ticksBefore;
        room.acquire(inflight);
        report(measured, ok.get(), bad.get(), seconds, ticks, Arrays.copyOf(took, (int) Math.min(samples.get(), took.length)));
    }

    private static void bad(AtomicLong bad, Throwable error) {
        if (bad.incrementAndGet() < 3) {
            System.err.println(error);
        }
    }

    private static void consume() throws Exception {
        long wanted = number("n", 10_000);
        AtomicLong came = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        long ticksBefore = ticks();
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(OPTIONS.get("group"))
            .setSubscriptionExpressions(Map.of(OPTIONS.get("topic"), FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                ByteBuffer body = view.getBody();
                first.compareAndSet(0, System.nanoTime());
                if (body.hasRemaining() && came.incrementAndGet() == wanted) {
                    last.set(System.nanoTime());
                    done.countDown();
                }
                return ConsumeResult.SUCCESS;
            }).build();
        done.await(number("sec", 120), TimeUnit.SECONDS);
        double seconds = ((last.get() == 0 ? System.nanoTime() : last.get()) - first.get()) / 1e9;
        Thread.sleep(500); // acknowledgements that are still on their way are part of the work
        report(came.get(), came.get(), 0, seconds, ticks() - ticksBefore, new long[0]);
        consumer.close();
    }

    private static void report(long count, long ok, long bad, double seconds, long ticks, long[] took) {
        Arrays.sort(took);
        Map<String, Object> line = new HashMap<>();
        line.put("ok", ok);
        line.put("bad", bad);
        line.put("per_s", count / seconds);
        line.put("cpu_us", ticks * 10_000.0 / Math.max(1, count));
        if (took.length > 0) {
            line.put("p50_us", took[took.length / 2] / 1000);
            line.put("p99_us", took[(int) (took.length * 0.99)] / 1000);
        }
        System.out.println(Json.of(line));
    }
}
