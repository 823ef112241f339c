"""Measurements: each a script that prints JSON and names its rival; see README.md."""
