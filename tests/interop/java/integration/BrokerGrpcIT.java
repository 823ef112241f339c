package org.apache.rocketmq.test.grpc.v2;

import apache.rocketmq.v2.MessagingServiceGrpc;
import apache.rocketmq.v2.QueryAssignmentRequest;
import apache.rocketmq.v2.QueryRouteResponse;
import java.io.IOException;
import java.lang.reflect.Field;
import java.security.cert.CertificateException;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.base.RemoteBroker;
import org.junit.Test;

/**
 * The tests of ClusterGrpcIT against the gRPC port of the first of our brokers itself, without a proxy.
 */
public class BrokerGrpcIT extends ClusterGrpcIT {
    /** The route of one broker has its queues; their test counts those of three. */
    @Test
    @Override
    public void testQueryRoute() throws Exception {
        QueryRouteResponse route = blockingStub.queryRoute(buildQueryRouteRequest(initTopic()));
        assertQueryRoute(route, DEFAULT_QUEUE_NUMS);
    }

    /** As well. */
    @Test
    @Override
    public void testQueryAssignment() throws Exception {
        QueryAssignmentRequest request = buildQueryAssignmentRequest(initTopic(), initConsumerGroup());
        assertQueryAssignment(blockingStub.queryAssignment(request), 1);
    }

    /** As well. */
    @Test
    @Override
    public void testQueryFifoAssignment() throws Exception {
        String group = initConsumerGroup();
        SubscriptionGroupConfig config = brokerController1.getSubscriptionGroupManager().findSubscriptionGroupConfig(group);
        config.setConsumeMessageOrderly(true);
        brokerController1.getSubscriptionGroupManager().updateSubscriptionGroupConfig(config);
        QueryAssignmentRequest request = buildQueryAssignmentRequest(initTopic(), group);
        assertQueryAssignment(blockingStub.queryAssignment(request), DEFAULT_QUEUE_NUMS);
    }

    /** Where ClusterGrpcIT would start a server with Apache's proxy. */
    @Override
    protected void setUpServer(MessagingServiceGrpc.MessagingServiceImplBase service, int port, boolean enableInterceptor)
        throws IOException, CertificateException {
        connect(this, RemoteBroker.grpcPortOfFirst());
    }

    /** Has a test talk to a port. */
    static void connect(GrpcBaseIT test, int port) throws IOException {
        try {
            Field field = GrpcBaseIT.class.getDeclaredField("port");
            field.setAccessible(true);
            field.setInt(test, port);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
        ConfigurationManager.getProxyConfig().setGrpcServerPort(port);
        test.blockingStub = test.createBlockingStub(test.createChannel(port));
        test.stub = test.createStub(test.createChannel(port));
    }
}
