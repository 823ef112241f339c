"""Oberth."""
