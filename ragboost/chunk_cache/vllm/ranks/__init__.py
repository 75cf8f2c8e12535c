"""Chunk reuse in a model that several workers hold (tensor parallelism).

Every rank stores the KV of its own heads; the scheduler's side, in another process, lists what all
of them hold. `filler` is the worker's side, `catalogue` the scheduler's, `report` what the first
tells the second.
"""
