"""The vLLM plug-in (`vllm.general_plugins`): report cache events, if a proxy is named."""

import logging
import os
from typing import Any

from ragboost.engine_hooks.reporter import URL_VARIABLE, Reporter, make_reporter

logger = logging.getLogger(__name__)


def register() -> None:
    """Make vLLM record cache events and pass them to a reporter; called by vLLM."""
    if not os.environ.get(URL_VARIABLE):
        return
    try:
        from vllm.distributed.kv_events import EventPublisher, EventPublisherFactory
        from vllm.v1.core.kv_cache_manager import KVCacheManager

        create, init = EventPublisherFactory.create, KVCacheManager.__init__
    except (ImportError, AttributeError) as error:
        logger.warning("RAGBoost's plug-in does not support this vLLM version: %s", error)
        return

    class ReportingPublisher(EventPublisher):  # type: ignore[misc]
        """Report each batch, then publish it with the configured publisher."""

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
        publisher, reporter = create(config, data_parallel_rank), make_reporter(data_parallel_rank)
        return publisher if reporter is None else ReportingPublisher(publisher, reporter)

    def init_recording(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "enable_kv_cache_events": True})

    EventPublisherFactory.create = create_reporting
    KVCacheManager.__init__ = init_recording
