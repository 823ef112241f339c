"""Oberth: remoting/headers."""
