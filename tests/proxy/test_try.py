"""`ragboost doctor --try` and `--log`, as a user runs them."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.proxy import ProxyServer

ROOT = Path(__file__).parents[2]
TEXTS = [f"Document {name} tells of the {name} and of nothing else. " * 4 for name in "abc"]
TAGS = "".join(f"<passage>\n{text}\n</passage>\n" for text in TEXTS) + "\nWhy?"


def doctor(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "ragboost", "doctor", *arguments]
    environment = {**os.environ, "RAGBOOST_BACKEND__API_KEY": "hidden-key"}
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, env=environment)
    assert b"Traceback" not in done.stderr
    assert b"hidden-key" not in done.stdout + done.stderr
    return done


def body(text: str, **fields: Any) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "messages": [message], **fields}).encode()


def test_a_request_is_shown_without_a_backend(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_bytes(body(TAGS))

    done = doctor("--try", str(path))

    said = done.stdout.decode()
    assert done.returncode == 0
    assert "found: 3 documents to order in the frame <passage>" in said
    assert "Document b tells of the b" in said
    assert "sent, if a request had brought them in reverse order: 3, 2, 1" in said
    assert "the model is told:" in said
    assert "tokens of the texts:" in said


def test_a_request_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "request.json.gz"
    path.write_bytes(gzip.compress(body(TAGS)))
    assert doctor("--try", str(path)).returncode == 0
    path.write_bytes(gzip.compress(body(TAGS))[:-9])
    done = doctor("--try", str(path))
    assert done.returncode == 2
    assert b"cannot read" in done.stderr


def test_the_command_answers_as_the_route_does(proxy: ProxyServer) -> None:
    given = body(TAGS)
    done = doctor("--try", "-", "--json", given=given)
    answer = httpx.post(proxy.url + "/ragboost/explain", content=given)
    assert json.loads(done.stdout) == answer.json()


def test_where_nothing_is_found_it_says_why_and_what_helps() -> None:
    done = doctor("--try", "-", given=body("\n\n".join(text * 3 for text in TEXTS)))
    assert done.returncode == 1
    assert b"why: " in done.stdout
    assert b"what helps: put each document into a tag" in done.stdout


def test_no_text_reaches_the_terminal_as_a_command_to_it() -> None:
    odd = "\x1b]0;owned\x07 \x9b31m \u202e \x7f \r"
    texts = [TAGS.replace("Document", odd + "Document"), odd * 300]
    for text in texts:
        for option in ((), ("--json",)):
            said = doctor("--try", "-", *option, given=body(text)).stdout.decode()
            assert all(line.isprintable() for line in said.split("\n"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_request_may_have_any_encoding_of_json(encoding: str) -> None:
    done = doctor("--try", "-", given=body(TAGS).decode().encode(encoding))
    assert done.stdout.startswith(b"found: 3 documents")


def test_what_is_no_request_is_said_in_a_sentence(tmp_path: Path) -> None:
    binary = doctor("--try", "-", given=bytes(range(256)) * 10)
    assert (binary.returncode, binary.stdout.split(b":")[0]) == (1, b"malformed_body\nwhy")
    for path in (tmp_path, tmp_path / "none.json"):
        done = doctor("--try", str(path))
        assert done.returncode == 2
        assert b"--try: cannot read" in done.stderr
    both = doctor("--try", "-", "--backend", "http://127.0.0.1:1")
    assert both.returncode == 2
    assert b"--try reads a file" in both.stderr


def test_a_log_has_a_line_for_each_shape(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [body(f"{TAGS} {at}") for at in range(3)] + [body("Hello."), b'{"messages": [[]]}']
    row: dict[str, Any] = {
        "t_s": 1.0,
        "tenant": "t",
        "session": None,
        "head": "h",
        "head_tokens": 9,
        "doc_ids": ["a"],
        "doc_tokens": [9],
        "tail_tokens": 9,
    }
    recorded = [row, {**row, "detection": "found", "frame": "tags"}]
    lines += [json.dumps(each).encode() for each in recorded]
    path.write_bytes(b"\n".join(lines))

    said = doctor("--log", str(path)).stdout.decode().splitlines()
    report = json.loads(doctor("--log", str(path), "--json").stdout)

    assert "found (tags): 4 requests, 10 documents" in said
    assert any(line.startswith("no_documents: 2 requests; put each") for line in said)
    counted = {"detection": "found", "frame": "tags", "requests": 4, "documents": 10}
    assert counted in report["detections"]
