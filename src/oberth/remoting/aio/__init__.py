"""Oberth: remoting/aio."""
