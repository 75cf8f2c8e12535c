"""Settings of every package; flags override environment, `ragboost.toml` and defaults."""

from ragboost.config.engine import EngineHookSettings, EngineSettings
from ragboost.config.library import (
    DedupSettings,
    FormatSettings,
    FrameSettings,
    HintSettings,
    IndexSettings,
    OrderingSettings,
    SessionSettings,
    TokenSettings,
)
from ragboost.config.load import ENV_PREFIX, TOML_NAME, field_paths, load_settings, settings_file
from ragboost.config.proxy import (
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
from ragboost.config.settings import Settings

__all__ = [
    "ENV_PREFIX",
    "TOML_NAME",
    "BackendSettings",
    "BoostSettings",
    "DedupSettings",
    "EngineHookSettings",
    "EngineSettings",
    "FormatSettings",
    "FrameSettings",
    "HintSettings",
    "IndexSettings",
    "LogSettings",
    "OrderingSettings",
    "ProxySettings",
    "ReplicaSettings",
    "ReuseSettings",
    "RouterSettings",
    "Section",
    "SessionSettings",
    "Settings",
    "TokenSettings",
    "WaitingRoomSettings",
    "field_paths",
    "load_settings",
    "settings_file",
]
