import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.HashMap;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Keeps what a listener was given, in order of arrival, with the time of each. */
final class Sink implements MessageListenerConcurrently {
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition arrived = lock.newCondition();
    private final List<MessageExt> messages = new ArrayList<>();
    private final List<Long> times = new ArrayList<>();

    void add(List<MessageExt> batch) {
        lock.lock();
        try {
            long now = System.currentTimeMillis();
            for (MessageExt m : batch) {
                messages.add(m);
                times.add(now);
            }
            arrived.signalAll();
        } finally {
            lock.unlock();
        }
    }

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        add(batch);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    List<MessageExt> messages() {
        lock.lock();
        try {
            return new ArrayList<>(messages);
        } finally {
            lock.unlock();
        }
    }

    Set<String> ids() {
        return Case.ids(messages());
    }

    int duplicates() {
        List<MessageExt> all = messages();
        return all.size() - new HashSet<>(all.stream().map(Case::id).toList()).size();
    }

    /** First arrival of each id. */
    Map<String, Long> timeOf() {
        lock.lock();
        try {
            Map<String, Long> first = new HashMap<>();
            for (int n = 0; n < messages.size(); n++) {
                first.putIfAbsent(Case.id(messages.get(n)), times.get(n));
            }
            return first;
        } finally {
            lock.unlock();
        }
    }

    /** Waits until nothing has come for a second. */
    void awaitQuiet() throws InterruptedException {
        lock.lock();
        try {
            for (int before = -1; before != messages.size();) {
                before = messages.size();
                long left = TimeUnit.SECONDS.toNanos(1);
                while (left > 0 && before == messages.size()) {
                    left = arrived.awaitNanos(left);
                }
            }
        } finally {
            lock.unlock();
        }
    }

    void await(int seconds, String what, Predicate<List<MessageExt>> enough) throws InterruptedException {
        long left = TimeUnit.SECONDS.toNanos(seconds);
        lock.lock();
        try {
            while (!enough.test(messages)) {
                Case.check(left > 0, "not within %d s: %s; %d messages arrived", seconds, what, messages.size());
                left = arrived.awaitNanos(left);
            }
        } finally {
            lock.unlock();
        }
    }

    void awaitIds(int seconds, Set<String> wanted) throws InterruptedException {
        try {
            await(seconds, wanted.size() + " ids", m -> Case.ids(m).containsAll(wanted));
        } catch (AssertionError e) {
            Case.covers(wanted, ids(), e.getMessage());
            throw e;
        }
    }

    /** Offsets of each queue never go back, first arrivals only. */
    void checkOrderPerQueue() {
        Map<String, Long> last = new HashMap<>();
        Set<String> seen = new HashSet<>();
        for (MessageExt m : messages()) {
            if (seen.add(Case.id(m))) {
                String queue = m.getBrokerName() + "/" + m.getQueueId();
                Long before = last.put(queue, m.getQueueOffset());
                Case.check(before == null || before < m.getQueueOffset(), "queue %s: offset %d after %d", queue,
                    m.getQueueOffset(), before);
            }
        }
    }
}
