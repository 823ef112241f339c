import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store of 5.x. */
final class StoreApi {
    private StoreApi() { }

    static DefaultMessageStore open(String dir, Properties config) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(dir);
        c.setStorePathCommitLog(dir + "/commitlog");
        c.setHaListenPort(0);
        c.setTimerWheelEnable(false);
        c.setDiskMaxUsedSpaceRatio(95);
        BrokerConfig b = new BrokerConfig();
        MixAll.properties2Object(config, c);
        MixAll.properties2Object(config, b);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        Path file = Path.of(dir, "config", "topics.json"); // says which topics have batch queues
        if (Files.exists(file)) {
            topics.putAll(RemotingSerializable.fromJson(Files.readString(file), TopicConfigSerializeWrapper.class).getTopicConfigTable());
        }
        return new DefaultMessageStore(c, new BrokerStatsManager("interop", true), (topic, queue, offset, tags, time, bits, properties) -> { },
            b, topics);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queue, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queue, time, BoundaryType.getType(boundary));
    }

    static MessageExtBrokerInner inner() {
        return new MessageExtBrokerInner();
    }

    static MessageExt decode(ByteBuffer record) {
        return MessageDecoder.decode(record, true, true, false, false, true);
    }

    static List<Map<String, Object>> queues(DefaultMessageStore store) {
        List<Map<String, Object>> all = new ArrayList<>();
        for (var byQueue : new TreeMap<>(store.getConsumeQueueTable()).values()) {
            for (ConsumeQueueInterface q : new TreeMap<>(byQueue).values()) {
                Map<String, Object> one = new LinkedHashMap<>();
                one.put("topic", q.getTopic());
                one.put("queueId", q.getQueueId());
                one.put("cqType", q.getCQType());
                one.put("minOffset", q.getMinOffsetInQueue());
                one.put("maxOffset", q.getMaxOffsetInQueue());
                List<List<Object>> units = new ArrayList<>();
                long at = q.getMinOffsetInQueue();
                ReferredIterator<CqUnit> each = q.iterateFrom(at);
                while (each != null && at < q.getMaxOffsetInQueue()) {
                    if (!each.hasNext()) { // the end of a file
                        each.release();
                        each = q.iterateFrom(at);
                        if (each == null || !each.hasNext()) {
                            break;
                        }
                    }
                    CqUnit u = each.next();
                    at = u.getQueueOffset() + Math.max(1, u.getBatchNum());
                    List<Object> unit = new ArrayList<>(List.of(u.getQueueOffset(), u.getPos(), u.getSize(), u.getTagsCode()));
                    if (q.getCQType() == CQType.BatchCQ) {
                        unit.add((int) u.getBatchNum());
                        unit.add(u.getCompactedOffset());
                    } else if (u.getCqExtUnit() != null) {
                        Map<String, Object> ext = new LinkedHashMap<>();
                        ext.put("tagsCode", u.getCqExtUnit().getTagsCode());
                        ext.put("msgStoreTime", u.getCqExtUnit().getMsgStoreTime());
                        ext.put("size", (int) u.getCqExtUnit().getSize());
                        byte[] bits = u.getCqExtUnit().getFilterBitMap();
                        ext.put("filterBitMap", bits == null ? null : Base64.getEncoder().encodeToString(bits));
                        unit.add(ext);
                    }
                    units.add(unit);
                }
                if (each != null) {
                    each.release();
                }
                one.put("units", units);
                all.add(one);
            }
        }
        return all;
    }
}
