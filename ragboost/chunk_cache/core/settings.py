"""The settings of chunk reuse inside an engine: in vLLM `kv_connector_extra_config` of
`--kv-transfer-config`, in SGLang `--hicache-storage-backend-extra-config`."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from pydantic import Field

from ragboost.chunk_cache.core.options import PolicyName, ReuseDefaults, ReuseOptions
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.eviction import make_eviction_policy
from ragboost.chunk_cache.fields import Fields, Ratio, read_fields
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO
from ragboost.chunk_cache.selection.calibration import Calibration
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.remote import check_address, join_remote
from ragboost.chunk_cache.store.tiered import TieredStore, split_memory
from ragboost.errors import ConfigError, RequestError

_GIB = 1 << 30
_ON_ACCELERATORS: Mapping[str, Any] = MappingProxyType({"granularity": 16, "backend": "varlen"})
"""Defaults there: FlashAttention computes runs of tokens, and reads all keys for each run."""


class EngineChunkSettings(Fields):
    # `approx`: also requests that do not ask for it reuse chunks; `exact`: they do not
    reuse: Literal["exact", "approx"] = "exact"
    # capacity of the store in host memory, with what waits there to be written elsewhere
    host_bytes: int = Field(4 * _GIB, ge=1)
    # secret with which `ragboost precompute --public` stores documents for all tenants; empty: none
    public_key: str = Field("", repr=False)
    # what `ragboost precompute` leaves of a document behind its neighbours: `measures`, or `kv` as
    # well (FusionRAG eq. 10), which is reused rather than that computed alone
    prepared: Literal["measures", "kv"] = "measures"
    # capacity of the store in the engine's device, before host memory
    accelerator_bytes: int = Field(0, ge=0)
    directory: str = ""  # folder of the store's disk tier; empty for none
    # remote store that several engines may share, such as redis://HOST:6379 or
    # mooncake://HOST:50051; empty for none
    remote: str = Field("", repr=False)  # it may hold a password
    disk_bytes: int = Field(64 * _GIB, ge=1)  # capacity of the disk tier
    # `faster`: prompts are filled where this takes less time than to compute them, as measured in
    # this engine (with one rank); `always`: wherever enough is stored
    fill: Literal["faster", "always"] = "faster"
    eviction: str = "heat"  # eviction policy of the store: heat or lru
    policy: PolicyName = DEFAULT_POLICY  # selection for requests that do not name one
    ratio: Ratio = DEFAULT_RATIO
    calibration: str = ""  # file of `ragboost calibrate`, instead of `policy` and `ratio`
    granularity: int = Field(1, ge=1)  # tokens per block of the selection; on an accelerator 16
    # maximum tokens that reuse computes in one step of the engine, beside the scheduler's own; 0:
    # as many as the scheduler's. A prompt that needs more is filled over several steps
    step_tokens: int = 0
    # attention backend of the recomputation, see `BACKENDS`; on an accelerator `varlen`
    backend: str = "tiled"

    @classmethod
    def read(
        cls, values: Mapping[str, Any], *, device: str = "cpu", num_workers: int = 1
    ) -> "EngineChunkSettings":
        """Return checked settings; the engine's device decides some defaults."""
        defaults = {} if device == "cpu" else _ON_ACCELERATORS
        try:
            settings = read_fields(cls, {**defaults, **values})
        except RequestError as error:
            raise ConfigError(str(error)) from None
        if settings.calibration:
            settings = settings._calibrated(values)
        if make_eviction_policy(settings.eviction).sees_queue:
            raise ConfigError(
                f"`eviction` {settings.eviction!r} ranks by the requests that wait, which an "
                "engine's store does not see: use heat or lru"
            )
        if settings.remote:
            check_address(settings.remote)
        if num_workers > 1 and (settings.public_key or settings.prepared == "kv"):
            name = "public_key" if settings.public_key else "prepared"
            raise ConfigError(f"`{name}` needs one worker of the model, not {num_workers}")
        return settings

    def _calibrated(self, values: Mapping[str, Any]) -> "EngineChunkSettings":
        if beside := sorted({"policy", "ratio"} & set(values)):
            raise ConfigError(f"`calibration` decides `{beside[0]}`: set one of them only")
        chosen = Calibration.read(Path(self.calibration))
        return self.model_copy(update={"policy": chosen.policy, "ratio": chosen.ratio})

    def check_model(self, model: ReusableModel) -> None:
        """Raise `ConfigError` if the calibration was made for another model."""
        if self.calibration:
            Calibration.read(Path(self.calibration)).check(model)

    @property
    def has_more_than_memory(self) -> bool:
        return bool(self.directory or self.remote)

    @property
    def defaults(self) -> EngineChunkRequest:
        """Options of requests that leave them out."""
        return EngineChunkRequest(
            policy=self.policy, ratio=self.ratio, granularity=self.granularity
        )

    def reuse_defaults(self, *, refusal: str | None) -> ReuseDefaults:
        return ReuseDefaults(
            is_approx=self.reuse == "approx",
            options=ReuseOptions(self.policy, self.ratio),
            refusal=refusal,
        )

    def make_store(self, device: torch.device | str = "cpu") -> TieredStore:
        """Create the store; what it has on disk and in the remote store outlives the engine."""
        disk = None
        if self.directory:
            disk = DiskTier(Path(self.directory), capacity_bytes=self.disk_bytes)
        remote = join_remote(self.remote)
        return TieredStore(
            **split_memory(self.host_bytes, disk, remote),
            disk=disk,
            remote=remote,
            accelerator_bytes=self.accelerator_bytes,
            device=device if self.accelerator_bytes else "cpu",
            waits=False,
            make_policy=lambda: make_eviction_policy(self.eviction),
        )
