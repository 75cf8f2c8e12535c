"""The settings of chunk reuse inside an engine: in vLLM `kv_connector_extra_config` of
`--kv-transfer-config`, in SGLang `--hicache-storage-backend-extra-config`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ragboost.chunk_cache.core.options import ReuseDefaults, ReuseOptions
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.eviction import make_eviction_policy
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO, POLICIES
from ragboost.chunk_cache.selection.calibration import Calibration
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.remote import check_address, join_remote
from ragboost.chunk_cache.store.tiered import TieredStore, split_memory
from ragboost.errors import ConfigError

_GIB = 1 << 30
_ON_ACCELERATORS: Mapping[str, Any] = MappingProxyType({"granularity": 16, "backend": "varlen"})
"""Defaults there: FlashAttention computes runs of tokens, and reads all keys for each run."""


@dataclass(frozen=True, slots=True)
class EngineChunkSettings:
    # `approx`: also requests that do not ask for it reuse chunks; `exact`: they do not
    reuse: str = "exact"
    # capacity of the store in host memory, with what waits there to be written elsewhere
    host_bytes: int = 4 * _GIB
    # secret with which `ragboost precompute --public` stores documents for all tenants; empty: none
    public_key: str = field(default="", repr=False)
    # what `ragboost precompute` leaves of a document behind its neighbours: `measures`, or `kv` as
    # well (FusionRAG eq. 10), which is reused rather than that computed alone
    prepared: str = "measures"
    accelerator_bytes: int = 0  # capacity of the store in the engine's device, before host memory
    directory: str = ""  # folder of the store's disk tier; empty for none
    # remote store that several engines may share, such as redis://HOST:6379 or
    # mooncake://HOST:50051; empty for none
    remote: str = field(default="", repr=False)  # it may hold a password
    disk_bytes: int = 64 * _GIB  # capacity of the disk tier
    # `faster`: prompts are filled where this takes less time than to compute them, as measured in
    # this engine (with one rank); `always`: wherever enough is stored
    fill: str = "faster"
    eviction: str = "heat"  # eviction policy of the store: heat or lru
    policy: str = DEFAULT_POLICY  # selection for requests that do not name one
    ratio: float = DEFAULT_RATIO
    calibration: str = ""  # file of `ragboost calibrate`, instead of `policy` and `ratio`
    granularity: int = 1  # tokens per block of the selection; on an accelerator 16
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
        types = {field.name: type(field.default) for field in fields(cls)}
        for name, value in values.items():
            if name not in types:
                raise ConfigError(f"unknown setting {name!r}; known are {', '.join(types)}")
            allowed = (int, float) if types[name] is float else types[name]
            if isinstance(value, bool) or not isinstance(value, allowed):
                raise ConfigError(f"`{name}` must be of type {types[name].__name__}, got {value!r}")
        settings = cls(**{**({} if device == "cpu" else _ON_ACCELERATORS), **values})
        known_words = {
            "reuse": ("exact", "approx"),
            "prepared": ("measures", "kv"),
            "fill": ("faster", "always"),
        }
        for name, known in known_words.items():
            if getattr(settings, name) not in known:
                value = getattr(settings, name)
                raise ConfigError(f"`{name}` must be {' or '.join(known)}, got {value!r}")
        if settings.policy not in POLICIES:
            raise ConfigError(
                f"`policy` must be one of {', '.join(POLICIES)}, got {settings.policy!r}"
            )
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
        if not 0.0 <= settings.ratio <= 1.0:
            raise ConfigError(f"`ratio` must be in [0, 1], got {settings.ratio}")
        for name in ("host_bytes", "disk_bytes", "granularity"):
            if getattr(settings, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(settings, name)}")
        if settings.accelerator_bytes < 0:
            raise ConfigError(
                f"`accelerator_bytes` must be at least 0, got {settings.accelerator_bytes}"
            )
        return settings

    def _calibrated(self, values: Mapping[str, Any]) -> "EngineChunkSettings":
        if beside := sorted({"policy", "ratio"} & set(values)):
            raise ConfigError(f"`calibration` decides `{beside[0]}`: set one of them only")
        chosen = Calibration.read(Path(self.calibration))
        return replace(self, policy=chosen.policy, ratio=chosen.ratio)

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
