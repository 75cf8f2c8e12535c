"""Thin retrievers behind one protocol, for the command line, the demo and the benchmarks."""

from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.integrations.retrieval.retriever import BM25Retriever, DenseRetriever, Retriever

__all__ = ["BM25Retriever", "Corpus", "DenseRetriever", "Retriever"]
