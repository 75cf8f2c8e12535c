"""Many requests at once, many engines, many proxies, and their failures."""
