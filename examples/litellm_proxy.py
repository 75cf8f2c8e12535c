"""LiteLLM with RAGBoost's hook: LiteLLM's proxy boosts the requests that it forwards.

Starts LiteLLM on loopback, in front of an OpenAI-compatible server.

Run: ragboost engine &
     python examples/litellm_proxy.py   (needs: the extra litellm, 'litellm[proxy]')
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
KEY = "sk-0123456789abcdef0123456789abcdef"  # LiteLLM requires a master key
MODEL = {"model": "openai/ragboost-small", "api_base": BACKEND, "api_key": "unused"}
CONFIG = {  # usually a YAML file; JSON is valid YAML
    "model_list": [{"model_name": "rag", "litellm_params": MODEL}],
    "litellm_settings": {"callbacks": ["ragboost.integrations.litellm.proxy_handler_instance"]},
}
DOCUMENTS = [
    {"id": "lease", "text": "The lease was signed by Maria Lopez on 3 May 2024. " * 20},
    {"id": "rent", "text": "The monthly rent is 2,400 euros and rises with the index. " * 20},
]


def main() -> None:
    """Ask two questions with the same documents in different orders; show the cached tokens."""
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
    """Start LiteLLM's proxy with the hook as a process."""
    code = "from litellm import run_server; run_server()"  # as the command `litellm`
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
    """Wait until the server is ready, which takes some seconds."""
    while server.poll() is None:
        try:
            urlopen(url).close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("LiteLLM did not start")


if __name__ == "__main__":
    main()
