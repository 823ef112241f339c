"""Oberth: broker/processors."""
