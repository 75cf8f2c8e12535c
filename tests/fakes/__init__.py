"""Stand-ins that are real servers: `FakeEngine`."""

from tests.fakes.engine import FakeEngine, Misbehaviour, Received

__all__ = ["FakeEngine", "Misbehaviour", "Received"]
