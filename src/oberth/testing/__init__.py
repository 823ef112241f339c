"""Oberth: testing."""
