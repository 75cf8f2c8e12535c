"""Commands, flags, targets, files, settings and links named by the documentation exist."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_group

from ragboost.cli import app
from ragboost.config import Settings, field_paths, load_settings
from scripts.pictures import IMAGES, PICTURES
from tests.test_rooms import ROOMS

ROOT = Path(__file__).parents[1]
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
LAB = ROOT / "docs" / "lab"  # frozen: its commands and names are those of the dates given there
PAGES = [*OUTSIDE, *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent != LAB)]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def commands(page: str) -> Iterator[str]:
    """Return shell lines of code blocks and inline code, without prompts and variables."""
    text = (ROOT / page).read_text("utf-8").replace("\\\n", " ")
    blocks = [
        body for language, body in FENCED.findall(text) if language in ("", "bash", "console")
    ]
    indented = re.findall(r"^    (\S.*)", text, flags=re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    for line in [*"\n".join(blocks).splitlines(), *indented, *inline]:
        bare = line.split(" #")[0].strip().removeprefix("$ ").removeprefix(".venv/bin/")
        yield re.sub(r"^(\w+=\S+ )+", "", bare)


def flags(line: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))


@pytest.mark.parametrize("page", names(PAGES))
def test_commands_targets_and_modules_exist(page: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    known = get_group(app).commands
    for line in commands(page):
        if found := re.match(r"ragboost ([a-z][\w-]*)(?: ([a-z][\w-]*))?", line):
            command = known[found[1]]
            parameters = getattr(command, "commands", {}).get(found[2], command).params
            options = {name for each in parameters for name in (*each.opts, *each.secondary_opts)}
            assert flags(line) <= options | {"--help"}, line
        elif found := re.match(r"python -m ((?:benchmarks|scripts)\.[\w.]+)", line):
            path = ROOT / found[1].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), line
        elif found := re.match(r"make ([a-z-]+)", line):
            assert found[1] in targets, line
        elif found := re.match(r"python ([\w/]+\.py)", line):
            assert (ROOT / found[1]).is_file(), line


BENCHMARKS = ROOT / "benchmarks"
BENCHMARK_ROOMS = "|".join(path.parent.name for path in BENCHMARKS.glob("*/__init__.py"))
SOURCES = [
    path
    for folder in (BENCHMARKS, ROOT / "scripts", ROOT / "research", ROOT / "tests")
    for path in sorted(folder.rglob("*"))
    if path.suffix in (".py", ".md", ".sh")
]


def test_the_benchmarks_that_pages_and_sources_name_exist() -> None:
    for page in (*PAGES, *SOURCES):
        text = page.read_text("utf-8")
        named = re.findall(r"(?<![\w/.])benchmarks[./]([a-z_]+(?:[./][a-z_]+)*)", text)
        named += re.findall(rf"`((?:{BENCHMARK_ROOMS})\.\w+) --", text)
        for name in named:
            path = BENCHMARKS / name.removesuffix(".py").replace(".", "/")
            found = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"))  # a function's
            assert any(each.exists() for each in found), f"{page}: {name}"


@pytest.mark.parametrize("page", names(PAGES))
def test_settings_exist_and_files_of_settings_load(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    for section, name in re.findall(r"`(\w+)\.(\w+)(?: = [^`]*)?`", text):
        if section in Settings.model_fields and name != "toml":
            assert name == "_" or f"{section}.{name}" in field_paths(), f"{section}.{name}"
    for language, body in FENCED.findall(text):
        if language == "toml":
            path = tmp_path / "ragboost.toml"
            path.write_text(body, encoding="utf-8")
            assert tomllib.loads(body)
            load_settings(toml=path)


@pytest.mark.parametrize("page", names(OUTSIDE))
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    """Sphinx checks links within the docs; links to other hosts are not followed."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text("utf-8"))
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
            assert anchor in slugs, link


def test_the_lab_is_in_no_menu_and_in_no_search() -> None:
    for page in LAB.glob("*.md"):
        assert page.read_text("utf-8").startswith("---\norphan: true\nnosearch: true\n---\n"), page


def test_only_two_pages_lead_to_the_lab() -> None:
    leading = {page.name for page in PAGES if re.search(r"\]\([^)]*lab/", page.read_text("utf-8"))}

    assert leading == {"architecture.md", "measured.md"}


def test_the_architecture_page_has_the_rooms_in_the_order_of_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("## Rooms")[2].partition("\n## ")[0]

    rooms = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert rooms == [room for room in ROOMS if "." not in room and room != "__main__"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_its_script_draws_it(name: str) -> None:
    assert (IMAGES / f"{name}.svg").read_text("utf-8") == PICTURES[name]()


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the files and functions of tests; a name without a function has an empty one."""
    return re.findall(r"`(?:tests/)?([\w/]*\btest_\w+\.py)(?:::(\w*))?", text)


@pytest.mark.parametrize("page", names(PAGES))
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    for path, function in named_tests((ROOT / page).read_text("utf-8")):
        files = [*(ROOT / "tests").rglob(path)]
        assert files, path
        assert any(f"def {function}(" in file.read_text("utf-8") for file in files) or (
            not function
        ), f"{path}::{function}"


@pytest.mark.parametrize("page", [name for name in names(PAGES) if name != "CHANGELOG.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for path in re.findall(
        r"`((?:ragboost|research|deploy|examples|scripts|docs)/[\w./-]+)`", text
    ):
        assert (ROOT / path).exists(), path


def test_every_failure_of_the_matrix_names_its_test() -> None:
    page = (ROOT / "docs" / "reference" / "failures.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!what |---)(.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        assert named_tests(row.rpartition(" | ")[2]), row
