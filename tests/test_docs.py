"""The code blocks of README and of the user pages run in order, as pasted.

A page is one shell and one Python namespace. Only addresses are replaced: those of the engine and
of the proxy. Programs that no test machine has (`vllm`, `docker`, ...) are stood in for by
`tests/fakes/programs.py`, which checks their arguments. Blocks without a language are output, wire
formats and text: `test_docs_names.py` checks the names in them.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ragboost.config.model_directory import find_model
from ragboost.errors import ConfigError
from scripts.ports import free_port
from tests.fakes import FakeEngine, programs
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.test_examples import running

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
RUN = {"bash", "python"}
END_OF_BLOCK = "-=- end of block -=-"
CHECKED = {"toml": "tests/test_docs_names.py", "json": "below", "yaml": "below"}
NO_COMMANDS = {"", "text", "{toctree}", "{eval-rst}"}
ELSEWHERE = {  # python blocks that other tests run
    "docs/context-index.md": "tests/index/test_docs.py",
    "docs/langchain.md": "tests/integrations/test_docs.py",
    "docs/llama-index.md": "tests/integrations/test_docs.py",
}
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
LONG = " ".join(f"word{number}" for number in range(60))  # for the dots of a shortened document
MARKED = "".join(f"<document>{doc['text']} {LONG}</document>\n" for doc in DOCUMENTS) + "Who?"
FILES: dict[str, list[dict[str, Any]]] = {
    "corpus.jsonl": DOCUMENTS,
    "requests.jsonl": [{"id": "q", "question": "Who?", "documents": DOCUMENTS}],
    "trace.jsonl": [{"id": "q", "question": "Who?", "documents": DOCUMENTS}],
    "questions.jsonl": [{"question": "Who?", "documents": DOCUMENTS, "answers": ["Ada"]}],
    "prompts.jsonl": [{"question": "Who?", "documents": DOCUMENTS, "answers": ["Ada"]}],
    "hotpot_dev.json": [
        [
            {
                "_id": "1",
                "question": "Who?",
                "answer": "Ada",
                "supporting_facts": [["Lease", 0]],
                "context": [["Lease", ["Ada signed."]], ["Rent", ["It is due in May."]]],
            }
        ]
    ],
    "request.json": [{"model": "m", "messages": [{"role": "user", "content": MARKED}]}],
}
BEFORE = {  # what a page tells the reader to have: a model, a corpus, documents of a retriever
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


def user_pages() -> list[str]:
    """Return README and the pages of the site that people write, without the lab."""
    pages = [p for p in DOCS.rglob("*.md") if p.parent.name not in ("lab", "reference")]
    return sorted(str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *pages])


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


def run_by(page: str) -> set[str]:
    return {language for language, _ in blocks(page)} & RUN


class Shell:
    """One bash that runs a page's blocks one after another; a failing command ends it."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        with (folder / "errors").open("w") as errors:
            self._bash = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-s"],
                cwd=folder,
                env=env,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._write(programs.functions())

    def run(self, block: str) -> str:
        """Return what a block writes to standard output."""
        (self._folder / "block.sh").write_text(block)
        self._write(f". ./block.sh </dev/null\nprintf '\\n{END_OF_BLOCK}\\n'")
        said = ""
        for line in self._bash.stdout or ():
            if line.strip() == END_OF_BLOCK:
                return said
            said += line
        raise AssertionError(f"{block}\n{said}\n{(self._folder / 'errors').read_text()}")

    def close(self) -> None:
        self._bash.communicate()

    def _write(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{text}\n")
        self._bash.stdin.flush()


def lay_out(folder: Path) -> None:
    """Make a folder what the pages call a clone, with the files that they mention."""
    for name in ("examples", "deploy", "benchmarks", "scripts", "docs", "ragboost"):
        (folder / name).symlink_to(ROOT / name)
    for name, lines in FILES.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "system.txt").write_text("Be brief.")


