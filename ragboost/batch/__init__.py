"""The offline job: order the documents of a file of requests, and the requests; runs no model."""

from ragboost.batch.job import RejectedLinesError, run_batch
from ragboost.batch.summary import BatchSummary

__all__ = ["BatchSummary", "RejectedLinesError", "run_batch"]
