"""Rivals as programs to measure against."""
