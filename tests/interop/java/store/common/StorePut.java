import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Writes messages with Apache's store: {@code StorePut DIR stop|kill [key=value ...]}; messages come on stdin, fields
 * parted by tabs: {@code TOPIC QUEUE TAGS KEYS BORN_TIMESTAMP SYS_FLAG RECONSUME_TIMES PROPERTIES BODY}, properties as
 * {@code name=value} with commas between, the body in base64. One line of JSON for each put. Ends with a clean
 * shutdown, or at once (kill).
 */
public final class StorePut {
    private StorePut() { }

    public static void main(String[] args) throws Exception {
        java.io.PrintStream out = System.out;
        System.setOut(System.err);
        Properties config = new Properties();
        for (int n = 2; n < args.length; n++) {
            String[] pair = args[n].split("=", 2);
            config.setProperty(pair[0], pair[1].replace("{root}", args[0]));
        }
        DefaultMessageStore store = StoreApi.open(args[0], config);
        if (!store.load()) {
            throw new IllegalStateException("load() failed");
        }
        store.start();
        InetSocketAddress host = new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 10911);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            var m = StoreApi.inner();
            m.setTopic(f[0]);
            m.setQueueId(Integer.parseInt(f[1]));
            if (!f[2].isEmpty()) {
                m.setTags(f[2]);
            }
            if (!f[3].isEmpty()) {
                m.setKeys(f[3]);
            }
            m.setBornTimestamp(Long.parseLong(f[4]));
            m.setSysFlag(Integer.parseInt(f[5]));
            m.setReconsumeTimes(Integer.parseInt(f[6]));
            for (String pair : f[7].isEmpty() ? new String[0] : f[7].split(",")) {
                String[] kv = pair.split("=", 2);
                MessageAccessor.putProperty(m, kv[0], kv[1]);
            }
            m.setBody(Base64.getDecoder().decode(f[8]));
            m.setBornHost(host);
            m.setStoreHost(host);
            m.setTagsCode(f[2].isEmpty() ? 0 : f[2].hashCode());
            m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
            PutMessageResult r = store.putMessage(m);
            var result = new java.util.LinkedHashMap<String, Object>();
            result.put("status", r.getPutMessageStatus());
            if (r.getAppendMessageResult() != null) {
                result.put("commitLogOffset", r.getAppendMessageResult().getWroteOffset());
                result.put("storeSize", r.getAppendMessageResult().getWroteBytes());
                result.put("queueOffset", r.getAppendMessageResult().getLogicsOffset());
                result.put("msgId", r.getAppendMessageResult().getMsgId());
            }
            out.println(Json.of(result));
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        if (args[1].equals("stop")) {
            store.shutdown();
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }
}
