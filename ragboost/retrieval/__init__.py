"""Thin retrievers behind one protocol, for the command line, the demo and the benchmarks."""

from ragboost.retrieval.bm25 import BM25Retriever
from ragboost.retrieval.corpus import Corpus
from ragboost.retrieval.dense import DenseRetriever
from ragboost.retrieval.retriever import Retriever

__all__ = ["BM25Retriever", "Corpus", "DenseRetriever", "Retriever"]
