"""A FakeEngine and the proxy in front of it, both on real sockets."""

from tests.proxy.conftest import engine, proxy

__all__ = ["engine", "proxy"]
