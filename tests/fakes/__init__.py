"""Fake backend for tests, which is a real HTTP server: `FakeEngine`."""

from tests.fakes.engine import FakeEngine, Misbehaviour, Received

__all__ = ["FakeEngine", "Misbehaviour", "Received"]
