package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.pop.orderly.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.broker.topic.TopicQueueMappingCleanService;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.body.KVTable;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.junit.Assume;
import org.mockito.Mockito;
import org.mockito.stubbing.Answer;

/**
 * A broker of ours in a process of its own, with what the tests ask of an in-process one asked over the wire: offsets
 * by the codes of clients, options by UPDATE_BROKER_CONFIG. What the wire has no word for skips its test (an RPC hook
 * of the server, estimated counts), or is left out (a cleaning that runs now instead of soon).
 */
public final class RemoteBroker {
    private static final int TIMEOUT_MS = 10_000;
    private static final int STOP_S = 30;
    private static final int PROBE_MS = 300;
    private static final NettyRemotingClient CLIENT = new NettyRemotingClient(new NettyClientConfig());

    static {
        CLIENT.start();
    }

    final String name;
    final BrokerController controller;
    private final String namesrvAddr;
    private final Options options = new Options();
    private final StoreOptions storeOptions = new StoreOptions();
    private final DefaultMessageStore store = standIn(DefaultMessageStore.class, new Store());
    private final TopicConfigManager topics = standIn(TopicConfigManager.class, new Topics());
    private final SubscriptionGroupManager groups = standIn(SubscriptionGroupManager.class, new Groups());
    private final ConsumerOffsetManager offsets = standIn(ConsumerOffsetManager.class, new Offsets());
    private final ConsumerOrderInfoManager orders = standIn(ConsumerOrderInfoManager.class, new Orders());
    private final ConsumerFilterManager filters = standIn(ConsumerFilterManager.class, new Filters());
    private final BrokerOuterAPI outer = standIn(BrokerOuterAPI.class, new Soon());
    private final TopicQueueMappingCleanService cleaner = standIn(TopicQueueMappingCleanService.class, new Soon());
    private static int firstGrpcPort;
    private int port;
    private Process process;

    RemoteBroker(String name, String namesrvAddr) {
        this.name = name;
        this.namesrvAddr = namesrvAddr;
        controller = standIn(BrokerController.class, this);
    }

    /** Where gRPC clients of the broker connect that was started first. */
    public static int grpcPortOfFirst() {
        return firstGrpcPort;
    }

    /** Starts {@code oberth proxy}; its port. */
    public static int startProxy(String namesrvAddr) {
        int port = IntegrationTestBase.freePort();
        IntegrationTestBase.startServer(IntegrationTestBase.directory("proxy"), port, "proxy", "-v", "-n", namesrvAddr,
            "--port", String.valueOf(port), "--invisible-min", "0",
            "--poll-min", "0");
        return port;
    }

