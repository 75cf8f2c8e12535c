"""The proxy as a Ray Serve deployment."""

from typing import Any

from ragboost.config import Settings
from ragboost.errors import import_extra


def deploy(settings: Settings | None = None) -> Any:
    """Make an application for `serve.run`: the whole proxy, streams included.

    One replica, and no more: each would have an index and conversations of its own. What limits
    `ragboost serve` by itself (header sizes, draining) is Ray's affair here.

    Args:
        settings: None: the defaults. `proxy.host` and `proxy.port` are Ray's affair, too.

    Raises:
        MissingExtraError: ray[serve] is not installed.
    """
    serve: Any = import_extra("ray.serve", extra="ray")

    def build() -> Any:
        from ragboost.proxy.app import create_app

        return create_app(settings)

    return serve.deployment(serve.ingress(build)(), name="ragboost", num_replicas=1).bind()
