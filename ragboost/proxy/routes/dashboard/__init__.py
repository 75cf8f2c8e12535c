"""The page at `/dashboard`: what the proxy saves, now and over the last hour."""

from ragboost.proxy.routes.dashboard.routes import Dashboard

__all__ = ["Dashboard"]
