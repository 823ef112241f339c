"""The name under which Spark finds ``format("rocketmq")``.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its
``DefaultSource``; this happens in every worker too, so nothing heavy is imported here.
"""

from oberth.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
