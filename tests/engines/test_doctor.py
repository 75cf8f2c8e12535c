"""`ragboost doctor` in front of real engines: it finds what is missing and names the very flag."""

import json
import subprocess
import sys
from typing import Any

import pytest

from ragboost.cache_sync.discovery import EventSource
from scripts.ports import free_port
from tests.engines.conftest import KINDS, require
from tests.engines.servers import ROOT, EngineServer, Kind

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

USAGE = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}
PREFIX_CACHE = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}


class BareServer(EngineServer):
    """An engine as one starts it who has not asked the doctor, and without a prefix cache."""

    def _vllm(self) -> list[str]:
        return [*_without(super()._vllm(), USAGE["vllm"]), PREFIX_CACHE["vllm"]]

    def _sglang(self) -> list[str]:
        return [*_without(super()._sglang(), USAGE["sglang"]), PREFIX_CACHE["sglang"]]


def _without(command: list[str], flag: str) -> list[str]:
    assert flag in command
    return [argument for argument in command if argument != flag]


def doctor(url: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by check."""
    done = subprocess.run(
        [sys.executable, "-m", "ragboost", "doctor", "--json", "--backend", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["check"]: finding for finding in findings}


def test_a_backend_with_all_flags_is_fine(server: EngineServer) -> None:
    code, found = doctor(server.url)
    statuses = {check: finding["status"] for check, finding in found.items()}
    assert statuses.pop("documents") == "advice", "the tiny model's template knows no documents"
    assert set(statuses.values()) == {"ok"}, found
    assert code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_finding_names_the_flag_that_mends_it(kind: Kind) -> None:
    require(kind)
    with BareServer(kind, events="off") as server:
        code, found = doctor(server.url)
    assert code == 1
    assert found["usage"]["status"] == "advice"
    assert USAGE[kind] in found["usage"]["fix"]
    assert found["prefix cache"]["status"] == "failed"
    assert PREFIX_CACHE[kind] in found["prefix cache"]["fix"]
    assert found["KV events"]["status"] == "advice"
    assert "--kv-events-config" in found["KV events"]["fix"]


class ConnectingServer(EngineServer):
    """A vLLM that was given an address without a wildcard, to which it connects."""

    def _source(self) -> EventSource:
        return EventSource(f"{self.kind}/0", f"tcp://127.0.0.1:{free_port()}")


def test_a_vllm_that_connects_to_its_address_is_found_out() -> None:
    require("vllm")
    with ConnectingServer("vllm") as server:
        code, found = doctor(server.url)
    assert (code, found["KV events"]["status"]) == (1, "failed"), found
    assert f"tcp://*:{server.source.endpoint.rpartition(':')[2]}" in found["KV events"]["fix"]
