"""An hour of mixed traffic and faults."""
