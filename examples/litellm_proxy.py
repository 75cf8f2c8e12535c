"""LiteLLM with RAGBoost's hook: the client talks to LiteLLM's proxy, which boosts on its way.

Starts LiteLLM on loopback, in front of an OpenAI-compatible server.

Run: ragboost engine &
     python examples/litellm_proxy.py   (needs: pip install 'ragboost[litellm]' 'litellm[proxy]')
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from openai import OpenAI

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
PORT = 8124
KEY = "sk-0123456789abcdef0123456789abcdef"  # of this LiteLLM, which asks for one
MODEL = {"model": "openai/ragboost-small", "api_base": BACKEND, "api_key": "unused"}
CONFIG = {  # YAML in practice; JSON is YAML, too
    "model_list": [{"model_name": "rag", "litellm_params": MODEL}],
    "litellm_settings": {"callbacks": ["ragboost.integrations.litellm.proxy_handler_instance"]},
}
DOCUMENTS = [
    {"id": "lease", "text": "The lease was signed by Maria Lopez on 3 May 2024. " * 20},
    {"id": "rent", "text": "The monthly rent is 2,400 euros and rises with the index. " * 20},
]


def main() -> None:
    """Ask two questions whose documents come in another order, and show what was cached."""
    with litellm() as url, OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        for question, documents in (
            ("Who signed the lease?", DOCUMENTS),
            ("What is the rent?", DOCUMENTS[::-1]),
        ):
            usage = client.chat.completions.create(
                model="rag",
                messages=[{"role": "user", "content": question}],
                max_tokens=4,
                extra_body={"ragboost": {"documents": documents}},
            ).usage
            cached = usage.prompt_tokens_details.cached_tokens
            print(f"{question} {usage.prompt_tokens} prompt tokens, {cached} cached")


@contextmanager
def litellm() -> Iterator[str]:
    """LiteLLM's proxy with the hook, in a process of its own."""
    code = "from litellm import run_server; run_server()"  # what the command `litellm` does
    env = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(json.dumps(CONFIG))
        command = [sys.executable, "-c", code, "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(PORT), "--telemetry", "False"]
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as server:
            try:
                wait_until_ready(f"http://127.0.0.1:{PORT}/health/liveliness", server)
                yield f"http://127.0.0.1:{PORT}"
            finally:
                server.terminate()


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Return when the server answers; it takes some seconds to start."""
    while server.poll() is None:
        try:
            urlopen(url).close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("LiteLLM did not start")


if __name__ == "__main__":
    main()
