"""Draw the pictures of docs/how-it-works.md.

    python -m scripts.pictures

Each is an SVG file that follows the reader's light or dark colour scheme.
"""

from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 800

# name: fill and stroke in light, fill and stroke in dark
_PAINT = {
    "paper": ("#ffffff", "#d5dae1", "#1b2027", "#3a424d"),
    "panel": ("#f4f6f9", "#c3cad4", "#232a33", "#4a5461"),
    "plain": ("#e6eaf0", "#8d97a5", "#333c48", "#8491a3"),
    "cached": ("#cdeed8", "#2f8f57", "#1f4a33", "#58c98a"),
    "computed": ("#ffe3cc", "#c8681f", "#57351b", "#f0a05f"),
    "recomputed": ("#ffc9d0", "#c2364a", "#642633", "#ff8797"),
    "hint": ("#dfe6ff", "#4a63c8", "#2b3564", "#93a7ff"),
}
# name: stroke in light, stroke in dark
_LINES = {
    "request": ("#3558c4", "#8ea6ff"),
    "response": ("#6b7683", "#a3afbd"),
    "event": ("#b8621b", "#f0a05f"),
}


def _style() -> str:
    light, dark = (
        ["text{fill:#1d232b}.soft{fill:#56606d}"],
        ["text{fill:#e8ecf1}.soft{fill:#aab4c0}"],
    )
    for name, (fill, edge, dark_fill, dark_edge) in _PAINT.items():
        light.append(f".{name}{{fill:{fill};stroke:{edge}}}")
        dark.append(f".{name}{{fill:{dark_fill};stroke:{dark_edge}}}")
    for name, (line, dark_line) in _LINES.items():
        light.append(f".{name}{{stroke:{line}}}.{name}-tip{{fill:{line}}}")
        dark.append(f".{name}{{stroke:{dark_line}}}.{name}-tip{{fill:{dark_line}}}")
    light.append(".edge{stroke:#8d97a5}")
    dark.append(".edge{stroke:#8491a3}")
    base = (
        "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;"
        "font-size:14px}.bold{font-weight:600}.small{font-size:12.5px}.line{fill:none;"
        "stroke-width:2}.response{stroke-dasharray:6 4}.edge{stroke-width:1.5}"
    )
    return f"{base}{''.join(light)}@media(prefers-color-scheme:dark){{{''.join(dark)}}}"


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "middle") -> str:
    """Draw a line of text with its baseline at y."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{words}</text>'


def heading(x: float, y: float, words: str) -> str:
    return text(x, y, words, kind="bold", anchor="start")


def note(x: float, y: float, words: str) -> str:
    return text(x, y, words, kind="soft small", anchor="start")


def box(x: float, y: float, w: float, h: float, *lines: str, kind: str = "plain") -> str:
    """Draw a box with centred lines of text; the first of several is bold."""
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" class="{kind}"/>']
    top = y + h / 2 - 9 * (len(lines) - 1) + 5
    for number, line in enumerate(lines):
        weight = "bold" if number == 0 and len(lines) > 1 else "small" if number else ""
        parts.append(text(x + w / 2, top + 18 * number, line, kind=weight))
    return "".join(parts)


def arrow(*points: tuple[float, float], kind: str = "request") -> str:
    """Draw a line through the points with a tip at the last one."""
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    ends = [*points[:-1], (x - 8 * dx, y - 8 * dy)]
    path = " ".join(f"{a:g},{b:g}" for a, b in ends)
    (tx, ty) = ends[-1]
    corners = ((x, y), (tx - 5 * dy, ty + 5 * dx), (tx + 5 * dy, ty - 5 * dx))
    tip = " ".join(f"{a:g},{b:g}" for a, b in corners)
    return (
        f'<polyline points="{path}" class="line {kind}"/>'
        f'<polygon points="{tip}" class="{kind}-tip"/>'
    )


def cells(x: float, y: float, kinds: str, *, size: float = 14) -> str:
    """Draw a row of squares, one per token; `kinds` has an initial for each paint."""
    names = {"e": "cached", "a": "hint", "r": "recomputed", "c": "computed", "p": "plain"}
    return "".join(
        f'<rect x="{x + number * (size + 2):g}" y="{y:g}" width="{size:g}" height="{size:g}" '
        f'rx="2" class="{names[kind]}"/>'
        for number, kind in enumerate(kinds)
    )


def legend(x: float, y: float, **entries: str) -> str:
    """Draw a row of squares with their meanings."""
    parts = []
    for kind, words in entries.items():
        square = f'<rect x="{x:g}" y="{y - 12:g}" width="14" height="14" rx="2" class="{kind}"/>'
        parts += [square, text(x + 20, y, words, kind="small", anchor="start")]
        x += 44 + 7 * len(words)
    return "".join(parts)


def token_box(x: float, y: float, label: str, kinds: str) -> str:
    """Draw a labelled panel that holds a row of tokens."""
    width = 16 * len(kinds) + 14
    frame = box(x, y, width, 58, kind="panel")
    return frame + text(x + width / 2, y + 20, label, kind="small") + cells(x + 8, y + 32, kinds)


def request() -> str:
    """Draw the path of a request through the packages of the proxy."""
    steps = {
        (40, 130): ("proxy/routes", "1. read the body"),
        (300, 130): ("requests", "2. find documents,", "recall what was sent"),
        (560, 130): ("proxy/routing", "3. choose a backend,", "wait for a place"),
        (560, 250): ("booster", "4. order, de-duplicate,", "add hints"),
        (300, 250): ("requests", "5. write the documents", "back into the body"),
        (40, 250): ("proxy/upstream", "6. send, relay the", "response bytes"),
    }
    parts = [
        box(40, 22, 200, 46, "application"),
        '<rect x="20" y="92" width="760" height="368" rx="10" class="panel"/>',
        text(770, 112, "RAGBoost", kind="soft small", anchor="end"),
        *(box(x, y, 200, 76, *lines) for (x, y), lines in steps.items()),
        box(300, 370, 200, 64, "cache_sync", "mirror of the cache"),
        box(560, 370, 200, 64, "index", "cached sequences", kind="cached"),
        box(40, 492, 200, 52, "engine", "prefix cache", kind="cached"),
        arrow((100, 68), (100, 130)),
        arrow((240, 168), (300, 168)),
        arrow((500, 168), (560, 168)),
        arrow((660, 206), (660, 250)),
        arrow((560, 288), (500, 288)),
        arrow((300, 288), (240, 288)),
        arrow((100, 326), (100, 492)),
        note(110, 414, "request"),
        arrow((190, 492), (190, 326), kind="response"),
        arrow((40, 288), (30, 288), (30, 45), (40, 45), kind="response"),
        note(200, 352, "response"),
        arrow((240, 518), (400, 518), (400, 434), kind="event"),
        note(410, 514, "cache events: stored, removed, cleared"),
        arrow((500, 402), (560, 402), kind="event"),
        arrow((640, 370), (640, 326), kind="event"),
        note(650, 352, "longest prefix"),
    ]
    return _svg(564, "A request through RAGBoost", parts)


def index() -> str:
    """Draw the context index before and after one request."""
    edges = [
        *((200, 146, 200, 186), (200, 220, 105, 266), (200, 220, 290, 266)),
        *((580, 146, 580, 186), (580, 220, 485, 266), (580, 220, 675, 266)),
        *((675, 300, 610, 346), (675, 300, 720, 346)),
    ]
    matched = "M 251 266 H 290 V 300 H 251 a 6 6 0 0 1 -6 -6 V 272 a 6 6 0 0 1 6 -6"
    parts = [
        text(400, 34, "Request: documents D, B, F, A by relevance", kind="bold"),
        text(400, 56, "longest cached prefix: A, B, D; sent as A, B, D, F", kind="soft small"),
        *(f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" class="edge"/>' for a, b, c, d in edges),
        text(200, 96, "Before", kind="bold"),
        box(165, 112, 70, 34, "root"),
        box(155, 186, 90, 34, "A, B", kind="cached"),
        box(60, 266, 90, 34, "C"),
        box(245, 266, 90, 34),
        f'<path d="{matched}" class="cached"/>',
        text(267, 288, "D"),
        text(312, 288, "E"),
        text(580, 96, "After", kind="bold"),
        box(545, 112, 70, 34, "root"),
        box(535, 186, 90, 34, "A, B", kind="cached"),
        box(440, 266, 90, 34, "C"),
        box(630, 266, 90, 34, "D", kind="cached"),
        box(570, 346, 80, 34, "E"),
        box(680, 346, 80, 34, "F", kind="computed"),
        note(40, 352, "A node is a run of documents; a path from"),
        note(40, 371, "the root is a sequence in the prefix cache."),
        note(40, 390, "The run D, E is split where the request leaves it."),
        legend(150, 424, cached="found in the cache", computed="computed, added", plain="not used"),
    ]
    return _svg(444, "The context index before and after a request", parts)


def prompts() -> str:
    """Draw two prompts as retrieved and boosted, and the next turn."""
    asks = {number: (f"question {number}", "computed", 96) for number in (1, 2, 3)}
    cached_system = ("system", "cached", 74)
    first = [("system", "computed", 74), *_documents("ABCD", "computed"), asks[1]]
    plain = [cached_system, *_documents("CAEB", "computed"), asks[2]]
    order = ("C &gt;&gt; A &gt;&gt; E &gt;&gt; B", "hint", 144)
    common, new = _documents("ABC", "cached"), _documents("E", "computed")
    boosted = [cached_system, *common, *new, order, asks[2]]
    history = [("everything of request 2", "cached", 206), ("answer", "cached", 70)]
    location = ("see E, A above", "hint", 124)
    turn = [*history, *_documents("F", "computed"), location, asks[3]]
    parts = [
        heading(20, 32, "As retrieved"),
        *(_prompt(46, "request 1", first), _prompt(88, "request 2", plain)),
        heading(20, 158, "With RAGBoost"),
        *(_prompt(172, "request 1", first), _prompt(214, "request 2", boosted)),
        heading(20, 284, "Next turn, which retrieves E, A, F"),
        _prompt(298, "request 3", turn),
        legend(130, 368, cached="in the prefix cache", computed="computed", hint="computed: hints"),
    ]
    return _svg(390, "Two prompts as retrieved and with RAGBoost", parts)


def _documents(names: str, kind: str) -> list[tuple[str, str, int]]:
    return [(name, kind, 56) for name in names]


def _prompt(y: float, label: str, blocks: list[tuple[str, str, int]]) -> str:
    parts, x = [text(20, y + 22, label, kind="small", anchor="start")], 130
    for words, kind, width in blocks:
        parts += [box(x, y, width, 34, kind=kind), text(x + width / 2, y + 22, words, kind="small")]
        x += width + 4
    return "".join(parts)


def chunks() -> str:
    """Draw chunk reuse with selective recomputation."""
    parts = [
        heading(20, 32, "Chunk store"),
        note(136, 32, "each document was computed behind the system prompt"),
        token_box(130, 48, "document A", "pppppppp"),
        token_box(300, 48, "document B", "pppppppp"),
        token_box(470, 48, "document C", "pppppppp"),
        heading(20, 196, "Prompt"),
        token_box(20, 210, "system", "eeeee"),
        token_box(124, 210, "document A", "eeeeeeee"),
        token_box(276, 210, "document C", "raaaaara"),
        token_box(428, 210, "document B", "aaraaaaa"),
        token_box(580, 210, "document D", "cccccc"),
        token_box(700, 210, "question", "cccc"),
        arrow((195, 106), (195, 210)),
        arrow((541, 106), (541, 146), (347, 146), (347, 210), kind="event"),
        arrow((371, 106), (371, 168), (499, 168), (499, 210), kind="event"),
        note(205, 134, "unchanged"),
        note(556, 142, "keys rotated to the new position"),
        text(635, 200, "not stored", kind="soft small"),
        legend(
            60,
            312,
            cached="exact",
            hint="reused, approximate",
            recomputed="selected, recomputed",
            computed="computed",
        ),
    ]
    return _svg(334, "Chunk reuse with selective recomputation", parts)


def _svg(height: int, title: str, parts: list[str]) -> str:
    paper = f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" class="paper"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{title}">'
    )
    style = f"<style>{_style()}</style>"
    return "\n".join([head, f"<title>{title}</title>", style, paper, *parts, "</svg>"]) + "\n"


PICTURES = {"request": request, "index": index, "prompts": prompts, "chunks": chunks}


def main() -> None:
    """Write every picture to docs/images."""
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
