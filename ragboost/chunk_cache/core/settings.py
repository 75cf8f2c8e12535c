"""The settings of chunk reuse inside an engine: in vLLM `kv_connector_extra_config` of
`--kv-transfer-config`, in SGLang `--hicache-storage-backend-extra-config`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from ragboost.chunk_cache.core.request import (
    EngineChunkRequest,
    PolicyName,
    ReuseDefaults,
    ReuseOptions,
)
from ragboost.chunk_cache.fields import Fields, Ratio, read_fields
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.attention.varlen import VarlenAttention
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO
from ragboost.chunk_cache.selection.calibration import Calibration
from ragboost.chunk_cache.store.background import WRITE_BEHIND_BYTES
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.remote import check_address, join_remote
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ConfigError, RequestError

_GIB = 1 << 30


class EngineChunkSettings(Fields):
    reuse: Literal["exact", "approx"] = Field(
        "exact", description="Of requests that do not say: computed exactly, or reusing chunks."
    )
    policy: PolicyName = Field(
        DEFAULT_POLICY,
        description="Selects the reused tokens to recompute, unless a request names a policy.",
    )
    ratio: Ratio = Field(
        DEFAULT_RATIO,
        description="Share of reused tokens to recompute, unless a request gives one; 1 is a full "
        "prefill. Raise it for accuracy, lower it for speed.",
    )
    calibration: str = Field(
        "", description="File of `ragboost calibrate`, instead of `policy` and `ratio`."
    )
    host_bytes: int = Field(
        4 * _GIB,
        ge=1,
        description="Host memory for stored KV, with what waits there to be written elsewhere.",
    )
    directory: str = Field(
        "",
        description="Folder of the disk tier, kept across restarts; several engines may share it.",
    )
    disk_bytes: int = Field(64 * _GIB, ge=1, description="Capacity of the disk tier.")
    remote: str = Field(
        "",
        repr=False,  # it may hold a password
        description="Store that several engines may share: redis://[[USER]:PASSWORD@]HOST:PORT or "
        "mooncake://HOST:PORT.",
    )
    public_key: str = Field(
        "",
        repr=False,
        description="Secret with which `ragboost precompute` stores documents for all tenants.",
    )
    fill: Literal["faster", "always"] = Field(
        "faster",
        description="faster: a prompt is filled where that takes less time than to compute it, as "
        "measured in this engine (with one rank); always: wherever enough is stored.",
    )
    step_tokens: int = Field(
        0,
        description="Most tokens that reuse computes in one step, beside the scheduler's own; "
        "longer prompts are filled over several. 0: as many as the scheduler.",
    )
    _is_on_accelerator: bool = PrivateAttr(False)

    @classmethod
    def read(
        cls, values: Mapping[str, Any], *, device: str = "cpu", num_workers: int = 1
    ) -> "EngineChunkSettings":
        """Return checked settings; the engine's device decides how tokens are recomputed."""
        try:
            settings = read_fields(cls, values)
        except RequestError as error:
            raise ConfigError(str(error)) from None
        if settings.calibration:
            settings = settings._calibrated(values)
        settings._is_on_accelerator = device != "cpu"
        if settings.remote:
            check_address(settings.remote)
        if num_workers > 1 and settings.public_key:
            raise ConfigError(f"`public_key` needs one worker of the model, not {num_workers}")
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
    def granularity(self) -> int:
        """Tokens per block of the selection. On an accelerator FlashAttention computes runs of
        tokens, and reads all keys for each run."""
        return 16 if self._is_on_accelerator else 1

    @property
    def backend(self) -> AttentionBackend:
        return VarlenAttention() if self._is_on_accelerator else TiledAttention()

    @property
    def has_more_than_memory(self) -> bool:
        return bool(self.directory or self.remote)

    @property
    def defaults(self) -> EngineChunkRequest:
        return EngineChunkRequest(
            policy=self.policy, ratio=self.ratio, granularity=self.granularity
        )

    def reuse_defaults(self, *, refusal: str | None) -> ReuseDefaults:
        return ReuseDefaults(
            is_approx=self.reuse == "approx",
            options=ReuseOptions(self.policy, self.ratio),
            refusal=refusal,
        )

    def make_store(self) -> TieredStore:
        """Create the store; what it has on disk and in the remote store outlives the engine."""
        disk = None
        if self.directory:
            disk = DiskTier(Path(self.directory), capacity_bytes=self.disk_bytes)
        remote = join_remote(self.remote)
        on_its_way = min(WRITE_BEHIND_BYTES, self.host_bytes // 8)  # KV to each of these two
        num_places = (disk is not None) + (remote is not None)
        return TieredStore(
            host_bytes=self.host_bytes - num_places * on_its_way,
            write_bytes=on_its_way,
            disk=disk,
            remote=remote,
            waits=False,
        )
