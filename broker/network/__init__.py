"""Listeners and connections: bytes in, bytes out, and what may wait in memory."""
