"""Oberth: spark."""
