"""The page at `/dashboard`: what the proxy saves, now and over the last hour.

Changes nothing, and keeps no text of documents.
"""

from ragboost.proxy.routes.dashboard.routes import Dashboard

__all__ = ["Dashboard"]
