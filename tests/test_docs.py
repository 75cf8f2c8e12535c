"""The shell examples of docs/sessions.md run as they stand."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes import FakeEngine
from tests.proxy.conftest import ProxyServer, proxy_settings

SESSIONS = Path(__file__).parent.parent / "docs" / "sessions.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
def test_the_examples_of_the_session_api_run() -> None:
    text = SESSIONS.read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        script = "\necho\necho ----\n".join(blocks).replace("http://127.0.0.1:8080", proxy.url)
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        _, first, second, last = result.stdout.split("----\n")
        assert json.loads(first)["object"] == "chat.completion"
        assert "data: [DONE]" in second
        assert '"num_turns":2' in last
        assert '"deleted":true' in last
        sent = engine.completions[-1].json["messages"]
    assert "Please refer to [Doc_1] in the previous conversation" in sent[-1]["content"]
    assert json.dumps(sent).count("Ada signed") == 1
