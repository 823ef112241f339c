import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group: {@code Member namesrv=HOST:PORT topic=T group=G}. Prints {"ready":true}, then a line of JSON for
 * each message, until a line on stdin.
 */
public final class Member {
    private Member() { }

    private static String option(String[] args, String name) {
        for (String arg : args) {
            if (arg.startsWith(name + "=")) {
                return arg.substring(name.length() + 1);
            }
        }
        throw new IllegalArgumentException(name + " is missing");
    }

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(option(args, "group"));
        consumer.setNamesrvAddr(option(args, "namesrv"));
        consumer.setInstanceName("java" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(option(args, "topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                synchronized (Member.class) {
                    System.out.printf("{\"body\":\"%s\",\"queue\":%d,\"offset\":%d}%n",
                        new String(message.getBody(), StandardCharsets.UTF_8), message.getQueueId(),
                        message.getQueueOffset());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("{\"ready\":true}");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        consumer.shutdown();
        System.exit(0);
    }
}
