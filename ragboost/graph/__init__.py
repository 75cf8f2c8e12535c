"""A knowledge graph for questions: load triplets, find the subgraphs of a question, keep the best
paths, write them for a model."""

from ragboost.graph.load import read_triplets, triplets_from_langchain
from ragboost.graph.retrieve import GraphRetriever, LexicalScorer, PathScorer, Subgraph, best_paths
from ragboost.graph.store import GraphStore
from ragboost.graph.triplets import RelationPath, Triplet, path_segments, path_text

__all__ = [
    "GraphRetriever",
    "GraphStore",
    "LexicalScorer",
    "PathScorer",
    "RelationPath",
    "Subgraph",
    "Triplet",
    "best_paths",
    "path_segments",
    "path_text",
    "read_triplets",
    "triplets_from_langchain",
]
