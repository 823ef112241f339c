"""Oberth: broker."""
