"""Plan a Ray Data job, so that rows which share a prefix follow each other.

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

    The plan is made in the driver's memory: documents that several rows share have to be known at
    one place. Rows keep their columns and get `messages`, for `ray.data.llm.build_processor`, and
    `request_index`, their place in `dataset`.

    Args:
        dataset: a question and its documents a row, most relevant first: texts, or objects as
            `ragboost.Document` reads them.
        question: column of the question.
        documents: column of the documents.
        system: the system prompt; None: no system message.
        settings: None: the defaults.
        num_blocks: neighbours stay together in one block; as many as there are engine replicas.

    Raises:
        MissingExtraError: ray is not installed.
        InvalidDocumentError, RequestError: a row is bad.
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
    """Columns of objects have all fields that any row has; those that are None are not there."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if value is not None}
