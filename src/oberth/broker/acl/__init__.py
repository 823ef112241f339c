"""Access control: who asks, what the request needs, and whether that was granted."""
