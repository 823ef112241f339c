import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The official client and its tool at a broker with access control: {@code AclSuite namesrv=HOST:PORT kind=plain|users}.
 * The tool signs with conf/tools.yml of ROCKETMQ_HOME. One line of JSON per step: scenario, ok, detail; detail is
 * "no error", or the code that the step was refused with, or what the tool printed.
 */
@SuppressWarnings("deprecation")
public final class AclSuite {
    private static final PrintStream OUT = System.out;
    private static String namesrv;
    private static int serial;

    private AclSuite() { }

    public static void main(String[] args) throws Exception {
        Map<String, String> o = new LinkedHashMap<>();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            o.put(pair[0], pair[1]);
        }
        namesrv = o.get("namesrv");
        System.setProperty("rocketmq.namesrv.addr", namesrv);
        try {
            steps(o.get("kind"));
        } catch (Throwable t) {
            t.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        OUT.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void steps(String kind) throws Exception {
        String broker = Api.masters(admin("administrator", "administrator-secret")).get(0);
        tool("tool: topic", "updateTopic -b " + broker + " -t AclTopic -r 1 -w 1");
        tool("tool: other topic", "updateTopic -b " + broker + " -t AclOther -r 1 -w 1");
        tool("tool: group", "updateSubGroup -b " + broker + " -g AclGroup");
        tool("tool: other group", "updateSubGroup -b " + broker + " -g AclOtherGroup");
        if (kind.equals("users")) {
            tool("tool: sender", "createUser -b " + broker + " -u the-sender -p sender-secret -t Normal");
            tool("tool: reader", "createUser -b " + broker + " -u the-reader -p reader-secret -t Normal");
            tool("tool: sender may", "createAcl -b " + broker + " -s User:the-sender -r Topic:AclTopic -a Pub -d Allow");
            tool("tool: reader may", "createAcl -b " + broker + " -s User:the-reader -r Topic:AclTopic,Group:AclGroup -a Sub -d Allow");
        }
        MessageQueue queue = new MessageQueue("AclTopic", admin("administrator", "administrator-secret")
            .examineTopicRouteInfo("AclTopic").getBrokerDatas().get(0).getBrokerName(), 0);
        MessageQueue other = new MessageQueue("AclOther", queue.getBrokerName(), 0);
        RPCHook sender = hook("the-sender", "sender-secret");
        RPCHook reader = hook("the-reader", "reader-secret");
        step("send", () -> send(sender, queue));
        step("send: other topic", () -> send(sender, other));
        step("send: wrong secret", () -> send(hook("the-sender", "guessed-secret"), queue));
        step("send: unknown name", () -> send(hook("nobody!", "sender-secret"), queue));
        step("send: unsigned", () -> send(null, queue));
        step("send: who may only read", () -> send(reader, queue));
        step("pull", () -> pull(reader, "AclGroup", queue));
        step("pull: other topic", () -> pull(reader, "AclGroup", other));
        step("pull: other group", () -> pull(reader, "AclOtherGroup", queue));
        step("pull: who may only send", () -> pull(sender, "AclGroup", queue));
        step("pull: wrong secret", () -> pull(hook("the-reader", "guessed-secret"), "AclGroup", queue));
        step("push", () -> push(reader));
        step("administration: topic", () -> topic("the-sender", "sender-secret", broker));
        step("administration: wrong secret", () -> topic("administrator", "guessed-secret", broker));
        step("administration: by an administrator", () -> topic("administrator", "administrator-secret", broker));
        step("administration: configuration", () -> admin("the-sender", "sender-secret").getBrokerConfig(broker));
        step("administration: group", () -> {
            admin("the-reader", "reader-secret").deleteSubscriptionGroup(broker, "AclGroup");
            return null;
        });
        tool("tool: figures", "brokerStatus -b " + broker);
        if (kind.equals("users")) {
            tool("tool: deny", "updateAcl -b " + broker + " -s User:the-sender -r Topic:AclTopic -a Pub -d Deny");
            step("send: denied meanwhile", () -> send(sender, queue));
            tool("tool: disable", "updateUser -b " + broker + " -u the-reader -s disable");
            step("pull: disabled meanwhile", () -> pull(reader, "AclGroup", queue));
        }
    }

    private static RPCHook hook(String name, String secret) {
        return new AclClientRPCHook(new SessionCredentials(name, secret));
    }

    private static DefaultMQAdminExt admin(String name, String secret) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook(name, secret), 10_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("acl" + serial++);
        admin.start();
        return admin;
    }

    private static Object topic(String name, String secret, String broker) throws Exception {
        admin(name, secret).createAndUpdateTopicConfig(broker, new TopicConfig("AclMade", 1, 1, 6));
        return null;
    }

    private static Object send(RPCHook hook, MessageQueue queue) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("AclProducers", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("acl" + serial++);
        producer.start();
        try {
            return producer.send(new Message(queue.getTopic(), "tag", "hello".getBytes(StandardCharsets.UTF_8)), queue);
        } finally {
            producer.shutdown();
        }
    }

    private static Object pull(RPCHook hook, String group, MessageQueue queue) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("acl" + serial++);
        consumer.start();
        try {
            return consumer.pull(queue, "*", 0, 32);
        } finally {
            consumer.shutdown();
        }
    }

    private static Object push(RPCHook hook) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(hook);
        consumer.setConsumerGroup("AclGroup");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("acl" + serial++);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("AclTopic", "*");
        CountDownLatch got = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Case.check(got.await(30, TimeUnit.SECONDS), "nothing came in 30 s");
        } finally {
            consumer.shutdown();
        }
        return null;
    }

    private static void step(String name, Callable<?> call) {
        line(name, Case.codeOf(call));
    }

    private static void tool(String name, String command) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream both = new PrintStream(text, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            MQAdminStartup.main0(command.split(" "), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        line(name, text.toString(StandardCharsets.UTF_8));
    }

    private static void line(String name, String detail) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", name);
        line.put("detail", detail);
        OUT.println(Json.of(line));
        OUT.flush();
    }
}
