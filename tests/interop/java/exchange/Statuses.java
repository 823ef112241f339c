import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * How sends end: {@code Statuses HOST:PORT TOPIC}. Each line on stdin names a broker; a message is sent to its queue 0,
 * once, and a line of JSON tells the client's status, or the code and the words of the broker's refusal.
 */
public final class Statuses {
    private static final int TIMEOUT_MS = 60_000;

    private Statuses() { }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("Statuses");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        producer.fetchPublishMessageQueues(args[1]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String broker = input.readLine(); broker != null; broker = input.readLine()) {
            Message message = new Message(args[1], broker.getBytes(StandardCharsets.UTF_8));
            String outcome;
            try {
                MessageQueue queue = new MessageQueue(args[1], broker, 0);
                outcome = "{\"status\":\"" + producer.send(message, queue).getSendStatus() + "\"}";
            } catch (MQBrokerException e) {
                outcome = "{\"code\":" + e.getResponseCode() + ",\"remark\":\"" + e.getErrorMessage() + "\"}";
            }
            System.out.println(outcome);
        }
        producer.shutdown();
        System.exit(0);
    }
}
