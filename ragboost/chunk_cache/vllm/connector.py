"""vLLM's KV connector of chunk reuse, named in `--kv-transfer-config`.

`{"kv_connector": "ChunkConnector", "kv_role": "kv_both",
"kv_connector_module_path": "ragboost.chunk_cache.vllm.connector"}`. Translates vLLM's calls to
the planner (scheduler) and the filler (worker). Where reuse is impossible it does nothing, after
one warning with the reason.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
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

from ragboost.chunk_cache.core.request import PARAMS_KEY
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.http.replies import ReplySender
from ragboost.chunk_cache.http.status import remove_status, start_failure, write_status
from ragboost.chunk_cache.model.ranks import together
from ragboost.chunk_cache.vllm.planner import ChunkPlanner
from ragboost.chunk_cache.vllm.ranks.catalogue import RankCatalogue
from ragboost.chunk_cache.vllm.ranks.report import RankHello, RankReport
from ragboost.chunk_cache.vllm.work import StepWork, WorkerView

logger = logging.getLogger(__name__)


@dataclass
class ChunkMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    """The work of one step."""

    work: StepWork = field(default_factory=StepWork)


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Report of workers in other processes on one step."""

    report: RankReport

    def aggregate(self, other: "WorkerReport") -> "WorkerReport":
        return WorkerReport(self.report.merged(other.report))


