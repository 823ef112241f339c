package org.apache.rocketmq.test.grpc.v2;

import apache.rocketmq.v2.MessagingServiceGrpc;
import java.io.IOException;
import java.lang.reflect.Field;
import java.security.cert.CertificateException;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.test.base.RemoteBroker;

/** The tests of ClusterGrpcIT through {@code oberth proxy} before our three brokers. */
public class OberthProxyGrpcIT extends ClusterGrpcIT {
    private static int proxyPort;

    @Override
    protected void setUpServer(MessagingServiceGrpc.MessagingServiceImplBase service, int port, boolean enableInterceptor)
        throws IOException, CertificateException {
        if (proxyPort == 0) {
            proxyPort = RemoteBroker.startProxy(NAMESRV_ADDR);
        }
        BrokerGrpcIT.connect(this, proxyPort);
    }
}
