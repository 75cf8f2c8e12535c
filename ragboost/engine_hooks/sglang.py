"""The SGLang plug-in (`sglang.srt.plugins`): a publisher of cache events named `ragboost`, enabled
with `--kv-events-config '{"publisher": "ragboost"}'`. Its `endpoint` is the proxy's URL; without
one the environment names it, see `make_reporter`."""

import logging
from typing import Any

from ragboost.engine_hooks.reporter import make_reporter

logger = logging.getLogger(__name__)


def register() -> None:
    try:
        from sglang.srt.disaggregation.kv_events import EventPublisher, EventPublisherFactory
    except ImportError as error:
        logger.warning("RAGBoost's plug-in does not support this SGLang version: %s", error)
        return

    class RagBoostPublisher(EventPublisher):  # type: ignore[misc]
        def __init__(self, attn_dp_rank: int = 0, endpoint: str = "", **_: Any) -> None:
            url = endpoint if endpoint.startswith(("http://", "https://")) else None
            self.reporter = make_reporter(attn_dp_rank, url=url)
            if self.reporter is None:
                logger.warning("the ragboost publisher has no http:// endpoint, no reports")

        def publish(self, events: Any) -> None:
            if self.reporter is not None:
                self.reporter.put(events.events)

        def shutdown(self) -> None:
            if self.reporter is not None:
                self.reporter.close()

    try:
        EventPublisherFactory.register_publisher("ragboost", RagBoostPublisher)
    except KeyError:  # loaded twice in this process
        logger.debug("the ragboost publisher is already registered")
