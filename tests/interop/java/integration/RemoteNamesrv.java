package org.apache.rocketmq.test.base;

import java.util.Map;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/** What the tests ask of a name server, asked of one in another process. */
public final class RemoteNamesrv {
    private final String address;
    private final NettyServerConfig server = new NettyServerConfig();
    private final NamesrvConfig config = new NamesrvConfig() {
        @Override
        public void setDeleteTopicWithBrokerRegistration(boolean on) {
            RemoteBroker.ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, Map.of(),
                ("deleteTopicWithBrokerRegistration=" + on).getBytes());
        }
    };

    RemoteNamesrv(int port) {
        address = "127.0.0.1:" + port;
        server.setListenPort(port);
    }

    public NettyServerConfig getNettyServerConfig() {
        return server;
    }

    public NamesrvConfig getNamesrvConfig() {
        return config;
    }
}
