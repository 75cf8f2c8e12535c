"""The Python examples of docs/integrations.md run as they stand, one section after another."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.environments import needs, own_environment
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
NEEDS = {"LangChain": "langchain_openai", "LlamaIndex": "llama_index.llms.openai_like"}


def sections() -> dict[str, list[str]]:
    """The code blocks of each section."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    blocks = {
        title: re.findall(r"^```python\n(.*?)^```", body, flags=re.DOTALL | re.MULTILINE)
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }
    return {title: code for title, code in blocks.items() if code}


def test_every_section_with_code_is_run_here() -> None:
    assert set(sections()) == set(NEEDS)


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize(
    "section", ["LangChain", pytest.param("LlamaIndex", marks=own_environment)]
)
def test_the_examples_of_a_section_run(
    section: str, engine: FakeEngine, proxy: ProxyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(NEEDS[section])
    names: dict[str, Any] = {"__name__": "docs"}

    for number, block in enumerate(sections()[section], 1):
        code = block.replace("http://127.0.0.1:8080", proxy.url)
        exec(compile(code, f"{PAGE.name}, {section}, block {number}", "exec"), names)

    assert len(engine.completions) >= 2
    assert any(request.cached_tokens for request in engine.completions)
