"""The vLLM plug-in (`vllm.general_plugins`): reports cache events without a ZeroMQ port.

Does nothing unless the environment names the proxy, see `reporter_of`.
"""

import logging
import os
from typing import Any

from ragboost.engine_hooks.reporter import URL_VARIABLE, Reporter, reporter_of

logger = logging.getLogger(__name__)


def register() -> None:
    """Let vLLM record its cache events and hand them to a reporter too; vLLM calls this."""
    if not os.environ.get(URL_VARIABLE):
        return
    try:
        from vllm.distributed.kv_events import EventPublisher, EventPublisherFactory
        from vllm.v1.core.kv_cache_manager import KVCacheManager

        create, init = EventPublisherFactory.create, KVCacheManager.__init__
    except (ImportError, AttributeError) as error:
        logger.warning("RAGBoost's hook does not fit this vLLM, cache events stay off: %s", error)
        return

    class Reporting(EventPublisher):  # type: ignore[misc]
        """Reports each batch, then does what the configured publisher does."""

        def __init__(self, publisher: Any, reporter: Reporter) -> None:
            self.publisher, self.reporter = publisher, reporter

        def publish(self, events: Any) -> None:
            self.reporter.put(events.events)
            self.publisher.publish(events)

        def shutdown(self) -> None:
            self.publisher.shutdown()

        def get_publisher_config(self) -> Any:
            return self.publisher.get_publisher_config()

    def create_reporting(config: Any, data_parallel_rank: int = 0) -> Any:
        publisher, reporter = create(config, data_parallel_rank), reporter_of(data_parallel_rank)
        return publisher if reporter is None else Reporting(publisher, reporter)

    def init_recording(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "enable_kv_cache_events": True})

    EventPublisherFactory.create = create_reporting
    KVCacheManager.__init__ = init_recording
