"""Know which documents of a corpus are retrieved together before any request has come.

Holds imagined contexts: what a retriever finds for passages of the corpus. Knows documents as keys.
Does not know texts or retrievers.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ragboost.errors import ConfigError, RequestError
from ragboost.types import named_key

_FORMAT = "ragboost prior 1"


class CorpusPrior:
    """Imagined contexts over the documents of a corpus.

    Args:
        names: for each document, the keys under which requests may carry it.
        contexts: for each context, positions in `names`.
    """

    def __init__(self, names: Sequence[Sequence[str]], contexts: Sequence[Sequence[int]]) -> None:
        self._names = names
        self._documents = contexts
        holders: list[list[int]] = [[] for _ in names]
        for context, documents in enumerate(contexts):
            for document in documents:
                holders[document].append(context)
        self.contexts = frozenset(range(len(contexts)))
        self._holders: dict[Hashable, frozenset[int]] = {}
        for keys, positions in zip(names, holders, strict=True):
            self._holders.update(dict.fromkeys(keys, frozenset(positions)))

    def __repr__(self) -> str:
        return f"CorpusPrior({len(self._names)} documents, {len(self.contexts)} contexts)"

    def holders(self, element: Hashable) -> frozenset[int]:
        """Return the contexts that hold a document, which a context index may name."""
        return self._holders.get(named_key(element), _NONE)

    def behind(self, prefix: Iterable[Hashable]) -> frozenset[int]:
        common = self.contexts
        for element in prefix:
            common &= self.holders(element)
        return common

    @classmethod
    def read(cls, path: Path) -> "CorpusPrior":
        try:
            value: Any = json.loads(path.read_bytes())
            if value["format"] != _FORMAT:
                raise ValueError(value["format"])
            return cls(value["documents"], value["contexts"])
        except OSError as error:
            raise ConfigError(f"ordering.prior: cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise ConfigError(
                f"ordering.prior: {path} is not a file that `ragboost warm` wrote"
            ) from None

    def write(self, path: Path) -> None:
        value = {"format": _FORMAT, "documents": self._names, "contexts": self._documents}
        try:
            path.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
        except OSError as error:
            raise RequestError(f"cannot write {path}: {error.strerror}") from None


_NONE: frozenset[int] = frozenset()
