"""The demo: a RAG workload with real text and real servers, plain beside boosted."""

from ragboost.evaluation.demo.run import run_demo

__all__ = ["run_demo"]
