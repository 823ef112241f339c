import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Traffic through the proxy while brokers die: {@code GrpcLedger HOST:PORT RUN ORDERED SETTLE_SECONDS [JOURNALS]}. Sends normal,
 * FIFO, delayed and transactional messages and consumes them, prints a line when all of it flows, goes on until a line
 * comes in, and waits until everything acknowledged has arrived. One line of JSON per kind, as LedgerRun of the remoting
 * client. With a directory for journals it may be killed itself: the next one of the same run knows what this one knew.
 */
public final class GrpcLedger {
    private static final String[] KINDS = {"normal", "fifo", "delay", "transaction"};
    private static final int GROUPS = 3;

    private static volatile boolean stopping;

    private final String kind;
    private final GrpcCase c;
    private final AtomicInteger sent = new AtomicInteger();
    private final AtomicInteger refused = new AtomicInteger();
    private final AtomicInteger duplicates = new AtomicInteger();
    /** What came, in order of first arrival. */
    private final Map<String, Integer> arrived = new ConcurrentHashMap<>();
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    /** Rolled back, and the rollback was acknowledged: must never come. */
    private final Set<String> never = ConcurrentHashMap.newKeySet();
    private final Set<String> attempted = ConcurrentHashMap.newKeySet();
    private final AtomicInteger order = new AtomicInteger();
    private final AtomicInteger arrivedNow = new AtomicInteger();
    private final List<Thread> senders = new ArrayList<>();
    private final int[] next = new int[GROUPS];
    private final OutputStream journal;