    /** An object of a class of theirs whose calls go to methods of the same name here. */
    static <T> T standIn(Class<T> type, Object handler) {
        Answer<Object> answer = call -> {
            for (Method method : handler.getClass().getMethods()) {
                if (method.getDeclaringClass() != Object.class && method.getName().equals(call.getMethod().getName())
                    && method.getParameterCount() == call.getArguments().length) {
                    method.setAccessible(true);
                    try {
                        return method.invoke(handler, call.getArguments());
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                }
            }
            if (call.getMethod().getDeclaringClass() == Object.class) {
                return Mockito.RETURNS_DEFAULTS.answer(call);
            }
            throw new UnsupportedOperationException(call.getMethod().toString());
        };
        return Mockito.mock(type, answer);
    }

    static RemotingCommand ask(String address, int code, Map<String, ?> fields, byte[] body) {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        HashMap<String, String> texts = new HashMap<>();
        fields.forEach((key, value) -> texts.put(key, String.valueOf(value)));
        request.setExtFields(texts);
        request.setBody(body);
        try {
            return CLIENT.invokeSync(address, request, TIMEOUT_MS);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private RemotingCommand ask(int code, Map<String, ?> fields) {
        return ask(getBrokerAddr(), code, fields, null);
    }

    private void change(String key, Object value) {
        if (process == null) {
            return;
        }
        RemotingCommand answer = ask(getBrokerAddr(), RequestCode.UPDATE_BROKER_CONFIG, Map.of(), (key + "=" + value).getBytes());
        if (answer.getCode() != 0) {
            throw new IllegalStateException(answer.getRemark());
        }
    }

    /** Starts the process with the options that their tests start a broker with. */
    void start(Map<String, String> more) {
        port = IntegrationTestBase.freePort();
        Path directory = IntegrationTestBase.directory(name);
        Map<String, String> conf = new TreeMap<>();
        conf.put("brokerClusterName", "DefaultCluster");
        conf.put("brokerName", name);
        conf.put("brokerIP1", "127.0.0.1");
        conf.put("listenPort", String.valueOf(port));
        conf.put("namesrvAddr", namesrvAddr);
        conf.put("storePathRootDir", directory.resolve("store").toString());
        conf.put("enablePropertyFilter", "true");
        conf.put("enableCalcFilterBitMap", "true");
        conf.put("enableConsumeQueueExt", "true");
        conf.put("appendAckAsync", "true");
        conf.put("appendCkAsync", "true");
        conf.put("recallMessageEnable", "true");
        if (firstGrpcPort == 0) {
            firstGrpcPort = IntegrationTestBase.freePort();
            conf.put("grpcServerPort", String.valueOf(firstGrpcPort));
            conf.put("minInvisibleTimeMillsForRecv", "0");
            conf.put("grpcClientConsumerMinLongPollingTimeoutMillis", "0");
        }
        conf.put("loadBalancePollNameServerInterval", "500");
        conf.put("mappedFileSizeCommitLog", String.valueOf(100 << 20));
        conf.put("maxIndexNum", "1000");
        conf.put("maxHashSlotNum", "4000");
        conf.put("maxTransferCountOnMessageInMemory", "1024");
        conf.put("maxTransferCountOnMessageInDisk", "1024");
        conf.putAll(more);
        StringBuilder text = new StringBuilder();
        conf.forEach((key, value) -> text.append(key).append('=').append(value).append('\n'));
        Path file = directory.resolve("broker.conf");
        try {
            Files.createDirectories(directory);
            Files.writeString(file, text);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        process = IntegrationTestBase.start(directory, port, "broker", "-c", file.toString());
    }

    public void shutdown() {
        if (process == null) {
            return;
        }
        process.destroy();
        try {
            if (!process.waitFor(STOP_S, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException(name + " did not stop");
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        } finally {
            process = null;
        }
    }

    public String getBrokerAddr() {
        return "127.0.0.1:" + port;
    }

    public BrokerConfig getBrokerConfig() {
        return options;
    }

    public MessageStoreConfig getMessageStoreConfig() {
        return storeOptions;
    }

    public DefaultMessageStore getMessageStore() {
        return store;
    }

    public TopicConfigManager getTopicConfigManager() {
        return topics;
    }

    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return groups;
    }

    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets;
    }

    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        return orders;
    }

    public ConsumerFilterManager getConsumerFilterManager() {
        return filters;
    }

    public BrokerOuterAPI getBrokerOuterAPI() {
        return outer;
    }

    public TopicQueueMappingCleanService getTopicQueueMappingCleanService() {
        return cleaner;
    }

    public void registerBrokerAll(boolean order, boolean oneway, boolean force) {
        // Ours has done so when it changed.
    }

    public void registerServerRPCHook(RPCHook hook) {
        Assume.assumeTrue("a hook of the server is for its own process", false);
    }

    /** What happens soon by itself. */
    public static final class Soon {
        public void refreshMetadata() { }

        public void wakeup() { }
    }

    /** Options that tests set while the broker runs. */
    private final class Options extends BrokerConfig {
        @Override
        public String getBrokerName() {
            return name;
        }

        @Override
        public void setEnablePopBufferMerge(boolean on) {
            change("enablePopBufferMerge", on);
        }

        @Override
        public void setEnableNotifyAfterPopOrderLockRelease(boolean on) {
            change("enableNotifyAfterPopOrderLockRelease", on);
        }

        @Override
        public void setEnableSingleTopicRegister(boolean on) {
            change("enableSingleTopicRegister", on);
        }

        @Override
        public void setEnableSplitRegistration(boolean on) {
            change("enableSplitRegistration", on);
        }

        @Override
        public void setLongPollingEnable(boolean on) {
            change("longPollingEnable", on);
        }

        @Override
        public void setShortPollingTimeMills(long ms) {
            change("shortPollingTimeMills", ms);
        }

        @Override
        public void setEstimateAccumulation(boolean on) {
            change("estimateAccumulation", on);
        }

        @Override
        public void setUseServerSideResetOffset(boolean on) {
            change("useServerSideResetOffset", on);
        }

        @Override
        public void setPopConsumerKVServiceEnable(boolean on) {
            change("popConsumerKVServiceEnable", on);
        }

        @Override
        public void setPopFromRetryProbabilityForPriority(int percent) {
            change("popFromRetryProbabilityForPriority", percent);
        }

        @Override
        public void setPriorityOrderAsc(boolean on) {
            change("priorityOrderAsc", on);
        }

        @Override
        public void setUseSeparateRetryQueue(boolean on) {
            change("useSeparateRetryQueue", on);
        }
    }

    /** The same for the store's. */
    private final class StoreOptions extends MessageStoreConfig {
        @Override
        public void setAppendTopicForTimerDeleteKey(boolean on) {
            change("appendTopicForTimerDeleteKey", on);
        }
    }

    /** Asked of the store. */
    public final class Store {
        private long offset(int code, String topic, int queueId) {
            return Long.parseLong(ask(code, Map.of("topic", topic, "queueId", queueId)).getExtFields().get("offset"));
        }

        public long getMaxOffsetInQueue(String topic, int queueId) {
            return offset(RequestCode.GET_MAX_OFFSET, topic, queueId);
        }

        public long getMinOffsetInQueue(String topic, int queueId) {
            return offset(RequestCode.GET_MIN_OFFSET, topic, queueId);
        }

        public long dispatchBehindBytes() {
            byte[] body = ask(RequestCode.GET_BROKER_RUNTIME_INFO, Map.of()).getBody();
            return Long.parseLong(KVTable.decode(body, KVTable.class).getTable().get("dispatchBehindBytes"));
        }

        public long estimateMessageCount(String topic, int queueId, long from, long to, Object filter) {
            Assume.assumeTrue("no request asks for an estimate", false);
            return 0;
        }

        public int cleanUnusedTopic(Set<String> kept) {
            Assume.assumeTrue("no request empties the queues of a topic that is still there", false);
            return 0;
        }
    }

    /** Asked of the topics. */
    public final class Groups {
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            RemotingCommand answer = ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Map.of("group", group));
            if (answer.getBody() != null) {
                return RemotingSerializable.decode(answer.getBody(), SubscriptionGroupConfig.class);
            }
            SubscriptionGroupConfig made = new SubscriptionGroupConfig(); // theirs makes one, too
            made.setGroupName(group);
            return made;
        }

        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig config) {
            ask(getBrokerAddr(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Map.of(), RemotingSerializable.encode(config));
        }
    }

    public final class Topics {
        public void updateTopicConfig(TopicConfig config) {
            Map<String, Object> fields = new HashMap<>();
            fields.put("topic", config.getTopicName());
            fields.put("defaultTopic", "TBW102");
            fields.put("readQueueNums", config.getReadQueueNums());
            fields.put("writeQueueNums", config.getWriteQueueNums());
            fields.put("perm", config.getPerm());
            fields.put("topicFilterType", config.getTopicFilterType());
            fields.put("topicSysFlag", config.getTopicSysFlag());
            fields.put("order", config.isOrder());
            ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields);
        }

        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            byte[] body = ask(RequestCode.GET_ALL_TOPIC_CONFIG, Map.of()).getBody();
            return TopicConfigSerializeWrapper.decode(body, TopicConfigSerializeWrapper.class).getTopicConfigTable();
        }
    }

    /** Asked of the offsets of groups. */
    public final class Offsets {
        public long queryOffset(String group, String topic, int queueId) {
            RemotingCommand answer = ask(RequestCode.QUERY_CONSUMER_OFFSET, Map.of("consumerGroup", group, "topic", topic,
                "queueId", queueId, "setZeroIfNotFound", "false"));
            return answer.getCode() == 0 ? Long.parseLong(answer.getExtFields().get("offset")) : -1;
        }

        public long queryPullOffset(String group, String topic, int queueId) {
            return MQAdminTestUtils.examineConsumeStats(getBrokerAddr(), topic, group).getOffsetTable()
                .get(new MessageQueue(topic, name, queueId)).getPullOffset();
        }
    }

    /** Asked of the filters: consumers have brought theirs with their heartbeats. */
    public static final class Filters {
        public boolean register(String topic, String group, String expression, String type, long version) {
            return true;
        }

        public Object get(String topic, String group) {
            return null;
        }
    }

    /** Asked of the ordered pops. */
    public final class Orders {
        /** No request tells it, so one more message is sent, and somebody else tries to pop it. */
        public boolean checkBlock(String attemptId, String topic, String group, int queueId, long invisibleTime)
            throws InterruptedException {
            Map<String, Object> send = new HashMap<>(Map.of("producerGroup", "probe", "topic", topic, "queueId", queueId,
                "defaultTopic", "TBW102", "defaultTopicQueueNums", 4, "sysFlag", 0, "flag", 0, "properties", "",
                "bornTimestamp", System.currentTimeMillis()));
            ask(getBrokerAddr(), RequestCode.SEND_MESSAGE, send, "probe".getBytes());
            Thread.sleep(PROBE_MS);
            Map<String, Object> pop = new HashMap<>(Map.of("consumerGroup", group, "topic", topic, "queueId", queueId,
                "maxMsgNums", 1, "invisibleTime", 1000, "pollTime", 0, "initMode", 0, "order", true,
                "bornTime", System.currentTimeMillis(), "attemptId", UUID.randomUUID()));
            pop.put("expType", "TAG");
            pop.put("exp", "*");
            return ask(RequestCode.POP_MESSAGE, pop).getCode() != 0;
        }
    }
}
