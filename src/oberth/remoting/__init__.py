"""Oberth: remoting."""
