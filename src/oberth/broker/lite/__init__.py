"""Lite topics of RocketMQ 5.5: light queues below a parent topic, and who is told of each."""
