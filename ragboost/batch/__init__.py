"""The offline job: order the documents of a file of requests, and the requests; runs no model."""

from ragboost.batch.job import BatchSummary, RejectedLinesError, run_batch

__all__ = ["BatchSummary", "RejectedLinesError", "run_batch"]
