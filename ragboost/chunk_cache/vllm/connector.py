"""vLLM's KV connector of chunk reuse, named in `--kv-transfer-config`. Translates vLLM's calls to
the scheduler's side and the worker's. Where reuse is impossible it warns once and does nothing."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from ragboost.chunk_cache.core.request import PARAMS_KEY, PromptReport, TokenOrigins
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.announcements import AnnouncementInbox
from ragboost.chunk_cache.http.reports import (
    ReportSender,
    remove_status,
    start_failure,
    write_status,
)
from ragboost.chunk_cache.vllm.catalogue import RankCatalogue
from ragboost.chunk_cache.vllm.compat import (
    check_salting,
    new_request,
    refusal,
    unfilled_blocks,
    withdrawal,
)
from ragboost.chunk_cache.vllm.data import RankHello, RankReport, StepWork, WorkerView
from ragboost.chunk_cache.vllm.scheduler import ChunkScheduler

logger = logging.getLogger(__name__)


@dataclass
class ChunkMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    work: StepWork = field(default_factory=StepWork)


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    report: RankReport

    def aggregate(self, other: "WorkerReport") -> "WorkerReport":
        return WorkerReport(self.report.merged(other.report))


@dataclass
class WorkerHello(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    hello: RankHello


class ChunkConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Chunk reuse, one object in the scheduler and one in the worker."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        device = str(vllm_config.device_config.device_type)
        self._num_ranks = int(vllm_config.parallel_config.tensor_parallel_size)
        self._settings = EngineChunkSettings.read(extra, device=device, num_workers=self._num_ranks)
        self.filler: Any = None  # the worker's side, a `BlockFiller`; None if reuse is off
        self.scheduler: ChunkScheduler | None = None  # the scheduler's side; None if reuse is off
        self.off_reason: str | None = None  # why reuse is off
        self._has_failed = False  # in the worker, at its start
        self._catalogue: RankCatalogue | None = None  # of workers in other processes
        self._cache_manager: Any = None
        self._reports = ReportSender()
        self._announced: AnnouncementInbox | None = None
        self._prefixes: dict[str, int] = {}  # cached tokens of each request, if reuse is off
        self._ended: ChunkScheduler | None = None  # once it has failed: fillings go on
        self._held_tokens = 0  # of the request that was matched last
        self._unfilled: dict[str, list[int]] = {}  # see `StepWork`
        try:
            self.off_reason = refusal(vllm_config, kv_cache_config)
        except Exception as error:  # vLLM's internals are not where they were
            self.off_reason = start_failure(error)
        if role == KVConnectorRole.SCHEDULER:
            self._join_worker()
        elif self.off_reason is not None:
            logger.warning("chunk reuse stays off: %s", self.off_reason)

    def start(self, make_filler: Callable[[Any, EngineChunkSettings], Any]) -> None:
        """Switch reuse on, if the filler can be made; in the worker once the cache is allocated."""
        if self.off_reason is not None:
            return
        try:
            self.filler = make_filler(self._vllm_config, self._settings)
        except Exception as error:  # the engine serves without reuse
            self._has_failed = True
            self._stay_off(error)

    def refuse(self, reason: str) -> None:
        """Keep reuse off, in the worker before `start`. Of several workers none reports it: other
        connectors would get that message too."""
        if self.off_reason is None:
            self.off_reason = reason
            logger.warning("chunk reuse stays off: %s", reason)

    def _join_worker(self) -> None:
        if self.off_reason is None and self._num_ranks > 1:
            return  # `set_xfer_handshake_metadata` does
        worker = find_connector()
        if worker is None or worker.filler is None:
            reason = self.off_reason if worker is None else worker.off_reason
            self.off_reason = reason or "worker_processes"
        else:
            self._start_scheduler(worker.filler)
        write_status(self._vllm_config.instance_id, self.off_reason)

    def _start_scheduler(self, worker: WorkerView) -> None:
        try:
            check_salting(new_request)
            self.scheduler = ChunkScheduler(worker, self._vllm_config, settings=self._settings)
            self.scheduler.cache_manager = self._cache_manager
            self._announced = AnnouncementInbox(
                self._vllm_config.instance_id, rank=0, library=lambda: worker.library
            )
        except Exception as error:
            self._stay_off(error)

    def _stay_off(self, error: Exception) -> None:
        self.off_reason = start_failure(error)
        logger.warning("chunk reuse stays off: %s", self.off_reason)

    # The scheduler's side.

    def set_xfer_handshake_metadata(self, metadata: dict[int, WorkerHello]) -> None:
        """Join workers in other processes. All are on, or off for the same reason."""
        if self._num_ranks == 1 or self.off_reason is not None:
            return
        hellos = [metadata[rank].hello for rank in sorted(metadata)]
        self.off_reason = next((hello.refusal for hello in hellos if hello.refusal), None)
        if len(hellos) != self._num_ranks:
            self.off_reason = "worker_processes"
        if self.off_reason is None:
            self._catalogue = RankCatalogue(
                hellos[0],
                size=self._num_ranks,
                block_size=int(self._vllm_config.cache_config.block_size),
                settings=self._settings,
            )
            self._start_scheduler(self._catalogue)
        write_status(self._vllm_config.instance_id, self.off_reason)

    def update_connector_output(self, connector_output: Any) -> None:
        message = connector_output.kv_connector_worker_meta
        with self._guarded() as scheduler:
            if self._catalogue is not None and scheduler is not None and message is not None:
                self._catalogue.take(message.report, is_unfinished=scheduler.is_tracking)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._cache_manager = kv_cache_manager
        if self.scheduler is not None:
            self.scheduler.cache_manager = kv_cache_manager

    @contextmanager
    def _guarded(self) -> Iterator[ChunkScheduler | None]:
        """Yield the scheduler's side. An error in it, such as of an internal that has moved,
        switches reuse off: raised in vLLM's own thread it would end the engine."""
        try:
            yield self.scheduler
        except Exception as error:
            assert self.scheduler is not None, "nothing else may fail"
            logger.exception("chunk reuse has failed")
            self._ended, self.scheduler = self.scheduler, None
            self._stay_off(error)
            write_status(self._vllm_config.instance_id, self.off_reason)

    def on_new_request(self, request: Any) -> None:
        with self._guarded() as scheduler:
            if scheduler is not None:
                scheduler.add(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        with self._guarded() as scheduler:
            if scheduler is not None:
                self._held_tokens = num_computed_tokens
                return scheduler.match(request, num_computed_tokens)
        if (request.kv_transfer_params or {}).get(PARAMS_KEY) is not None:
            self._prefixes[request.request_id] = num_computed_tokens
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        with self._guarded() as scheduler:
            if scheduler is not None:
                scheduler.allocated(request, num_external_tokens)
        if self.scheduler is None and num_external_tokens:  # of the match before it failed
            stop = self._held_tokens + num_external_tokens
            size = int(self._vllm_config.cache_config.block_size)
            self._unfilled[request.request_id] = unfilled_blocks(
                blocks, self._held_tokens, stop, block_size=size
            )

    def build_connector_meta(self, scheduler_output: Any) -> ChunkMetadata:
        with self._guarded() as scheduler:
            if scheduler is not None:
                return ChunkMetadata(scheduler.next_step(scheduler_output.num_scheduled_tokens))
        if self._ended is None:
            return ChunkMetadata()
        work = self._ended.last_work()
        work.unfilled, self._unfilled = self._unfilled, {}
        work.fills = [fill for fill in work.fills if fill.request_id not in work.unfilled]
        return ChunkMetadata(work)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        report = None
        with self._guarded():
            report = self._report(request)
        if report is None:
            return False, None
        entry = request.kv_transfer_params[PARAMS_KEY]
        self._reports.send(entry.get("reply_to") if isinstance(entry, dict) else None, report)
        return False, {PARAMS_KEY: report.fields}

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    def _report(self, request: Any) -> PromptReport | None:
        if self.scheduler is not None:
            return self.scheduler.finish(request)
        exact = self._prefixes.pop(request.request_id, None)
        if exact is None:
            return None
        origins = TokenOrigins(exact=exact, computed=int(request.num_prompt_tokens) - exact)
        return PromptReport(origins, (self.off_reason or "").partition(":")[0])

    def reset_cache(self) -> bool:
        """Forget all stored chunks and look at the weights again: vLLM asks for it with
        `reset_external`, after weights were changed in place."""
        with self._guarded() as scheduler:
            if scheduler is not None:
                scheduler.forget_chunks()
        return True

    def take_events(self) -> Iterable[Any]:
        """Withdraw approximate blocks, which vLLM has just announced like exact ones."""
        with self._guarded() as scheduler:
            if scheduler is not None:
                hashes, scheduler.withdrawn = scheduler.withdrawn, []
                return [withdrawal(block_hash) for block_hash in hashes]
        return ()

    # The worker's side.

    def get_handshake_metadata(self) -> WorkerHello | None:
        if self._num_ranks == 1:
            return None
        if self.filler is not None:
            return WorkerHello(self.filler.hello())
        return WorkerHello(RankHello(self.off_reason)) if self._has_failed else None

    def bind_connector_metadata(self, connector_metadata: ChunkMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self.filler is not None:  # before the pass: `start_load_kv` may come after it
            work = connector_metadata.work
            self.filler.note_pass(
                work.num_tokens, began=time.perf_counter(), is_sample=work.is_prefill
            )

    def build_connector_worker_meta(self) -> WorkerReport | None:
        if self._num_ranks == 1 or self.filler is None:
            return None
        report = self.filler.take_report()
        return None if report is None else WorkerReport(report)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.filler is not None:
            self.filler.fill_step(self._get_connector_metadata().work)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        done: set[str] = set()
        if self.filler is not None:
            self.filler.forget(finished_req_ids)
            done, self.filler.done_requests = self.filler.done_requests, done
        return None, done

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed: set[int] = set()
        if self.filler is not None:
            failed, self.filler.failed_blocks = self.filler.failed_blocks, failed
        return failed

    def wait_for_save(self) -> None:
        if self.filler is not None:
            self.filler.capture_step(self._get_connector_metadata().work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: all KV is there before the step."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: chunks are taken out after the step."""

    def shutdown(self) -> None:
        self._reports.close()
        if self._announced is not None:
            self._announced.close()
        if self._role == KVConnectorRole.SCHEDULER:
            remove_status(self._vllm_config.instance_id)
        if self.filler is not None:
            self.filler.close()


def find_connector() -> ChunkConnector | None:
    """Return this worker's connector. Among several of a `MultiConnector` it stays off: others keep
    KV under unsalted hashes, where exact requests would find it."""
    group = get_kv_transfer_group() if has_kv_transfer_group() else None
    for connector in getattr(group, "sub_connectors", [group]):
        if isinstance(connector, ChunkConnector):
            if connector is not group:
                connector.refuse("several_connectors")
            return connector
    return None
