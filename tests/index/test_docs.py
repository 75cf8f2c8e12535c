import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "context-index.md"


def test_the_example_on_the_page_gives_what_the_page_says() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)

    assert (failed, tried) == (0, 13)
