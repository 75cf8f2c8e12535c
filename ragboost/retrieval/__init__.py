"""Documents of a corpus, as the command line reads them."""

from ragboost.retrieval.corpus import Corpus

__all__ = ["Corpus"]
