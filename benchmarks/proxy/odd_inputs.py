"""Measure the processor time of texts that are made to be slow to scan.

    python -m benchmarks.proxy.odd_inputs --json
    python -m benchmarks.proxy.odd_inputs --limit

Each input repeats a mark of some frame up to a size: 64 KB, 256 KB, 1 MB, and with `--limit` the
largest body that the proxy takes. Prints processor time of the whole process for one request in
microseconds a byte, and how long another client's `/health` took at worst meanwhile. Flags more
than a microsecond a byte, time that grows faster than the size, and a `/health` that waits.
"""

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from benchmarks.proxy.recorded import RecordedProxy, recorded_proxy
from ragboost.config import Settings

_SIZES = {"64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20}
_ENVELOPE = 4 << 10  # bytes of a body beside the text, at most
_MAX_US_PER_BYTE = 1.0
_MAX_GROWTH = 2.0  # of the time per byte from one size to a four times larger one
_MAX_HEALTH_MS = 250.0
_REPEATS = {"64k": 3, "256k": 2}
_HEALTH_SAMPLES = 100
_POLL_S = 0.02
_MAX_PREDICTED_US = 60e6  # larger sizes of an input are left out


@dataclass(frozen=True)
class OddInput:
    """A text that repeats a unit; `§i` is the number of the repetition.

    Attributes:
        name: for reports.
        unit: is repeated.
        before: stands once before.
        after: stands once behind.
        role: of the message.
    """

    name: str
    unit: str
    before: str = "Answer.\n\n"
    after: str = "\n\nQuestion: why?"
    role: str = "user"

    def write(self, size: int) -> str:
        """Return the text, of about so many bytes as JSON."""
        chunk = 1000
        sample = self._units(0, chunk)
        per_unit = len(json.dumps(sample)) / chunk
        left = size - len(json.dumps(self.before + self.after))
        text = self._units(0, max(1, int(left / per_unit)))
        while len(json.dumps(text)) > left:  # numbers have become longer
            text = text[: int(len(text) * left / len(json.dumps(text))) - 1]
        return f"{self.before}{text}{self.after}"

    def _units(self, start: int, count: int) -> str:
        if "§i" not in self.unit:
            return self.unit * count
        before, *rest = self.unit.split("§i")
        numbers = map(str, range(start, start + count))
        return "".join(before + "".join(n + piece for piece in rest) for n in numbers)


_LLAMA = "Context information is below.\n---------------------\n"
_END = "\n---------------------\nQuery: why?\nAnswer: "
_NODE = "id: x\n\ntext\n\n"
_WORDS = "The lease was signed by Ada in winter. "


def _tool(name: str, unit: str, before: str, after: str) -> OddInput:
    return OddInput(name, unit, before, after, role="tool")


INPUTS = (
    OddInput("plain words", _WORDS),
    OddInput("plain paragraphs", f"{_WORDS * 3}\n\n"),
    OddInput("equal lines", "a\n"),
    OddInput("blank lines", "\n"),
    OddInput("blank lines, CRLF", "\r\n"),
    OddInput("spaces", " "),
    OddInput("tabs and lines", "\t\n"),
    OddInput("numbered lines, all differ", "line §i of the text\n"),
    OddInput("paragraphs, all differ", "paragraph §i of the text\n\n"),
    # tags
    OddInput("<a", "<a"),
    OddInput("<", "<"),
    OddInput("</", "</"),
    OddInput("<a>", "<a>"),
    OddInput("</a>", "</a>"),
    OddInput("<a></a>", "<a></a>"),
    OddInput("<a> nested, closed at the end", "<a>", after="</a>" * 1000),
    OddInput("<a§i>", "<a§i>"),
    OddInput("<a§i></a§i>", "<a§i>x</a§i>\n"),
    OddInput("<doc>", "<doc>"),
    OddInput("<doc>a</doc>", "<doc>a</doc>\n"),
    OddInput("<doc>a</doc>x", "<doc>a</doc><doc>b</doc>x"),
    OddInput("</doc> quoted", "</doc> ", before="<doc>a</doc>\n<doc>"),
    OddInput("<document without an end", "<document "),
    OddInput("<document a='\">", "<document a='\">"),
    OddInput("attributes", 'a§i="b" ', before="<doc "),
    OddInput("<source id=>", '<source id="§i">a b</source>\n'),
    OddInput("<source id=>, unclosed", '<source id="§i">a b\n'),
    OddInput("quotes in a tag", "'", before='<doc a="'),
    OddInput("<!--", "<!--"),
    OddInput("<![CDATA[", "<![CDATA["),
    OddInput("nested lists", "<context><doc>a</doc><doc>b</doc>"),
    # labels
    OddInput("[1", "[1"),
    OddInput("[1]", "[1]"),
    OddInput("[1] lines", "[1] a\n"),
    OddInput("[§i] lines", "[§i] a b\n"),
    OddInput("[", "["),
    OddInput("]", "]"),
    OddInput("digits", "1234567890"),
    OddInput("digit lines", "1\n"),
    OddInput("1.", "1."),
    OddInput("§i. lines", "§i. a b c\n"),
    OddInput("(§i)", "(§i) a b c\n"),
    OddInput("Document 1:", "\nDocument 1: a b"),
    OddInput("Document §i:", "\nDocument §i: a b"),
    OddInput("Document §i: twice", "\nDocument §i: a b\nDocument §i: c d"),
    OddInput("文档§i：", "文档§i：a\n"),
    OddInput("【資料§i】", "【資料§i】\na\n"),
    OddInput("[Doc_§i]", "[Doc_§i] a b\n"),
    OddInput("[CONTEXT §i]", "[CONTEXT §i]:\na\n[END CONTEXT §i]\n"),
    OddInput("[CONTEXT §i], no end", "[CONTEXT §i]:\na\n"),
    OddInput("labels of any word", "word§i 1: a\n"),
    # headers and separators
    OddInput("id: in LlamaIndex's dashes", "id: \n", before=_LLAMA, after=_END),
    OddInput("id: behind a node", "id: a\n", before=_LLAMA + _NODE, after=f"\n\nx{_END}"),
    OddInput("id: behind a node, empty", "id: \n", before=_LLAMA + _NODE, after=f"\n\nx{_END}"),
    OddInput("keys behind a node", "k§i: a\n", before=_LLAMA + _NODE, after=f"\n\nx{_END}"),
    OddInput("nodes of many keys", "id: a\n" * 20 + "\n\n", before=_LLAMA, after=_END),
    OddInput("file_path: in dashes", "file_path: a\n\n", before=_LLAMA, after=_END),
    OddInput("key: value, all differ", "key§i: a\n", before=_LLAMA, after=_END),
    OddInput("dashes and keys", "\n-----\nfile_path: a\n\n"),
    OddInput("Source and Content", "Source: a\nContent: b\n\n"),
    OddInput("Source: alone", "Source: a\n"),
    OddInput("Title, Score, Text", "Title: a\nScore: 1\nText: b\n\n"),
    OddInput("RAGFlow", "------\nID: §i\n├── Title: a\n└── Content:\nb\n"),
    OddInput("dashes", "-"),
    OddInput("lines of dashes", "---\n"),
    OddInput("lines of dashes, growing", "-§i-\n"),
    OddInput("equal signs", "="),
    OddInput("=== f ===", "=== f§i ===\na\n"),
    OddInput("headings", "## a\n\n"),
    OddInput("headings, all differ", "## a §i\n\nb\n\n"),
    OddInput("number signs", "#"),
    OddInput("bullets", "- "),
    OddInput("bullet lines", "- a\n"),
    OddInput("backticks", "`"),
    OddInput("fences", "```\n"),
    OddInput("names and fences", "f§i.py\n```\na\n```\n"),
    OddInput("table rows", "| a | b |\n"),
    OddInput("pipes", "|"),
    OddInput("BEGIN without END", "--- BEGIN f§i ---\n"),
    OddInput("Question:", "\nQuestion: a\nAnswer: b"),
    # JSON
    OddInput('"{', '"{'),
    OddInput("[[[[", "[", before="", after=""),
    OddInput("[[ ]]", "[", before="", after="]" * 1000),
    OddInput("{{{{", '{"a":', before="", after=""),
    OddInput("quotes", '"'),
    OddInput("backslashes", "\\"),
    OddInput("JSON lines", '{"text": "a b"}\n'),
    OddInput("JSON lines, broken", '{"text": "a b}\n'),
    OddInput("JSON lists, many", '["a", "b"]\n'),
    OddInput("JSON strings", '"a b", ', before="[", after='"c"]'),
    OddInput("JSON objects", '{"text": "a §i"}, ', before="[", after='{"text": "c"}]'),
    OddInput("JSON objects, no end", '{"text": "a §i"}, ', before="["),
    OddInput("LangChain's repr", "Document(metadata={}, page_content='a'), ", before="["),
    OddInput("Document(", "Document("),
    _tool("JSON results", '{"text": "a §i"}, ', '{"results": [', '{"text": "c"}]}'),
    _tool("JSON results, equal", '{"text": "a b c"}, ', "[", '{"text": "c"}]'),
    _tool("JSON, deep", '{"results": [', "", ""),
    _tool("pairs in a tool result", "Source: {'a': §i}\nContent: b\n\n", "", ""),
    _tool("XML in a tool result", "<search_result>a b</search_result>\n", "", ""),
    _tool("tags in a JSON string", "<doc>a</doc>", '{"text": "', '"}'),
    # marks behind two whole documents, which begin a list
    *(
        OddInput(f"{mark!r} behind two documents", mark, before=frame)
        for frame, mark in (
            ("<doc>a b</doc>\n<doc>c d</doc>\n", "<doc>"),
            ("<doc>a b</doc>\n<doc>c d</doc>\n", "</doc>\n"),
            ("<doc>a b</doc>\n<doc>c d</doc>\n<doc>", "<a>"),
            ("Document 1: a b c d\n\nDocument 2: e f g h\n\n", "Document 2: a\n"),
            ("Document 1: a b c d\n\nDocument 2: e f g h\n\n", "Document 3\n"),
            ("[1] a b c d\n\n[2] e f g h\n\n", "[2]\n"),
            ("Source: a\nContent: b\n\nSource: c\nContent: d\n\n", "Source: "),
            ("Source: a\nContent: b\n\nSource: c\nContent: d\n\n", "Source: a\n"),
            ("[CONTEXT 0]:\na\n[END CONTEXT 0]\n[CONTEXT 1]:\n", "[END CONTEXT 0]\n"),
            ("=== a ===\nb\n\n=== c ===\nd\n\n", "=== "),
            ("a.py\n```\nb\n```\n\nc.py\n```\nd\n```\n", "```\na\n"),
            ("------\nID: 0\n└── Content:\na\n------\nID: 1\n└── Content:\nb\n", "ID: 2\n"),
            ('[{"text": "a"}, {"text": "b"}]\n\n', '[{"text": "a"}, '),
            ("- a b c\n- d e f\n", "-\n"),
            ("a b\n\n---\n\nc d\n\n---\n\n", "--\n"),
        )
    ),
    # ours
    OddInput("our references", "Please refer to [Doc_§i] in the previous conversation.\n"),
    OddInput("our notes", "Cite documents by their numbers: Document a is Document §i.\n"),
    OddInput("our hints", "Documents by relevance, most relevant first: document §i\n"),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--limit", action="store_true", help="also the largest body")
    parser.add_argument("--only", default="", help="inputs whose name contains this")
    parser.add_argument("--sizes", default=",".join(_SIZES), help="some of these sizes")
    args = parser.parse_args()
    report(measure(args), args, show)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Send every input in every size."""
    sizes = {name: size for name, size in _SIZES.items() if name in args.sizes.split(",")}
    if args.limit:
        sizes["limit"] = Settings().proxy.max_body_bytes
    inputs = [each for each in INPUTS if args.only in each.name]
    with recorded_proxy() as proxy:
        meter = Meter(proxy)
        rows = [_row(meter, each, sizes) for each in inputs]
    flagged = [row for row in rows if row["flags"]]
    return {"inputs": len(rows), "flagged": len(flagged), "rows": rows}


def _row(meter: "Meter", odd: OddInput, sizes: dict[str, int]) -> dict[str, Any]:
    row: dict[str, Any] = {"input": odd.name}
    flags: list[str] = []
    cost_before = 0.0
    for name, size in sizes.items():
        if cost_before * size > _MAX_PREDICTED_US:
            break
        cost, health_ms, outcome = meter.cost(odd, size - _ENVELOPE, _REPEATS.get(name, 1))
        row |= {f"{name}_us_per_byte": round(cost, 3), f"{name}_health_ms": round(health_ms, 1)}
        row["outcome"] = outcome
        if cost > _MAX_US_PER_BYTE:
            flags.append(f"{name}: {cost:.1f} us a byte")
        # A small cost is noise, and of a small body it is that of a request.
        if cost_before and cost > _MAX_GROWTH * max(cost_before, _MAX_US_PER_BYTE / 10):
            flags.append(f"{name}: {cost / cost_before:.1f} times as much a byte as before")
        if health_ms > _MAX_HEALTH_MS:
            flags.append(f"{name}: /health waited {health_ms:.0f} ms")
        cost_before = cost
    return {**row, "flags": flags}


class Meter:
    """Measure requests to a proxy, while another client asks for its health.

    Args:
        proxy: to measure.
    """

    def __init__(self, proxy: RecordedProxy) -> None:
        self._proxy = proxy
        self._num_sent = 0
        proxy.post(_body("warm up", "user", 0))
        started = proxy.target.cpu_ns()
        for _ in range(_HEALTH_SAMPLES):
            proxy.is_healthy()
        self._health_ns = (proxy.target.cpu_ns() - started) / _HEALTH_SAMPLES

    def cost(self, odd: OddInput, size: int, repeats: int) -> tuple[float, float, str]:
        """Return microseconds of processor time a byte, the worst health in ms, and the outcome.

        Each repeat is another text and another tenant, so that nothing is remembered; the least of
        the repeats counts.
        """
        best, health_ms, outcome = float("inf"), float("inf"), ""
        for _ in range(repeats):
            self._num_sent += 1
            body = _body(odd.write(size - 64 * (self._num_sent % 32)), odd.role, self._num_sent)
            started = self._proxy.target.cpu_ns()
            with self._polling() as waits_ms:
                key = f"tenant-{self._num_sent}"
                outcome = self._proxy.post(body, key=key, timeout_s=900).outcome
            spent = self._proxy.target.cpu_ns() - started - self._health_ns * len(waits_ms)
            best = min(best, spent / 1e3 / len(body))
            health_ms = min(health_ms, max(waits_ms))
        return best, health_ms, outcome

    @contextlib.contextmanager
    def _polling(self) -> Iterator[list[float]]:
        """Ask for the health again and again; the waits are complete behind the block."""
        waits_ms: list[float] = []
        is_over = threading.Event()

        def poll() -> None:
            while True:
                started = time.perf_counter()
                self._proxy.is_healthy(timeout_s=900)
                waits_ms.append((time.perf_counter() - started) * 1e3)
                if is_over.wait(_POLL_S):
                    return

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield waits_ms
        finally:
            is_over.set()
            thread.join()


def _body(text: str, role: str, number: int) -> bytes:
    system = {"role": "system", "content": f"Number {number}."}
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": text}]
    if role == "tool":
        asked = {"role": "user", "content": "Why?"}
        function = {"name": "find", "arguments": "{}"}
        calls = [{"id": "c1", "type": "function", "function": function}]
        called = {"role": "assistant", "content": None, "tool_calls": calls}
        messages = [system, asked, called, {"role": "tool", "tool_call_id": "c1", "content": text}]
    return json.dumps({"model": "m", "messages": messages}).encode()


def show(result: dict[str, Any]) -> None:
    columns = [name for name in max(result["rows"], key=len) if name != "flags"]
    rows = [{name: row.get(name, "") for name in columns} for row in result["rows"]]
    show_rows(rows, f"{result['flagged']} of {result['inputs']} flagged")
    for row in result["rows"]:
        for flag in row["flags"]:
            print(f"{row['input']}: {flag}")


if __name__ == "__main__":
    main()
