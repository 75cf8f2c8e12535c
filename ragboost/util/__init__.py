"""Small helpers without a room of their own: bounded maps, JSON lines, cache events."""
