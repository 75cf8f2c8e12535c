"""The Python examples of the pages on frameworks run, one block after another."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.environments import needs, own_environment
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

DOCS = Path(__file__).parents[2] / "docs"
NEEDS = {"langchain.md": "langchain_openai", "llama-index.md": "llama_index.llms.openai_like"}


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize(
    "page", ["langchain.md", pytest.param("llama-index.md", marks=own_environment)]
)
def test_the_examples_of_a_page_run(
    page: str, engine: FakeEngine, proxy: ProxyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(NEEDS[page])
    names: dict[str, Any] = {"__name__": "docs"}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)

    for number, block in enumerate(blocks):
        code = block.replace("http://127.0.0.1:8080", proxy.url)
        exec(compile(code, f"{page}, block {number}", "exec"), names)

    assert len(engine.completions) >= 2
    assert any(request.cached_tokens for request in engine.completions)
