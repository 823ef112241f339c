"""Oberth: namesrv."""
