import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Opens a store directory with Apache's own code and tells what it reads:
 * {@code StoreDump DIR start|load [key=value ...]}, keys of MessageStoreConfig, {root} for the directory.
 * Questions come on stdin, fields parted by tabs:
 * {@code key TOPIC KEY MAX BEGIN END}, {@code get TOPIC QUEUE OFFSET MAX}, {@code time TOPIC QUEUE TIMESTAMP [BOUNDARY]},
 * {@code bounds TOPIC QUEUE}.
 * One line of JSON each: load, every message in log order, every queue with its units, every answer.
 */
public final class StoreDump {
    private static final int MAGIC_V1 = 0xdaa320a7;
    private static final int MAGIC_V2 = 0xdaa320ab;
    private static final int BLANK = 0xcbd43194;
    private static final int BODY_SHOWN = 400;
    private static PrintStream out;

    private StoreDump() { }

    public static void main(String[] args) throws Exception {
        out = System.out;
        System.setOut(System.err); // what libraries print is not data
        String dir = args[0];
        Properties config = new Properties();
        for (int n = 2; n < args.length; n++) {
            String[] pair = args[n].split("=", 2);
            config.setProperty(pair[0], pair[1].replace("{root}", dir));
        }
        DefaultMessageStore store = StoreApi.open(dir, config);
        boolean loaded = store.load();
        if (args[1].equals("start") && loaded) {
            store.start();
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(5);
            }
        }
        if (!args[1].equals("start")) {
            // A store that was not started refuses to be read; nothing but this flag says so.
            java.lang.reflect.Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
            shutdown.setAccessible(true);
            shutdown.set(store, false);
        }
        Map<String, Object> load = line("load");
        load.put("load", loaded);
        load.put("minOffset", store.getMinPhyOffset());
        load.put("maxOffset", store.getMaxPhyOffset());
        print(load);
        if (loaded) {
            messages(store);
            for (Map<String, Object> queue : StoreApi.queues(store)) {
                queue.put("kind", "queue");
                print(queue);
            }
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String question = in.readLine(); question != null; question = in.readLine()) {
                answer(store, question.split("\t", -1));
            }
        }
        out.flush();
        if (args[1].equals("start")) {
            store.shutdown();
        }
        Runtime.getRuntime().halt(0); // load alone leaves threads behind
    }

    private static Map<String, Object> line(String kind) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        return line;
    }

    private static void print(Map<String, Object> line) {
        out.println(Json.of(line));
    }

    private static void messages(DefaultMessageStore store) throws Exception {
        long offset = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        while (offset < end) {
            SelectMappedBufferResult slice = store.getCommitLog().getData(offset);
            if (slice == null) {
                Map<String, Object> gap = line("unreadable");
                gap.put("offset", offset);
                print(gap);
                return;
            }
            try {
                ByteBuffer bytes = slice.getByteBuffer();
                int limit = slice.getSize();
                while (limit - bytes.position() >= 8 && offset < end) {
                    int at = bytes.position();
                    int size = bytes.getInt(at);
                    int magic = bytes.getInt(at + 4);
                    if (magic == BLANK) {
                        Map<String, Object> blank = line("blank");
                        blank.put("offset", offset);
                        blank.put("sizeField", size);
                        print(blank);
                        offset += limit - at;
                        break;
                    }
                    if (magic != MAGIC_V1 && magic != MAGIC_V2 || size <= 0 || size > limit - at) {
                        Map<String, Object> bad = line("unreadable");
                        bad.put("offset", offset);
                        print(bad);
                        return;
                    }
                    ByteBuffer record = bytes.duplicate();
                    record.limit(at + size);
                    print(message(record.slice(), offset, magic));
                    bytes.position(at + size);
                    offset += size;
                }
            } finally {
                slice.release();
            }
        }
    }

    private static Map<String, Object> message(ByteBuffer record, long offset, int magic) throws Exception {
        Map<String, Object> m = line("message");
        int storedSysFlag = record.getInt(36);
        int bornHost = (storedSysFlag & 16) == 0 ? 8 : 20;
        int storeHost = (storedSysFlag & 32) == 0 ? 8 : 20;
        int bodyAt = 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + bornHost + 8 + storeHost + 4 + 8;
        int storedBody = record.getInt(bodyAt);
        int topicAt = bodyAt + 4 + storedBody;
        int topic = magic == MAGIC_V1 ? record.get(topicAt) & 0xff : record.getShort(topicAt);
        int propertiesAt = topicAt + (magic == MAGIC_V1 ? 1 : 2) + topic;
        byte[] properties = new byte[record.getShort(propertiesAt)];
        record.duplicate().position(propertiesAt + 2).get(properties);
        int size = record.limit();
        m.put("commitLogOffset", offset);
        m.put("storeSize", size);
        MessageExt d = StoreApi.decode(record);
        if (d == null) {
            m.put("decoded", false);
            return m;
        }
        m.put("topic", d.getTopic());
        m.put("queueId", d.getQueueId());
        m.put("queueOffset", d.getQueueOffset());
        m.put("sysFlag", d.getSysFlag());
        m.put("flag", d.getFlag());
        m.put("bornTimestamp", d.getBornTimestamp());
        m.put("bornHost", host(d.getBornHost()));
        m.put("storeTimestamp", d.getStoreTimestamp());
        m.put("storeHost", host(d.getStoreHost()));
        m.put("reconsumeTimes", d.getReconsumeTimes());
        m.put("preparedTransactionOffset", d.getPreparedTransactionOffset());
        m.put("bodyCRC", d.getBodyCRC());
        m.put("msgId", d.getMsgId());
        m.put("magic", String.format("%08x", magic));
        m.put("storedSysFlag", storedSysFlag);
        m.put("storedBodyLength", storedBody);
        m.put("propertiesText", new String(properties, StandardCharsets.UTF_8));
        m.put("properties", new TreeMap<>(d.getProperties()));
        byte[] body = d.getBody();
        m.put("bodyLength", body == null ? null : body.length);
        if (body != null) {
            StringBuilder hex = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(body)) {
                hex.append(String.format("%02x", b));
            }
            m.put("bodySha256", hex.toString());
            m.put("body", body.length <= BODY_SHOWN ? Base64.getEncoder().encodeToString(body) : null);
        }
        return m;
    }

    private static String host(java.net.SocketAddress address) {
        java.net.InetSocketAddress inet = (java.net.InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    private static void answer(DefaultMessageStore store, String[] q) throws Exception {
        Map<String, Object> a = line(q[0]);
        a.put("question", String.join("\t", q));
        switch (q[0]) {
            case "key" -> {
                QueryMessageResult r = store.queryMessage(q[1], q[2], Integer.parseInt(q[3]), Long.parseLong(q[4]), Long.parseLong(q[5]));
                List<Long> offsets = new ArrayList<>();
                for (ByteBuffer record : r.getMessageBufferList()) {
                    offsets.add(record.getLong(28));
                }
                a.put("commitLogOffsets", offsets);
                r.release();
            }
            case "get" -> {
                GetMessageResult r = store.getMessage("dump", q[1], Integer.parseInt(q[2]), Long.parseLong(q[3]), Integer.parseInt(q[4]), null);
                a.put("status", r.getStatus());
                a.put("nextBeginOffset", r.getNextBeginOffset());
                a.put("minOffset", r.getMinOffset());
                a.put("maxOffset", r.getMaxOffset());
                List<Long> offsets = new ArrayList<>();
                for (ByteBuffer record : r.getMessageBufferList()) {
                    offsets.add(record.getLong(28));
                }
                a.put("commitLogOffsets", offsets);
                r.release();
            }
            case "time" -> a.put("offset", StoreApi.offsetByTime(store, q[1], Integer.parseInt(q[2]), Long.parseLong(q[3]), q.length > 4 ? q[4] : "LOWER"));
            case "bounds" -> {
                a.put("min", store.getMinOffsetInQueue(q[1], Integer.parseInt(q[2])));
                a.put("max", store.getMaxOffsetInQueue(q[1], Integer.parseInt(q[2])));
            }
            default -> throw new IllegalArgumentException(q[0]);
        }
        print(a);
    }
}
