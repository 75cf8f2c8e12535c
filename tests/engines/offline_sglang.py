"""A random model in an offline SGLang with chunk reuse. Runs in SGLang's environment."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import psutil
import sglang
import torch
import zmq
from transformers import LlamaForCausalLM

from ragboost.chunk_cache.http.reports import inbox_address
from ragboost.chunk_cache.sglang.flags import BACKEND
from tests.engines.offline import OfflineEngine
from tests.engines.random_model import make_model


class Reports:
    """Receives the engine's reports, as its HTTP front does."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ragboost-"))
        self._socket: Any = zmq.Context.instance().socket(zmq.PULL)
        self._socket.bind(inbox_address(self._folder))
        self._next = 0
        self._early: dict[int, dict[str, Any]] = {}

    def address(self) -> list[Any]:
        """Return where the report of a new request is to be sent."""
        self._next += 1
        return [self._folder.name, self._next]

    def take(self, number: int) -> dict[str, Any]:
        """Wait for the report of a request."""
        while number not in self._early:
            if not self._socket.poll(60_000):
                raise RuntimeError(f"the engine has not reported request {number}")
            request_id, report = msgspec.msgpack.decode(self._socket.recv())
            self._early[request_id] = report
        return self._early.pop(number)

    def close(self) -> None:
        self._socket.close(0)
        shutil.rmtree(self._folder, ignore_errors=True)


class ReuseSGLang(OfflineEngine):
    """SGLang with chunk reuse, for a random model of some sizes, or a trained one in a folder.

    The KV pool holds `tokens`; `settings` are of chunk reuse, `options` arguments of
    `sglang.Engine`.
    """

    def __init__(
        self,
        model: dict[str, Any] | Path,
        dtype: torch.dtype = torch.float32,
        *,
        page_size: int = 1,
        tokens: int = 9600,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        torch.set_num_threads(1)
        self._folder = tempfile.mkdtemp()
        self.reports = Reports()
        if isinstance(model, Path):
            self.reference = LlamaForCausalLM.from_pretrained(model, dtype=dtype).eval()
        else:
            self.reference = make_model(Path(self._folder), model, dtype=dtype)
        self.engine = sglang.Engine(
            model_path=str(model) if isinstance(model, Path) else self._folder,
            dtype=str(dtype).removeprefix("torch."),
            skip_tokenizer_init=True,
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            grammar_backend="none",
            disable_cuda_graph=True,
            mem_fraction_static=0.3,
            page_size=page_size,
            max_total_tokens=tokens,
            max_running_requests=8,
            radix_cache_backend=BACKEND,
            hicache_storage_backend_extra_config=json.dumps({"fill": "always", **(settings or {})}),
            **{"log_level": "error", "disable_overlap_schedule": True, **options},
        )

    def stop(self) -> None:
        self.engine.shutdown()
        self.reports.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def sampling(
        self, positions: Any = None, *, max_tokens: int = 1, **options: Any
    ) -> dict[str, Any]:
        """Return parameters of a request."""
        sampling: dict[str, Any] = {
            "max_new_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if positions is not None:
            entry = {"version": 1, "chunks": positions, **options}
            sampling["custom_params"] = {"ragboost": json.dumps(entry)}
        return sampling

    def run(self, tokens: list[int], positions: Any = None, **options: Any) -> dict[str, Any]:
        """Run one request; return SGLang's output, with the engine's report."""
        reply_to = self.reports.address() if positions is not None else None
        if reply_to is not None:
            options["reply_to"] = reply_to
        output: dict[str, Any] = self.engine.generate(
            input_ids=tokens, sampling_params=self.sampling(positions, **options)
        )
        output["report"] = None if reply_to is None else self.reports.take(reply_to[1])
        return output

    def logprobs(self, tokens: list[int], positions: Any = None, **options: Any) -> torch.Tensor:
        output: dict[str, Any] = self.engine.generate(
            input_ids=tokens,
            sampling_params=self.sampling(positions, **options),
            return_logprob=True,
            top_logprobs_num=self.vocabulary,
        )
        found = torch.full((self.vocabulary,), float("nan"))
        for logprob, token, _ in output["meta_info"]["output_top_logprobs"][0]:
            found[token] = logprob
        return found

    def flush(self) -> None:
        """Empty the prefix cache, once the engine is idle."""
        flushing = self.engine.tokenizer_manager.flush_cache(timeout_s=60)
        result = self.engine.loop.run_until_complete(flushing)
        if not result.success:
            raise RuntimeError(f"the prefix cache was not emptied: {result.message}")

    def clock(self) -> float:
        """Return the CPU seconds that all of SGLang's processes have used."""
        times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        return float(sum(one.user + one.system for one in times))

    def report(self, output: Any) -> dict[str, Any]:
        report: dict[str, Any] = output["report"]
        return report

    def answer(self, output: Any) -> list[int]:
        return list(output["output_ids"])
