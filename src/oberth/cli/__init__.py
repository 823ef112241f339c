"""Oberth: cli."""
