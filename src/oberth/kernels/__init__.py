"""Oberth: kernels."""
