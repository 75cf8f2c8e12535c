"""The flags of an engine carry the settings that it reads."""

import shlex
from types import SimpleNamespace

import pytest

from ragboost.engine_chunks.flags import engine_flags
from ragboost.engine_chunks.sglang.flags import BACKEND, read_settings
from ragboost.errors import ConfigError


def test_sglang_reads_the_settings_that_its_flags_were_printed_with() -> None:
    flags = shlex.split(engine_flags("sglang", ["reuse=approx", "ratio=0.3"]))

    assert flags[:2] == ["--radix-cache-backend", BACKEND]
    settings = read_settings(SimpleNamespace(hicache_storage_backend_extra_config=flags[3]))
    assert (settings.reuse, settings.ratio) == ("approx", 0.3)


def test_sglang_without_settings_gets_the_backend_only() -> None:
    assert shlex.split(engine_flags("sglang", [])) == ["--radix-cache-backend", BACKEND]
    assert read_settings(SimpleNamespace(hicache_storage_backend_extra_config=None)).ratio == 0.15


@pytest.mark.parametrize("text", ["{", "[]", '{"ratio": 2}', '{"other": 1}', "@file"])
def test_malformed_settings_of_sglang_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ratio|other|JSON object"):
        read_settings(SimpleNamespace(hicache_storage_backend_extra_config=text))


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="vllm, sglang"):
        engine_flags("tgi", [])