    private GrpcLedger(String kind, GrpcCase c, Path journal) throws IOException {
        this.kind = kind;
        this.c = c;
        if (journal == null) {
            this.journal = OutputStream.nullOutputStream();
            return;
        }
        if (Files.exists(journal)) {
            Files.readAllLines(journal).forEach(this::recall);
        }
        this.journal = Files.newOutputStream(journal, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** What a killed one noted. */
    private void recall(String line) {
        String id = line.substring(2);
        switch (line.charAt(0)) {
            case 't' -> {
                attempted.add(id);
                String[] words = id.split("-");
                next[Integer.parseInt(words[0])] = Integer.parseInt(words[1]) + 1;
            }
            case 'a' -> acknowledged.add(id);
            case 'n' -> never.add(id);
            case 'c' -> arrived.putIfAbsent(id, order.getAndIncrement());
            default -> throw new IllegalArgumentException(line);
        }
    }

    /** One line in one write: it outlives this process. */
    private void note(char what, String id) {
        try {
            synchronized (journal) {
                journal.write((what + " " + id + "\n").getBytes(StandardCharsets.UTF_8));
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    public static void main(String[] args) throws Exception {
        boolean ordered = Boolean.parseBoolean(args[2]);
        List<GrpcLedger> ledgers = new ArrayList<>();
        for (String kind : KINDS) {
            Path journal = args.length > 4 ? Path.of(args[4], kind) : null;
            GrpcLedger ledger = new GrpcLedger(kind, new GrpcCase(args[0], args[1] + "_" + kind), journal);
            ledger.start();
            ledgers.add(ledger);
        }
        for (GrpcLedger ledger : ledgers) {
            while (ledger.arrivedNow.get() == 0) {
                Thread.sleep(50);
            }
        }
        System.out.println("{\"ready\": true}");
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
        stopping = true;
        long deadline = System.nanoTime() + Integer.parseInt(args[3]) * 1_000_000_000L;
        for (GrpcLedger ledger : ledgers) {
            System.out.println(Json.of(ledger.finish(deadline, ordered)));
        }
        System.exit(0);
    }

    private void start() throws Exception {
        c.push(FilterExpression.SUB_ALL, this::consume);
        Producer producer = kind.equals("transaction")
            ? c.producer(view -> Integer.parseInt(GrpcCase.id(view).split("-")[1]) % 5 == 4
                ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT)
            : c.producer();
        for (int group = 0; group < GROUPS; group++) {
            int number = group;
            Thread sender = new Thread(() -> send(producer, number), kind + group);
            sender.setDaemon(true);
            sender.start();
            senders.add(sender);
        }
    }

    private ConsumeResult consume(MessageView view) {
        String id = GrpcCase.id(view);
        arrivedNow.incrementAndGet();
        note('c', id);
        if (arrived.putIfAbsent(id, order.getAndIncrement()) != null) {
            duplicates.incrementAndGet();
        }
        return ConsumeResult.SUCCESS;
    }

    private void send(Producer producer, int group) {
        for (int i = next[group]; !stopping; i++) {
            String id = group + "-" + i;
            attempted.add(id);
            note('t', id);
            // A message group goes on only after its message was acknowledged, so that its order is known.
            while (!sendOnce(producer, group, i, id) && kind.equals("fifo") && !stopping) {
                pause(100);
            }
            pause(10);
        }
    }

    private boolean sendOnce(Producer producer, int group, int i, String id) {
        MessageBuilder builder = GrpcCase.PROVIDER.newMessageBuilder().setTopic(c.topic).setKeys(id).addProperty("i", id)
            .setBody(("ledger " + id).getBytes(StandardCharsets.UTF_8));
        sent.incrementAndGet();
        try {
            switch (kind) {
                case "fifo" -> producer.send(builder.setMessageGroup("g" + group).build());
                case "delay" -> producer.send(builder.setDeliveryTimestamp(System.currentTimeMillis() + 2000).build());
                case "transaction" -> {
                    Transaction transaction = producer.beginTransaction();
                    producer.send(builder.build(), transaction);
                    if (i % 5 == 4) {
                        never.add(id);
                        note('n', id);
                        transaction.rollback();
                        return true;
                    }
                    // Sent is enough: what the commit does not settle, a check does.
                    acknowledged.add(id);
                    note('a', id);
                    if (i % 5 != 3) {
                        transaction.commit();
                    }
                    return true;
                }
                default -> producer.send(builder.build());
            }
            acknowledged.add(id);
            note('a', id);
            return true;
        } catch (Throwable e) {
            refused.incrementAndGet();
            return false;
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private Map<String, Object> finish(long deadline, boolean ordered) throws Exception {
        long began = System.currentTimeMillis();
        for (Thread sender : senders) {
            sender.join(30_000);
        }
        Set<String> missing = new HashSet<>(acknowledged);
        while (System.nanoTime() < deadline) {
            missing.removeAll(arrived.keySet());
            if (missing.isEmpty()) {
                break;
            }
            pause(200);
        }
        Set<String> strange = new HashSet<>(arrived.keySet());
        strange.removeAll(attempted);
        Set<String> revoked = new HashSet<>(arrived.keySet());
        revoked.retainAll(never);
        List<String> wrong = new ArrayList<>();
        if (!missing.isEmpty()) {
            wrong.add("missing " + missing.size() + ": " + missing.stream().sorted().limit(5).toList());
        }
        if (!strange.isEmpty()) {
            wrong.add("never sent: " + strange.stream().limit(5).toList());
        }
        if (!revoked.isEmpty()) {
            wrong.add("rolled back: " + revoked.stream().limit(5).toList());
        }
        if (ordered && kind.equals("fifo")) {
            checkOrder(wrong);
        }
        Map<String, Object> counts = new LinkedHashMap<>();
        counts.put("sent", sent.get());
        counts.put("acknowledged", acknowledged.size());
        counts.put("arrived", arrived.size());
        counts.put("duplicates", duplicates.get());
        counts.put("refused", refused.get());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", "ledger-grpc-" + kind);
        line.put("ok", wrong.isEmpty());
        line.put("ms", System.currentTimeMillis() - began);
        line.put("detail", String.join("; ", wrong));
        line.put("counts", counts);
        line.put("observed", Map.of());
        return line;
    }

    private void checkOrder(List<String> wrong) {
        for (int group = 0; group < GROUPS; group++) {
            int last = -1;
            for (int i = 0; ; i++) {
                String id = group + "-" + i;
                if (!attempted.contains(id)) {
                    break;
                }
                Integer at = arrived.get(id);
                if (at != null && at < last) {
                    wrong.add(id + " came before the one sent before it");
                }
                last = at == null ? last : at;
            }
        }
    }
}
