"""The FastAPI route of the proxy's own endpoints, which are typed and documented."""

from collections.abc import Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost.proxy.routes.schemas import ProxyErrorResponse


class TypedRoute(APIRoute):
    """A FastAPI route that also serves HEAD where it serves GET, as Starlette's routes do.

    The first line of the endpoint's docstring is the summary.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        tag: str,
        method: str = "GET",
        errors: tuple[int, ...] = (),
        wrap: Callable[[ASGIApp], ASGIApp] | None = None,
        **options: Any,
    ) -> None:
        summary, _, description = (endpoint.__doc__ or "").strip().partition("\n\n")
        responses: dict[int | str, dict[str, Any]]
        responses = {status: {"model": ProxyErrorResponse} for status in errors}
        super().__init__(
            path,
            endpoint,
            methods=[method],
            tags=[tag],
            summary=summary.rstrip("."),
            responses={**responses, **options.pop("responses", {})},
            **options,
        )
        self.description = " ".join(description.split())  # without the summary
        if wrap is not None:
            self.app = wrap(self.app)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        return super().matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
