"""Oberth: store."""
