"""Many requests at once, many engines, and their failures."""
