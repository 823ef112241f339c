import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store of 4.x. */
final class StoreApi {
    private StoreApi() { }

    static DefaultMessageStore open(String dir, Properties config) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(dir);
        c.setStorePathCommitLog(dir + "/commitlog");
        c.setHaListenPort(0);
        c.setDiskMaxUsedSpaceRatio(95);
        BrokerConfig b = new BrokerConfig();
        MixAll.properties2Object(config, c);
        MixAll.properties2Object(config, b);
        return new DefaultMessageStore(c, new BrokerStatsManager("interop", true), (topic, queue, offset, tags, time, bits, properties) -> { }, b);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queue, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queue, time); // knows no boundary
    }

    static MessageExtBrokerInner inner() {
        return new MessageExtBrokerInner();
    }

    static MessageExt decode(ByteBuffer record) {
        return MessageDecoder.decode(record, true, true);
    }

    static List<Map<String, Object>> queues(DefaultMessageStore store) {
        List<Map<String, Object>> all = new ArrayList<>();
        for (var byQueue : new TreeMap<>(store.getConsumeQueueTable()).values()) {
            for (ConsumeQueue q : new TreeMap<>(byQueue).values()) {
                Map<String, Object> one = new LinkedHashMap<>();
                one.put("topic", q.getTopic());
                one.put("queueId", q.getQueueId());
                one.put("cqType", "SimpleCQ");
                one.put("minOffset", q.getMinOffsetInQueue());
                one.put("maxOffset", q.getMaxOffsetInQueue());
                List<List<Object>> units = new ArrayList<>();
                long at = q.getMinOffsetInQueue();
                while (at < q.getMaxOffsetInQueue()) {
                    SelectMappedBufferResult slice = q.getIndexBuffer(at);
                    if (slice == null) {
                        break;
                    }
                    ByteBuffer bytes = slice.getByteBuffer();
                    for (int n = 0; n + ConsumeQueue.CQ_STORE_UNIT_SIZE <= slice.getSize(); n += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                        long tags = bytes.getLong(n + 12);
                        List<Object> unit = new ArrayList<>(List.of(at++, bytes.getLong(n), bytes.getInt(n + 8), tags));
                        if (q.isExtAddr(tags)) {
                            ConsumeQueueExt.CqExtUnit e = q.getExt(tags);
                            Map<String, Object> ext = new LinkedHashMap<>();
                            ext.put("tagsCode", e.getTagsCode());
                            ext.put("msgStoreTime", e.getMsgStoreTime());
                            ext.put("size", (int) e.getSize());
                            ext.put("filterBitMap", e.getFilterBitMap() == null ? null : Base64.getEncoder().encodeToString(e.getFilterBitMap()));
                            unit.add(ext);
                        }
                        units.add(unit);
                    }
                    slice.release();
                }
                one.put("units", units);
                all.add(one);
            }
        }
        return all;
    }
}
