"""Oberth: client."""