@contextmanager
def pasted(page: str, folder: Path) -> Iterator[tuple[FakeEngine, list[str]]]:
    """Run a page's blocks in front of a FakeEngine; yield it and what each block wrote."""
    wanted = blocks(page)
    starts_proxy = any("ragboost serve" in body for language, body in wanted if language == "bash")
    port = free_port()
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        url = f"http://127.0.0.1:{port}" if starts_proxy else proxy.url
        env = programs.install(folder / "bin", port=port, proxy=url, backend=engine.url)
        lay_out(folder)
        shell = Shell(folder, env)
        names: dict[str, object] = {}
        exec(BEFORE.get(page, ""), names)
        said = []
        try:
            for number, (language, body) in enumerate(wanted):
                text = body.replace("http://127.0.0.1:8080", url)
                text = re.sub(r"http://127\.0\.0\.1:(8000|30000)", engine.url, text)
                if language == "bash":
                    said.append(shell.run(text))
                elif language == "python" and page not in ELSEWHERE:
                    exec(compile(text, f"{page}, block {number}", "exec"), names)
            yield engine, said
        finally:
            programs.stop(folder / "bin")
            shell.close()


@pytest.mark.parametrize("page", [page for page in user_pages() if run_by(page)])
def test_the_blocks_of_a_page_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "LlamaConfig" in BEFORE.get(page, "") or "ragboost engine" in str(blocks(page)):
        pytest.importorskip("torch", reason="needs the extra engine")
    monkeypatch.chdir(tmp_path)

    with pasted(page, tmp_path):
        pass


def test_the_engine_gets_what_the_readme_shows() -> None:
    examples = [body for language, body in blocks("README.md") if language == "text"]
    sent = []
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        for text in examples[:2]:
            before, _, after = text.replace("...", LONG).partition("after ")
            before = before.removeprefix("before")
            if "ragboost" in before:
                body = json.loads(f"{{{before}}}")
                earlier = {**body, "ragboost": {"documents": body["ragboost"]["documents"][::-1]}}
            else:
                lease, rent, question = map(str.strip, before.strip().splitlines())
                body, earlier = (
                    {"messages": [{"role": "user", "content": "\n".join([*order, question])}]}
                    for order in ((lease, rent), (rent, lease))
                )
            for each in (earlier, body):
                url = f"{proxy.url}/v1/chat/completions"
                assert httpx.post(url, json={"model": "m", **each}).status_code == 200
            sent.append(engine.completions[-1].json["messages"][-1]["content"].split())
            assert sent[-1] == after.split()

    assert len(sent) == 2


def test_the_examples_of_the_session_api_do_what_the_page_says(tmp_path: Path) -> None:
    with pasted("docs/conversations.md", tmp_path) as (engine, (_, first, second, last)):
        assert json.loads(first)["object"] == "chat.completion"
        assert "data: [DONE]" in second
        assert '"num_turns":2' in last
        assert '"deleted":true' in last
        sent = engine.completions[-1].json["messages"]
    assert "Please refer to [Doc_1] in the previous conversation" in sent[-1]["content"]
    assert json.dumps(sent).count("Ada signed") == 1


@pytest.mark.parametrize("page", user_pages())
def test_every_language_of_a_block_has_somebody_who_runs_or_checks_it(page: str) -> None:
    languages = {language for language, _ in blocks(page)}

    assert languages <= RUN | set(CHECKED) | NO_COMMANDS


@pytest.mark.parametrize("page", user_pages())
def test_a_block_without_a_language_holds_no_command_that_could_run(page: str) -> None:
    commands = re.compile(r"^(ragboost|curl|pip|python|vllm|docker|helm|kubectl) ", re.MULTILINE)

    assert not [body for language, body in blocks(page) if not language and commands.search(body)]


def test_bodies_in_json_are_accepted_and_yaml_parses() -> None:
    bodies = 0
    with FakeEngine() as engine, ProxyServer(proxy_settings(engine.url)) as proxy:
        for page in user_pages():
            for language, text in blocks(page):
                if language == "yaml":
                    assert yaml.safe_load(text)
                value: Any = json.loads(text) if language == "json" else {}
                if "messages" in value:
                    bodies += 1
                    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=value)
                    assert answer.status_code == 200, f"{page}: {answer.text}"
    assert bodies


@pytest.mark.process
def test_the_lease_question_is_answered_by_the_language_model() -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    try:
        find_model(Path("smollm2-135m"))
    except ConfigError as error:
        pytest.skip(str(error))
    page = blocks("docs/quickstart.md")
    (block,) = [body for language, body in page if language == "bash" and "Maria Lopez" in body]

    with running("serve", "--embedded", "--model", "smollm2-135m") as url:
        script = block.replace("http://127.0.0.1:8080", url)
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["choices"][0]["message"]["content"].count("Maria Lopez") == 1
