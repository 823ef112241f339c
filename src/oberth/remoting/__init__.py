"""The remoting protocol: ``command`` and ``connection`` without a socket, ``aio`` with one.

``code`` has the numbers, ``headers`` the typed header fields, ``bodies`` the JSON bodies.
"""
