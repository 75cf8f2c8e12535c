"""The SGLang plug-in (`sglang.srt.plugins`): a publisher named `ragboost` for cache events.

Chosen with `--kv-events-config '{"publisher": "ragboost"}'`; the proxy's address is its `endpoint`,
or stands in the environment, see `reporter_of`.
"""

import logging
from typing import Any

from ragboost.engine_hooks.reporter import reporter_of

logger = logging.getLogger(__name__)


def register() -> None:
    """Register the publisher with SGLang's factory; SGLang calls this in each process."""
    try:
        from sglang.srt.disaggregation.kv_events import EventPublisher, EventPublisherFactory
    except ImportError as error:
        logger.warning("RAGBoost's hook does not fit this SGLang: %s", error)
        return

    class Reporting(EventPublisher):  # type: ignore[misc]
        """Hands each batch to a reporter."""

        def __init__(self, attn_dp_rank: int = 0, endpoint: str = "", **_: Any) -> None:
            url = endpoint if endpoint.startswith(("http://", "https://")) else None
            self.reporter = reporter_of(attn_dp_rank, url=url)
            if self.reporter is None:
                logger.warning("the ragboost publisher has no http:// endpoint, reporting nothing")

        def publish(self, events: Any) -> None:
            if self.reporter is not None:
                self.reporter.put(events.events)

        def shutdown(self) -> None:
            if self.reporter is not None:
                self.reporter.close()

    try:
        EventPublisherFactory.register_publisher("ragboost", Reporting)
    except KeyError:  # loaded twice in this process
        logger.debug("the ragboost publisher is registered already")
