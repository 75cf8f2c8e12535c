"""Plan a Ray Data job so that rows with a shared prefix follow each other.

Knows datasets of questions with documents. Runs no model.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from ragboost.errors import import_extra
from ragboost.types import Request

if TYPE_CHECKING:
    from ray.data import Dataset


def boosted(
    dataset: "Dataset",
    *,
    question: str = "question",
    documents: str = "documents",
    system: str | None = None,
    settings: Settings | None = None,
    num_blocks: int = 1,
) -> "Dataset":
    """Plan all rows together and return them in release order, with the messages to send.

    The driver holds all rows in memory to find the documents that they share. Rows keep their
    columns and get `messages`, for `ray.data.llm.build_processor`, and `request_index`, their
    position in `dataset`.

    Args:
        dataset: one question per row with its documents, most relevant first: texts, or objects
            with the fields of `ragboost.Document`.
        question: column of the question.
        documents: column of the documents.
        system: the system prompt; None for no system message.
        settings: None for the defaults.
        num_blocks: blocks of consecutive rows; the number of engine replicas.

    Raises:
        MissingExtraError: ray is not installed.
        InvalidDocumentError, RequestError: a row is invalid.
    """
    ray_data: Any = import_extra("ray.data", extra="ray")
    rows = dataset.take_all()
    requests = [Request(row[question], tuple(map(_plain, row[documents]))) for row in rows]
    plan = Booster(settings).boost_batch(requests)
    planned = [
        {**rows[at], "messages": context.messages(system=system), "request_index": at}
        for at, context in zip(plan.order, plan.contexts, strict=True)
    ]
    return ray_data.from_items(planned, override_num_blocks=min(num_blocks, max(len(planned), 1)))


def _plain(document: Any) -> Any:
    """Drop the None fields that a column of objects adds to rows without them."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if value is not None}
