"""The examples of the documentation run unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ragboost.config.model_directory import find_model
from ragboost.errors import ConfigError
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.test_examples import running

SESSIONS = Path(__file__).parent.parent / "docs" / "conversations.md"


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


ROOT = SESSIONS.parent.parent
DOCUMENTS = [{"id": "lease", "text": "Ada signed."}, {"id": "rent", "text": "It is due in May."}]
TINY_MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(config).eval()
system, question, task = [1, 2, 3], [7, 8, 9], [7, 8, 9]
chunks = [list(range(10, 40)), list(range(50, 80))]
"""
REUSE = """
from pathlib import Path
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.store.disk import DiskTier
adapter = ModelAdapter(model)
reuse = ChunkReuse(adapter, TieredStore(host_bytes=1 << 20))
"""
BEFORE = {  # setup that the code blocks of a page assume
    "README.md": "",
    "docs/library.md": """
retrieved = retrieved_again = documents
import ragboost
requests = [ragboost.Request("Who?", documents), ragboost.Request("When?", documents)]
class usage: prompt_tokens = 100
cached = 40
import json, numpy, pathlib
pathlib.Path("corpus.jsonl").write_text("".join(json.dumps(d) + "\\n" for d in documents))
embed = lambda texts: numpy.eye(8, dtype="float32")[[len(text) % 8 for text in texts]]
""",
    "docs/engine.md": "",
    "docs/chunk-cache.md": TINY_MODEL,
    "docs/chunk-storage.md": TINY_MODEL
    + REUSE
    + """
key, tokens = "0" * 32, [1, 2]
disk = DiskTier(Path("p"), capacity_bytes=1 << 20)
""",
    "docs/graph.md": TINY_MODEL
    + REUSE
    + """
from ragboost.graph.layout import DepPrompt, LinearNode
Path("facts.csv").write_text("head,relation,tail\\nElon Musk,founded,SpaceX\\n")
paths = [[20, 21, 22, 23, 24], [20, 21, 25, 26]]
from ragboost.graph.depcache import DepCache
prompts = [DepPrompt.of(system, paths, task)]
subgraphs = {"a": [30, 31, 32], "b": [33, 34]}
""",
}


@pytest.mark.parametrize("page", BEFORE)
def test_the_python_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "LlamaConfig" in BEFORE[page] or page == "docs/engine.md":
        pytest.importorskip("torch", reason="needs the extra engine")
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(?!>>>)(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"documents": DOCUMENTS}
    monkeypatch.chdir(tmp_path)

    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        for number, block in enumerate([BEFORE[page], *blocks]):
            code = block.replace("http://127.0.0.1:8080", proxy.url)
            exec(compile(code, f"{page}, block {number}", "exec"), names)

    assert blocks


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2

    with running("serve", "--embedded") as url:
        script = "".join(blocks).replace("http://127.0.0.1:8080", url)
        script = re.sub(r"(python examples/\w+\.py)", rf"\1 {url}/v1", script)
        script = script.replace("ordered.jsonl", str(tmp_path / "ordered.jsonl"))
        here = Path(sys.executable).parent
        env = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    for said in (
        '"object":"chat.completion"',
        "928 cached",
        "1 sent",
        "UsageTotals(",
        "planned as a",
    ):
        assert said in done.stdout
    assert (tmp_path / "ordered.jsonl").is_file()


@pytest.mark.process
def test_the_lease_question_of_the_readme_is_answered_by_the_language_model() -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    try:
        find_model(Path("smollm2-135m"))
    except ConfigError as error:
        pytest.skip(str(error))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block, *_) = re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)

    with running("serve", "--embedded", "--model", "smollm2-135m") as url:
        script = block.replace("http://127.0.0.1:8080", url)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["choices"][0]["message"]["content"].count("Maria Lopez") == 1


def test_every_page_with_python_examples_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {
        str(page.relative_to(ROOT))
        for page in pages
        if re.search(r"^```python\n", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    elsewhere = {"docs/context-index.md", "docs/langchain.md", "docs/llama-index.md"}

    assert found == set(BEFORE) | elsewhere
