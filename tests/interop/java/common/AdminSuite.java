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
 * label, a command line and the seconds it may take on each line, parted by tabs; {name} stands for what the preparation
 * made. First topics, messages, live groups (pushing, popping, broadcasting), an idle group, a live producer and a traced
 * message are prepared; then one line of JSON per command: scenario, ok, ms, detail (the exception), output.
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
        Map<String, String> names;
        try {
            names = prepare(c, o.get("dir"));
        } catch (Throwable t) { // clients that run on would keep the process
            t.printStackTrace();
            Runtime.getRuntime().halt(1);
            return;
        }
        for (String line : Files.readAllLines(Path.of(o.get("plan")))) {
            if (line.isBlank() || line.startsWith("#")) {
                continue;
            }
            String[] parts = line.split("\t");
            List<String> words = new ArrayList<>();
            for (String word : parts[1].split(" ")) {
                for (Map.Entry<String, String> name : names.entrySet()) {
                    word = word.replace("{" + name.getKey() + "}", name.getValue());
                }
                words.add(word.replace("~", " "));
            }
            out.println(Json.of(run(parts[0], words, parts.length > 2 ? 1000 * Integer.parseInt(parts[2]) : LIMIT_MS)));
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
        DefaultMQProducer traced = new DefaultMQProducer(null, "AdminTraced", null, true, null);
        c.start(traced);
        names.put("tracedId", traced.send(Case.message(other, "traced", 99), new MessageQueue(other, brokerName, 1)).getMsgId());
        for (String group : List.of("AdminIdle", "AdminGroup", "AdminBroadcast", "AdminPop")) {
            Api.group(c.admin(), broker, group, false);
            c.topicNamed("%RETRY%" + group, 1, 6, Map.of());
            DefaultMQPushConsumer consumer;
            try {
                consumer = group.equals("AdminPop") ? Api.popConsumer(c, topic, group) : c.consumer(group);
            } catch (Case.Skip why) {
                continue;
            }
            if (group.equals("AdminBroadcast")) {
                Api.broadcast(consumer);
            }
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
        names.put("broadcast", "AdminBroadcast");
        names.put("popGroup", "AdminPop");
        names.put("producers", "AdminProducers");
        names.put("client", Api.clientIds(c.admin(), "AdminGroup").get(0));
        names.put("msgId", first.getMsgId());
        names.put("offsetMsgId", first.getOffsetMsgId());
        names.put("noMsgId", first.getOffsetMsgId().substring(0, 16) + "00000000FFFFFFF0");
        names.put("key", "k0");
        names.put("begin", "" + (System.currentTimeMillis() - 3_600_000));
        names.put("end", "" + (System.currentTimeMillis() + 3_600_000));
        names.put("dir", dir);
        Thread.sleep(2000); // offsets reach the broker
        return names;
    }

    /** The tool registers its commands anew for each line: some keep a client that they have shut down. */
    private static void freshCommands() throws Exception {
        for (java.lang.reflect.Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    @SuppressWarnings({"deprecation", "removal"})
    private static Map<String, Object> run(String label, List<String> words, int limitMs) throws Exception {
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
            freshCommands();
            thread.start();
            thread.join(limitMs);
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
            if (endless) {
                break; // what it says now is of our making
            }
            if (line.matches("(Caused by: )?[a-z]+(\\.\\w+)+(Exception|Error)\\b.*")) {
                trouble = line.strip();
                if (!line.contains("SubCommandException")) {
                    break;
                }
            }
        }
        if (failure[0] != null && !endless && !String.valueOf(failure[0].getMessage()).startsWith("exit")) {
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
