"""The console: pages in a browser about a cluster, ours or Apache's.

An ASGI application over `oberth.client.admin`; it knows brokers by their answers only, never by
their insides. `docs/console.md` says what it shows and who may see it.
"""
