"""Write the table of engine versions in docs/guides/vllm.md: start each, and ask it.

    python -m scripts.engines.matrix .venv-vllm .venv-sglang build/venv-vllm-0.33.0

Each argument is an environment of `make engines` or `overlay_vllm.sh`. A version is on if its
server answers so at `/chunk_reuse` after its self-test; else the reason is that answer.
"""

import os
import subprocess
import sys
from pathlib import Path

from scripts.processes import exit_on_sigterm
from tests.engines.servers import ROOT, EngineServer, Kind

PAGE = ROOT / "docs" / "guides" / "vllm.md"
BEGIN, END = "<!-- versions: scripts/engines/matrix.py -->\n", "<!-- end of versions -->"


def installed(environment: Path) -> tuple[Kind, str]:
    """Return the engine in an environment, and its version without a local suffix."""
    code = "from importlib.metadata import version as v\ntry: print('vllm', v('vllm'))\n"
    code += "except ImportError: print('sglang', v('sglang'))"
    command = [str(environment / "bin" / "python"), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name, version = done.stdout.split()
    return ("vllm" if name == "vllm" else "sglang"), version.partition("+")[0]


def reuse(kind: Kind) -> str:
    """Start the engine with chunk reuse, and return what it says and does."""
    document = list(range(100, 200))
    with EngineServer(kind, events="off", chunks={"reuse": "exact"}, dtype="float32") as server:
        facts = server.get("/chunk_reuse")
        if not facts["is_possible"]:
            return f"off, `{facts['refusal']}`"
        for start in (3, 40):  # stored out of the first prompt, reused further back in the second
            prompt = [*range(start), *document, 7, 8, 9]
            positions = [[start, start + len(document)]]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0}
            body["ragboost"] = {"reuse": {"policy": "reuse", "ratio": 0.0}, "chunks": positions}
            origins = server.post("/v1/completions", body)["usage"]["ragboost"]
        return f"on; {origins['reused']} of {len(document)} tokens of a moved document reused"


def main() -> None:
    exit_on_sigterm()
    rows = ["| engine | chunk reuse |", "|---|---|"]
    for environment in map(Path, sys.argv[1:]):
        kind, version = installed(ROOT / environment)
        os.environ[f"{kind.upper()}_VENV"] = str(environment)
        rows.append(f"| {kind} {version} | {reuse(kind)} |")
        print(rows[-1], flush=True)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(rows) + "\n\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
