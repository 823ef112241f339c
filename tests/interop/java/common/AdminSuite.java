import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Every mqadmin command over the same contents: {@code AdminSuite namesrv=HOST:PORT plan=FILE dir=DIR}. The plan has a
 * label and a command line on each line, parted by a tab; {name} stands for what the preparation made. First topics,
 * messages, a live group, an idle group and a live producer are prepared; then one line of JSON per command:
 * scenario, ok, ms, detail (the exception), output.
 */
public final class AdminSuite {
    private static final int LIMIT_MS = 12_000;
    private static volatile boolean done;

    private AdminSuite() { }

    public static void main(String[] args) throws Exception {
        Map<String, String> o = new LinkedHashMap<>();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            o.put(pair[0], pair[1]);
        }
        PrintStream out = System.out;
        System.setProperty("rocketmq.namesrv.addr", o.get("namesrv"));
        forbidExit();
        Case c = new Case(o.get("namesrv"), "Admin");
        Map<String, String> names = prepare(c, o.get("dir"));
        for (String line : Files.readAllLines(Path.of(o.get("plan")))) {
            if (line.isBlank() || line.startsWith("#")) {
                continue;
            }
            String[] parts = line.split("\t", 2);
            List<String> words = new ArrayList<>();
            for (String word : parts[1].split(" ")) {
                for (Map.Entry<String, String> name : names.entrySet()) {
                    word = word.replace("{" + name.getKey() + "}", name.getValue());
                }
                words.add(word.replace("~", " "));
            }
            out.println(Json.of(run(parts[0], words)));
        }
        out.flush();
        done = true;
        Runtime.getRuntime().halt(0);
    }

    @SuppressWarnings("removal")
    private static void forbidExit() {
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkPermission(java.security.Permission permission) { }

            @Override
            public void checkExit(int status) {
                if (!done) { // a tool that ends its process must not end this one
                    throw new SecurityException("exit " + status);
                }
            }
        });
    }

    private static Map<String, String> prepare(Case c, String dir) throws Exception {
        Map<String, String> names = new LinkedHashMap<>();
        String topic = c.topicNamed("AdminTopic", 4, 6, Map.of());
        String other = c.topicNamed("AdminOther", 2, 6, Map.of());
        DefaultMQProducer p = new DefaultMQProducer("AdminProducers");
        c.start(p);
        String broker = c.masters().get(0);
        String brokerName = c.admin().examineTopicRouteInfo(topic).getBrokerDatas().get(0).getBrokerName();
        String cluster = c.admin().examineTopicRouteInfo(topic).getBrokerDatas().get(0).getCluster();
        SendResult first = null;
        for (int i = 0; i < 20; i++) {
            for (String t : List.of(topic, other)) {
                Message m = Case.message(t, "t" + i % 2, i);
                SendResult r = p.send(m, new MessageQueue(t, brokerName, i % 2));
                first = first == null ? r : first;
            }
        }
        for (String group : List.of("AdminIdle", "AdminGroup")) {
            Api.group(c.admin(), broker, group, false);
            c.topicNamed("%RETRY%" + group, 1, 6, Map.of());
            DefaultMQPushConsumer consumer = c.consumer(group);
            consumer.setInstanceName("admin-suite");
            consumer.setAwaitTerminationMillisWhenShutdown(3000);
            Sink sink = new Sink();
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(sink);
            c.start(consumer);
            sink.awaitIds(40, Case.range(0, 20));
            if (group.equals("AdminIdle")) {
                consumer.shutdown();
            }
        }
        for (int i = 20; i < 24; i++) {
            p.send(Case.message(topic, "late", i), new MessageQueue(topic, brokerName, 0));
        }
        names.put("namesrv", c.namesrv);
        names.put("cluster", cluster);
        names.put("broker", broker);
        names.put("brokerName", brokerName);
        names.put("topic", topic);
        names.put("other", other);
        names.put("group", "AdminGroup");
        names.put("idle", "AdminIdle");
        names.put("producers", "AdminProducers");
        names.put("client", Api.clientIds(c.admin(), "AdminGroup").get(0));
        names.put("msgId", first.getMsgId());
        names.put("offsetMsgId", first.getOffsetMsgId());
        names.put("key", "k0");
        names.put("begin", "" + (System.currentTimeMillis() - 3_600_000));
        names.put("end", "" + (System.currentTimeMillis() + 3_600_000));
        names.put("dir", dir);
        Thread.sleep(2000); // offsets reach the broker
        return names;
    }

    @SuppressWarnings({"deprecation", "removal"})
    private static Map<String, Object> run(String label, List<String> words) throws Exception {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        ByteArrayOutputStream talk = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        Throwable[] failure = {null};
        Thread thread = new Thread(() -> {
            try {
                MQAdminStartup.main0(words.toArray(new String[0]), null);
            } catch (Throwable t) {
                failure[0] = t;
            }
        }, label);
        long begin = System.currentTimeMillis();
        System.setOut(new PrintStream(text, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(talk, true, StandardCharsets.UTF_8));
        boolean endless;
        try {
            thread.start();
            thread.join(LIMIT_MS);
            endless = thread.isAlive();
            if (endless) {
                thread.interrupt();
                thread.join(1000);
                if (thread.isAlive()) {
                    thread.stop();
                }
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        String said = text.toString(StandardCharsets.UTF_8);
        String cried = talk.toString(StandardCharsets.UTF_8);
        String trouble = "";
        for (String line : (cried + "\n" + said).split("\n")) {
            if (line.matches("(Caused by: )?[a-z]+(\\.\\w+)+(Exception|Error)\\b.*")) {
                trouble = line.strip();
                if (!line.contains("SubCommandException")) {
                    break;
                }
            }
        }
        if (failure[0] != null && !String.valueOf(failure[0].getMessage()).startsWith("exit")) {
            trouble = failure[0].toString();
        }
        Map<String, Object> line = new LinkedHashMap<>();
        boolean unknown = said.contains("not exist.") && said.contains("sub command");
        line.put("scenario", label);
        line.put("ok", unknown ? null : (Boolean) trouble.isEmpty());
        line.put("ms", System.currentTimeMillis() - begin);
        line.put("detail", unknown ? "this release has no such command" : trouble);
        line.put("counts", Map.of("ended", !endless));
        line.put("observed", Map.of());
        line.put("command", String.join(" ", words));
        line.put("output", said);
        line.put("errors", cried);
        return line;
    }
}
