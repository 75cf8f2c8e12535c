"""The proxy as a Ray Serve deployment."""

from typing import Any

from ragboost.config import Settings
from ragboost.errors import import_extra


def deploy(settings: Settings | None = None) -> Any:
    """Return an application for `serve.run`: the whole proxy, streams included.

    It has one replica: several would each have an index and conversations of their own. Ray sets
    header limits, draining, host and port instead of the settings.

    Args:
        settings: None for the defaults.

    Raises:
        MissingExtraError: ray[serve] is not installed.
    """
    serve: Any = import_extra("ray.serve", extra="ray")

    def build() -> Any:
        from ragboost.proxy.app import create_app

        return create_app(settings)

    return serve.deployment(serve.ingress(build)(), name="ragboost", num_replicas=1).bind()
