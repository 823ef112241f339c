"""Benchmarks of the Spark source and sink, each a module with a ``main(argv)``."""
