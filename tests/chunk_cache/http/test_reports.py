"""An engine's reports go to inboxes, and nowhere else; a request that names another is none of its
business."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq

from ragboost.chunk_cache.core.request import PromptReport, TokenOrigins
from ragboost.chunk_cache.http.reports import ReportSender

NAME = "ragboost-abcdefgh"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / NAME).mkdir()
    return tmp_path


@pytest.mark.parametrize("number", [10**30, -1, 1.5, "1", None])
def test_a_number_that_no_inbox_gives_is_ignored(folder: Path, number: Any) -> None:
    sender = ReportSender()
    sender.send([NAME, number], PromptReport(TokenOrigins(1)))
    sender.close()


def test_an_inbox_that_cannot_be_reached_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, address: str) -> None:
        raise zmq.ZMQError(msg="File name too long")

    monkeypatch.setattr(zmq.Socket, "connect", fail)
    sender = ReportSender()
    sender.send([NAME, 1], PromptReport(TokenOrigins(1)))
    sender.close()
