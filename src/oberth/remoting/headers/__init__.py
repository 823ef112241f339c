"""Typed headers of requests and responses, one module per family, one table over all of them.

``base`` says how a header is declared and read; ``table.HEADERS`` which header a code has.
"""
