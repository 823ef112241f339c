"""Pipelines over whole stores: functions that spread their work over tasks, one module each.

The heavy work happens inside Python tasks, with kernels on mapped files; only summaries go through
the JVM. What a task does is an ordinary function of ordinary values, so it runs without Spark too
(`tasks.InProcess`).
"""
