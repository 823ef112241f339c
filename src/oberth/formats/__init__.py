"""Oberth: formats."""