@dataclass
class WorkerHello(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """A worker in another process, once it has checked itself."""

    hello: RankHello


class ChunkConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Chunk reuse, one object in the scheduler and one in the worker.

    Attributes:
        filler: the worker's side; None if reuse is off.
        planner: the scheduler's side; None if reuse is off.
        off_reason: why reuse is off; None if it is on.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._settings = EngineChunkSettings.read(extra)
        self.filler: Any = None  # a ChunkFiller, or a RankFiller
        self.planner: ChunkPlanner | None = None
        self.off_reason = _find_refusal(vllm_config, kv_cache_config)
        self._has_failed = False  # in the worker, at its start
        self._num_ranks = int(vllm_config.parallel_config.tensor_parallel_size)
        self._catalogue: RankCatalogue | None = None  # of workers in other processes
        self._blocks: Any = None
        self._replies = ReplySender()
        self._held: dict[str, int] = {}  # tokens that vLLM holds of each request, if reuse is off
        if role == KVConnectorRole.SCHEDULER:
            self._join_worker()
        elif self.off_reason is not None:
            logger.warning("chunk reuse stays off: %s", self.off_reason)

    def start(self, runner: Any) -> None:
        """Switch reuse on, if the model passes the self-test. Called in the worker once the cache
        is allocated."""
        if self.off_reason is not None:
            return
        try:
            from ragboost.chunk_cache.vllm.compat import find_ranks
            from ragboost.chunk_cache.vllm.filler import ChunkFiller
            from ragboost.chunk_cache.vllm.ranks.filler import RankFiller
            from ragboost.chunk_cache.vllm.self_test import self_test

            ranks = find_ranks(self._vllm_config)
            kind = ChunkFiller if ranks.size == 1 else RankFiller
            make = partial(kind, runner, self._vllm_config, ranks=ranks, settings=self._settings)
            filler = together(ranks, make)
            result = together(ranks, partial(self_test, filler, runner, self._vllm_config))
        except Exception as error:  # the engine serves without reuse
            self.off_reason, self._has_failed = start_failure(error), True
            logger.warning("chunk reuse stays off: %s", self.off_reason)
            return
        self.filler = filler
        logger.info("chunk reuse is on: %s, can resume: %s", result, filler.model.can_resume)

    def _join_worker(self) -> None:
        if self.off_reason is None and self._num_ranks > 1:
            return  # `set_xfer_handshake_metadata` does
        worker = get_kv_transfer_group() if has_kv_transfer_group() else None
        filler = getattr(worker, "filler", None)
        if filler is None:
            self.off_reason = getattr(worker, "off_reason", self.off_reason) or "worker_processes"
        else:
            self._start_planner(filler)
        write_status(self._vllm_config.instance_id, self.off_reason)

    def _start_planner(self, worker: WorkerView) -> None:
        try:
            self.planner = ChunkPlanner(worker, self._vllm_config, settings=self._settings)
            self.planner.blocks = self._blocks
        except Exception as error:
            self.off_reason = start_failure(error)
            logger.warning("chunk reuse stays off: %s", self.off_reason)

    # The scheduler's side.

    def set_xfer_handshake_metadata(self, metadata: dict[int, WorkerHello]) -> None:
        """Join workers in other processes. All are on, or off for the same reason."""
        if self._num_ranks == 1 or self.off_reason is not None:
            return
        hellos = [metadata[rank].hello for rank in sorted(metadata)]
        self.off_reason = next((each.refusal for each in hellos if each.refusal), None)
        if len(hellos) != self._num_ranks:
            self.off_reason = "worker_processes"
        if self.off_reason is None:
            self._catalogue = RankCatalogue(
                hellos[0],
                size=self._num_ranks,
                block_size=int(self._vllm_config.cache_config.block_size),
                settings=self._settings,
            )
            self._start_planner(self._catalogue)
        write_status(self._vllm_config.instance_id, self.off_reason)

    def update_connector_output(self, connector_output: Any) -> None:
        told = connector_output.kv_connector_worker_meta
        if self._catalogue is not None and self.planner is not None and told is not None:
            self._catalogue.take(told.report, is_unfinished=self.planner.is_tracking)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._blocks = kv_cache_manager
        if self.planner is not None:
            self.planner.blocks = kv_cache_manager

    def on_new_request(self, request: Any) -> None:
        if self.planner is not None:
            self.planner.add(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self.planner is None:
            if (request.kv_transfer_params or {}).get(PARAMS_KEY) is not None:
                self._held[request.request_id] = num_computed_tokens
            return 0, False
        num_filled = self.planner.match(request, num_computed_tokens)
        return num_filled, bool(num_filled) and self.planner.is_paced(request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self.planner is not None:
            self.planner.allocated(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> ChunkMetadata:
        if self.planner is None:
            return ChunkMetadata()
        return ChunkMetadata(self.planner.next_step(scheduler_output.num_scheduled_tokens))

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        report = self._report(request)
        if report is not None:
            asked = (request.kv_transfer_params or {}).get(PARAMS_KEY)
            reply_to = asked.get("reply_to") if isinstance(asked, dict) else None
            self._replies.send(reply_to, report[PARAMS_KEY])
        return False, report

    def _report(self, request: Any) -> dict[str, Any] | None:
        if self.planner is not None:
            return self.planner.finish(request)
        held = self._held.pop(request.request_id, None)
        if held is None:
            return None
        told = {"exact": held, "reused": 0, "recomputed": 0}
        computed = int(request.num_prompt_tokens) - held
        return {PARAMS_KEY: {**told, "computed": computed, "reason": self._label}}

    def reset_cache(self) -> bool:
        """Forget all stored chunks, also those on disk, and look at the weights again: vLLM asks
        for it with `reset_external`, after weights were changed in place."""
        if self.planner is not None:
            self.planner.forget_chunks()
        return True

    @property
    def _label(self) -> str:
        """The reason in one word, as requests report it."""
        return (self.off_reason or "").partition(":")[0]

    def take_events(self) -> Iterable[Any]:
        """Withdraw approximate blocks, which vLLM has just announced like exact ones."""
        if self.planner is None or not self.planner.withdrawn:
            return ()
        from ragboost.chunk_cache.vllm.compat import withdrawal

        hashes, self.planner.withdrawn = self.planner.withdrawn, []
        return [withdrawal(one) for one in hashes]

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids)

    # The worker's side.

    def get_handshake_metadata(self) -> WorkerHello | None:
        if self._num_ranks == 1:
            return None
        if self.filler is not None:
            return WorkerHello(self.filler.hello())
        return WorkerHello(RankHello(self.off_reason)) if self._has_failed else None

    def build_connector_worker_meta(self) -> WorkerReport | None:
        if self._num_ranks == 1 or self.filler is None:
            return None
        report = self.filler.take_report()
        return None if report is None else WorkerReport(report)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.filler is not None:
            self.filler.begin(self._get_connector_metadata().work)

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
            for capture in self._get_connector_metadata().work.captures:
                self.filler.capture(capture)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: all KV is there before the step."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: chunks are taken out after the step."""

    def shutdown(self) -> None:
        self._replies.close()
        if self._role == KVConnectorRole.SCHEDULER:
            remove_status(self._vllm_config.instance_id)
        if self.filler is not None:
            self.filler.close()


def _find_refusal(config: Any, kv_cache_config: Any) -> str | None:
    """Return why reuse is impossible, also if vLLM's internals are not where they were."""
    try:
        from ragboost.chunk_cache.vllm.compat import refusal

        return refusal(config, kv_cache_config)
    except Exception as error:
        return start_failure(error)
