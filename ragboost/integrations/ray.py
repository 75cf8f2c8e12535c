"""Plan a Ray Data job so that rows with a shared prefix follow each other, and serve the proxy."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from ragboost.errors import ConfigError, MissingExtraError, RequestError, import_extra
from ragboost.proxy.sessions import store_class
from ragboost.types import Request

if TYPE_CHECKING:
    from ray.data import Dataset


def boosted(
    dataset: "Dataset",
    *,
    question: str = "question",
    documents: str = "documents",
    system: str | None = None,
    settings: Settings | None = None,
    num_blocks: int = 1,
    window: int | None = None,
) -> "Dataset":
    """Plan rows together and return them in release order, with the messages to send.

    A row has a question and documents, most relevant first: texts, or objects with the fields of
    `ragboost.Document`. Without `window`, all rows are planned in the driver's memory, and returned
    in `num_blocks`, one for each engine replica. With it, so many rows at a time are planned in
    Ray's tasks; an error of a row is then inside Ray's own. Rows keep their columns and get
    `messages`, for `ray.data.llm.build_processor`, and `request_index`, their position in `dataset`
    or window.
    """
    ray_data: Any = import_extra("ray.data", extra="ray")

    def plan(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        requests = [Request(row[question], tuple(map(_plain, row[documents]))) for row in rows]
        planned = Booster(settings).boost_batch(requests)
        return [
            {**rows[at], "messages": context.messages(system=system), "request_index": at}
            for at, context in zip(planned.order, planned.contexts, strict=True)
        ]

    if window is None:
        rows = plan(dataset.take_all())
        return ray_data.from_items(rows, override_num_blocks=min(num_blocks, max(len(rows), 1)))
    if window < 1:
        raise RequestError(f"window must be at least 1, got {window}", param="window")

    def plan_table(table: Any) -> Any:
        return type(table).from_pylist(plan(table.to_pylist()))

    return dataset.map_batches(plan_table, batch_size=window, batch_format="pyarrow")


def _plain(document: Any) -> Any:
    """Drop the None fields that a column of objects adds to rows without them."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if value is not None}


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
