"""Plan a Ray Data job so that rows with a shared prefix follow each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragboost.booster.booster import Booster
from ragboost.config import Settings
from ragboost.errors import RequestError, import_extra
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
    window: int | None = None,
) -> "Dataset":
    """Plan rows together and return them in release order, with the messages to send.

    A row has a question and documents, most relevant first: texts, or objects with the fields of
    `ragboost.Document`. Without `window`, all rows are planned in the driver's memory, and returned
    in `num_blocks`, one for each engine replica. With it, so many rows at a time are planned in
    Ray's tasks; an error of a row is then inside Ray's own. Rows keep their columns and get
    `messages`, for `ray.data.llm.build_processor`, and `request_index`, their position in `dataset`
    or window.
    """
    ray_data: Any = import_extra("ray.data", extra="ray")

    def plan(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        requests = [Request(row[question], tuple(map(_plain, row[documents]))) for row in rows]
        planned = Booster(settings).boost_batch(requests)
        return [
            {**rows[at], "messages": context.messages(system=system), "request_index": at}
            for at, context in zip(planned.order, planned.contexts, strict=True)
        ]

    if window is None:
        rows = plan(dataset.take_all())
        return ray_data.from_items(rows, override_num_blocks=min(num_blocks, max(len(rows), 1)))
    if window < 1:
        raise RequestError(f"window must be at least 1, got {window}", param="window")

    def plan_table(table: Any) -> Any:
        return type(table).from_pylist(plan(table.to_pylist()))

    return dataset.map_batches(plan_table, batch_size=window, batch_format="pyarrow")


def _plain(document: Any) -> Any:
    """Drop the None fields that a column of objects adds to rows without them."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if value is not None}
