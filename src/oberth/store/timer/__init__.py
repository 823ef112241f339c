"""Timed messages: the wheel, the log of what is in it, and who moves messages through both."""
