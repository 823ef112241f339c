"""The name server: ``route_table`` knows who serves what, ``name_server`` puts it on a socket."""
