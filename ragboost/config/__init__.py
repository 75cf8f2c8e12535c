"""Settings of every package: flags beat environment beat `ragboost.toml` beat defaults.

A section per package, named after it. Knows no command line and no package.
"""

from ragboost.config.engine import EngineHookSettings, EngineSettings
from ragboost.config.library import (
    DedupSettings,
    Delimiters,
    FormatSettings,
    HintSettings,
    IndexSettings,
    OrderingSettings,
    SessionSettings,
    TokenSettings,
)
from ragboost.config.load import TOML_NAME, field_paths, load_settings
from ragboost.config.proxy import (
    BackendSettings,
    ProxySettings,
    ReplicaSettings,
    RouterSettings,
    WaitingRoomSettings,
)
from ragboost.config.section import Section
from ragboost.config.settings import ENV_PREFIX, Settings

__all__ = [
    "ENV_PREFIX",
    "TOML_NAME",
    "BackendSettings",
    "DedupSettings",
    "Delimiters",
    "EngineHookSettings",
    "EngineSettings",
    "FormatSettings",
    "HintSettings",
    "IndexSettings",
    "OrderingSettings",
    "ProxySettings",
    "ReplicaSettings",
    "RouterSettings",
    "Section",
    "SessionSettings",
    "Settings",
    "TokenSettings",
    "WaitingRoomSettings",
    "field_paths",
    "load_settings",
]
