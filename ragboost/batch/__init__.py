"""The offline job: order the documents of a whole file of requests, and the requests themselves.

JSONL in, JSONL out, same line format, new line order. Never runs a model.
"""

from ragboost.batch.checkpoint import RejectedLinesError
from ragboost.batch.job import run_batch
from ragboost.batch.summary import BatchSummary

__all__ = ["BatchSummary", "RejectedLinesError", "run_batch"]
