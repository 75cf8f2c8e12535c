"""The settings: all sections together."""

from typing import Literal

from pydantic import Field

from ragboost.config.engine import EngineHookSettings, EngineSettings
from ragboost.config.library import (
    DedupSettings,
    FormatSettings,
    HintSettings,
    IndexSettings,
    OrderingSettings,
    SessionSettings,
    TokenSettings,
)
from ragboost.config.proxy import (
    MAX_BACKENDS,
    BackendSettings,
    BoostSettings,
    LogSettings,
    ProxySettings,
    ReplicaSettings,
    ReuseSettings,
    RouterSettings,
    WaitingRoomSettings,
)
from ragboost.config.section import Section


class Settings(Section):
    """All settings, from arguments and defaults only.

    `load_settings` also reads the environment and `ragboost.toml`.
    """

    index: IndexSettings = IndexSettings()
    tokens: TokenSettings = TokenSettings()
    ordering: OrderingSettings = OrderingSettings()
    dedup: DedupSettings = DedupSettings()
    hints: HintSettings = HintSettings()
    formats: FormatSettings = FormatSettings()
    session: SessionSettings = SessionSettings()
    backend: BackendSettings = BackendSettings()
    backends: tuple[ReplicaSettings, ...] = Field(
        (),
        description="Several backends: url, name, api_key, max_concurrency of each. Replaces "
        "`backend.url`.",
    )
    stable: Literal["off", "safe"] = Field(
        "off",
        description="safe: send tools sorted by name, and their JSON with sorted keys. No text and "
        "no earlier message is changed.",
    )
    boost: BoostSettings = BoostSettings()
    reuse: ReuseSettings = ReuseSettings()
    router: RouterSettings = RouterSettings()
    waiting_room: WaitingRoomSettings = WaitingRoomSettings()
    proxy: ProxySettings = ProxySettings()
    log: LogSettings = LogSettings()
    engine: EngineSettings = EngineSettings()
    engine_hooks: EngineHookSettings = EngineHookSettings()

    @property
    def num_backends(self) -> int:
        """The most prefix caches that there may be: each data-parallel rank has its own."""
        if self.backend.is_dynamic:
            return MAX_BACKENDS
        return self.backend.data_parallel_size * max(1, len(self.backends))
