"""JSON bodies of requests and responses, one module per family; ``base`` says how they are read.

What a broker also keeps in files (topics, groups, offsets) is in ``oberth.formats`` and goes over
the wire in the same shape: ``TopicConfig.decode(body)``, ``config.encode(pretty=False)``.
"""
