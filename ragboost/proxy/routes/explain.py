"""`POST /ragboost/explain`: what the proxy sees in a request, and what it would send.

The request is that of a completion, body and API key, and reaches no backend.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.state import ProxyState
from ragboost.requests.explanation import Explainer

EXPLAIN_PATH = "/ragboost/explain"


def explain_route(state: ProxyState) -> Route:
    settings = state.settings
    explainer = Explainer(
        settings,
        formats=state.boosting.formats,
        tokens_per_byte=state.boosting.tenants.tokens_per_byte,
    )
    turn = asyncio.Lock()  # one at a time: completions need the threads

    async def explain(request: Request) -> Response:
        """Say what the proxy sees in the body of a completion, and what it would send.

        Sends nothing to a backend and changes nothing: no index, no conversation, nothing learnt.
        """
        headers = request.scope["headers"]
        team = state.keys.check(headers)
        exchange = ClientExchange.of(request, endpoint="explain")
        try:
            body = await state.bodies.read_text(exchange)
            async with turn:
                text = await asyncio.to_thread(
                    lambda: explainer.explain(body, headers, team=team).as_json().encode()
                )
        finally:
            state.bodies.release(exchange)
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})

    return Route(EXPLAIN_PATH, explain, methods=["POST"])
