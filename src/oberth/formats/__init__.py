"""On-disk bytes and values, one format a module, without sockets, files, clocks or event loops."""
