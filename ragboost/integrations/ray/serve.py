"""The proxy as a Ray Serve deployment."""

from typing import Any

from ragboost.config import Settings
from ragboost.errors import ConfigError, MissingExtraError, import_extra
from ragboost.proxy.sessions import store_class

_ROUTER = "ray.serve.experimental.consistent_hash_router"


def deploy(settings: Settings | None = None, *, num_replicas: int = 1) -> Any:
    """Return an application for `serve.run`: the whole proxy, streams included.

    Several replicas have an index each, and a conversation stays with one of them if its requests
    name it in the header `x-session-id`. They need `session.store = "redis"`, or `"sqlite"` on one
    machine. Ray sets header limits, draining, host and port instead of the settings.
    """
    serve: Any = import_extra("ray.serve", extra="ray")
    options: dict[str, Any] = {}
    if num_replicas != 1:
        options["request_router_config"] = _sticky(settings or Settings(), num_replicas)

    def build() -> Any:
        from ragboost.proxy.app import create_app

        return create_app(settings)

    ingress = serve.ingress(build)()
    return serve.deployment(ingress, name="ragboost", num_replicas=num_replicas, **options).bind()


def _sticky(settings: Settings, num_replicas: int) -> Any:
    if num_replicas < 1:
        raise ConfigError(f"num_replicas must be at least 1, got {num_replicas}")
    if not store_class(settings.session).is_shared:
        raise ConfigError(
            f'num_replicas = {num_replicas} needs session.store = "redis", so that replicas share '
            f'chat sessions; got "{settings.session.store}"'
        )
    try:
        import_extra(_ROUTER, extra="ray")
    except MissingExtraError:
        raise ConfigError(
            f"several replicas need {_ROUTER}, which this Ray lacks: pip install -U 'ray[serve]'"
        ) from None
    config: Any = import_extra("ray.serve.config", extra="ray")
    return config.RequestRouterConfig(request_router_class=f"{_ROUTER}.ConsistentHashRouter")
