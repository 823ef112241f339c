package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * Stands where Apache's class of this name stands in the class path of their integration tests: instead of a name
 * server and brokers inside the Java process it starts ours, each a process of its own. Name and signatures are those
 * that the compiled tests call. System properties: oberth.command (parts joined by a blank), oberth.directory.
 */
public class IntegrationTestBase {
    private static final int FIRST_PORT = 20_000;
    private static final int PORTS = 10_000;
    private static final int READY_S = 90;
    private static final int TOPIC_S = 30;
    private static final int QUEUES = 8;
    private static final List<RemoteBroker> BROKERS = new ArrayList<>();
    private static final List<Process> NAME_SERVERS = new ArrayList<>();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            BROKERS.forEach(RemoteBroker::shutdown);
            NAME_SERVERS.forEach(Process::destroyForcibly);
        }));
    }

    static int freePort() {
        Random random = new Random();
        while (true) {
            int port = FIRST_PORT + random.nextInt(PORTS);
            InetAddress loopback = InetAddress.getLoopbackAddress();
            try (ServerSocket one = new ServerSocket(port, 1, loopback);
                 ServerSocket fast = new ServerSocket(port - 2, 1, loopback)) {
                return port;
            } catch (IOException taken) {
                continue;
            }
        }
    }

    /** Starts one of our servers and waits until it accepts connections. */
    static Process start(Path directory, int port, String... arguments) {
        try {
            Files.createDirectories(directory);
            List<String> command = new ArrayList<>(List.of(System.getProperty("oberth.command").split(" ")));
            command.addAll(List.of(arguments));
            Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(directory.resolve("log").toFile()))
                .start();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(READY_S);
            while (true) {
                try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                    return process;
                } catch (IOException notYet) {
                    if (!process.isAlive() || System.nanoTime() > deadline) {
                        throw new IllegalStateException("no server on port " + port + ", see " + directory.resolve("log"));
                    }
                    Thread.sleep(50);
                }
            }
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Starts what ends with this process. */
    static void startServer(Path directory, int port, String... arguments) {
        NAME_SERVERS.add(start(directory, port, arguments));
    }

    static Path directory(String name) {
        return Path.of(System.getProperty("oberth.directory"), name);
    }

    public static NamesrvController createAndStartNamesrv() {
        int port = freePort();
        Path directory = directory("namesrv");
        NAME_SERVERS.add(start(directory, port, "namesrv", "--port", String.valueOf(port), "--set",
            "kvConfigPath=" + directory.resolve("kvConfig.json")));
        return RemoteBroker.standIn(NamesrvController.class, new RemoteNamesrv(port));
    }

    public static BrokerController createAndStartBroker(String namesrvAddr) {
        RemoteBroker broker = new RemoteBroker("TestBrokerName_" + (BROKERS.size() + 1), namesrvAddr);
        broker.start(Map.of());
        BROKERS.add(broker);
        return broker.controller;
    }

    /** A broker that was shut down starts again on its store; of the options only this one is ever changed. */
    public static BrokerController createAndStartBroker(MessageStoreConfig storeConfig, BrokerConfig brokerConfig) {
        for (RemoteBroker broker : BROKERS) {
            if (broker.name.equals(brokerConfig.getBrokerName())) {
                broker.start(Map.of("enableBuildConsumeQueueConcurrently",
                    String.valueOf(storeConfig.isEnableBuildConsumeQueueConcurrently())));
                return broker.controller;
            }
        }
        throw new IllegalArgumentException(brokerConfig.getBrokerName());
    }

    public static boolean initTopic(String topic, String namesrvAddr, String cluster, CQType queueType) {
        return initTopic(topic, namesrvAddr, cluster, QUEUES, queueType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String namesrvAddr, String cluster, TopicMessageType messageType) {
        return initTopic(topic, namesrvAddr, cluster, QUEUES, CQType.SimpleCQ, messageType);
    }

    public static boolean initTopic(String topic, String namesrvAddr, String cluster, int queues, CQType queueType,
        TopicMessageType messageType) {
        Map<String, String> attributes = new HashMap<>();
        if (queueType != CQType.SimpleCQ) {
            attributes.put("+queue.type", queueType.toString());
        }
        if (messageType != TopicMessageType.NORMAL) {
            attributes.put("+message.type", messageType.toString());
        }
        return MQAdminTestUtils.createTopic(namesrvAddr, cluster, topic, queues, attributes, TOPIC_S);
    }

    public static void initMQAdmin(String namesrvAddr) {
        try {
            MQAdminTestUtils.startAdmin(namesrvAddr);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
