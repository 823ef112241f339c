"""RocketMQ 5's gRPC protocol, served by the broker's own process or before other brokers."""
