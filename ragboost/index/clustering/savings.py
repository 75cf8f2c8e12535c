"""Cluster by saved tokens: merge the pair whose common documents are longest.

With an unbounded prefix cache, the prefill saved is the sum over merges of the tokens that both
sides share, so this is greedy on the true objective. Merging never increases an overlap, so pairs
that are each other's best partner can be merged in any order: rounds of vectorised nearest-partner
searches produce the tree of the sequential greedy algorithm. Knows arrays only.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ragboost.index.clustering.clusters import Ints, Merges

Floats = NDArray[np.float32]

_LOSS_WEIGHT = 0.04  # of the tokens that the smaller side loses; measured in docs/lab/ordering.md
_CANDIDATES = 4  # partners remembered per cluster
_BLOCK_CELLS = 1 << 20  # cells of the overlap matrix computed at a time
_DENSE_SHARE = 1 / 14  # documents in more contexts than this are handled by the matrix product
_DENSE_LIMIT = 96
# Late rounds have few mutual pairs. If a round would merge less than this share of the clusters,
# the best-scored twentieth of the choices is merged as well: less than a thousandth is lost.
_SLOW_ROUND = 0.01
_SLOW_ROUND_SHARE = 0.05


def merge(documents: NDArray[np.int32], tokens: Ints) -> Merges:
    """Merge greedily by saved tokens until no two clusters share a document.

    Time grows with the square of the number of contexts. `documents` are (contexts, width) numbers,
    padded with -1; low numbers are frequent.
    """
    with threadpool_limits(
        limits=1, user_api="blas"
    ):  # the products are small: threads would only spin
        return _Agglomeration(documents, tokens).run()


class _Agglomeration:
    """State of the clustering. Clusters are numbered: contexts first, merged ones after them."""

    def __init__(self, documents: NDArray[np.int32], tokens: Ints) -> None:
        count, width = documents.shape
        self.num_contexts = self.num_clusters = count
        self.shared = np.full((2 * count, width), -1, dtype=np.int32)
        self.shared[:count] = documents
        # Integers below 2**24 are exact in float32 in any order of summation, which makes overlap
        # exactly symmetric; longer contexts are scaled down.
        scale = max(1.0, float(tokens.max(initial=1)) * width / 2**22)
        self.tokens = np.append(np.maximum(1, np.round(tokens / scale)), 0).astype(np.float32)
        self.size = np.zeros(2 * count, dtype=np.float32)
        self.size[:count] = self.tokens[documents].sum(axis=1)
        self.frequency = np.bincount(documents[documents >= 0], minlength=len(tokens))
        self.num_dense = min(
            _DENSE_LIMIT, int((self.frequency > max(count * _DENSE_SHARE, 8)).sum())
        )
        self.dense = np.zeros((2 * count, self.num_dense), dtype=np.float32)
        self._fill_dense(np.arange(count))
        self.heir = np.full(2 * count, -1)  # the cluster into which a dead one was merged
        self.left = np.full(2 * count, -1)
        self.right = np.full(2 * count, -1)
        self.is_alive = np.zeros(2 * count, dtype=bool)
        self.is_alive[:count] = True
        self.partners = np.full((2 * count, _CANDIDATES), -1)
        self.overlaps = np.zeros((2 * count, _CANDIDATES), dtype=np.float32)
        self.scores = np.full((2 * count, _CANDIDATES), -np.inf, dtype=np.float32)
        # No cluster outside the partner list overlaps by more than this.
        self.bound = np.zeros(2 * count, dtype=np.float32)
        self.jitter = np.random.default_rng(0).random(2 * count, dtype=np.float32)

    def run(self) -> Merges:
        """Merge in rounds; each round merges all pairs that the sequential order would."""
        alive = np.arange(self.num_contexts)
        stale = alive
        while len(alive) > 1:
            self._find_partners(stale, alive)
            best = self.scores[alive].argmax(axis=1)
            has_partner = np.isfinite(self.scores[alive, best])
            self.is_alive[alive[~has_partner]] = False
            alive, best = alive[has_partner], best[has_partner]
            if not len(alive):
                break
            merged = self._merge_round(alive, best)
            alive = alive[self.is_alive[alive]]
            self._replace_dead_partners(alive)
            lost = alive[self.overlaps[alive].max(axis=1) < self.bound[alive]]
            alive = np.concatenate([alive, merged])
            stale = np.concatenate([lost, merged])
        made = slice(self.num_contexts, self.num_clusters)
        return Merges(self.left[made], self.right[made], self.shared[made])

    def _merge_round(self, alive: Ints, best: Ints) -> Ints:
        """Merge all pairs that can be merged independently; return the new clusters.

        A partner that is a subset of a cluster loses nothing by merging, so it absorbs all clusters
        that chose it at once. Of the others, those that chose each other merge.
        """
        choice = np.full(self.num_clusters, -1)
        choice[alive] = self.partners[alive, best]
        overlap = self.overlaps[alive, best]
        is_taken = np.zeros(self.num_clusters, dtype=bool)
        is_taken[alive] = overlap == self.size[choice[alive]]
        chain = is_taken[choice[alive]]  # the partner is absorbed as well: only for equal sets
        mutual = choice[choice[alive]] == alive
        is_taken[alive] &= ~chain | (mutual & (alive > choice[alive]))
        taken = alive[is_taken[alive] & ~is_taken[choice[alive]]]
        hubs = choice[taken]
        is_busy = np.zeros(self.num_clusters, dtype=bool)
        is_busy[taken] = is_busy[hubs] = True
        pair = mutual & (alive < choice[alive]) & ~is_busy[alive] & ~is_busy[choice[alive]]
        first = alive[pair]
        if len(first) + len(taken) < len(alive) * _SLOW_ROUND:
            first = self._match(alive, best, choice, is_busy)
        return np.concatenate([self._merge_pairs(first, choice[first]), self._absorb(hubs, taken)])

    def _match(self, alive: Ints, best: Ints, choice: Ints, is_busy: NDArray[np.bool_]) -> Ints:
        """Pair clusters with the partners they chose, best scores first, each cluster once."""
        score = self.scores[alive, best]
        order = np.argsort(-score, kind="stable")
        order = order[: max(1, int(len(order) * _SLOW_ROUND_SHARE))]
        first = []
        for cluster in alive[order].tolist():
            partner = choice[cluster]
            if not is_busy[cluster] and not is_busy[partner]:
                is_busy[cluster] = is_busy[partner] = True
                first.append(cluster)
        return np.array(first, dtype=np.int64)

    def _merge_pairs(self, first: Ints, second: Ints) -> Ints:
        merged = self._make(len(first))
        common = _intersect(self.shared[first], self.shared[second])
        self.shared[merged] = common
        self.size[merged] = self.tokens[common].sum(axis=1)
        self.left[merged], self.right[merged] = first, second
        self.heir[first] = self.heir[second] = merged
        self._settle(np.concatenate([first, second]), merged)
        return merged

    def _absorb(self, hubs: Ints, taken: Ints) -> Ints:
        """Merge each of `taken` into its hub, one below the other; return the topmost clusters."""
        order = np.argsort(hubs, kind="stable")
        hubs, taken = hubs[order], taken[order]
        merged = self._make(len(hubs))
        is_first = np.ones(len(hubs), dtype=bool)
        is_first[1:] = hubs[1:] != hubs[:-1]
        is_last = np.append(is_first[1:], True)[: len(hubs)]
        top = merged[is_last][np.cumsum(is_first) - 1] if len(hubs) else merged
        self.shared[merged] = self.shared[hubs]
        self.size[merged] = self.size[hubs]
        self.left[merged] = np.where(is_first, hubs, merged - 1)
        self.right[merged] = taken
        self.heir[hubs] = self.heir[taken] = top
        self._settle(np.concatenate([hubs, taken]), merged[is_last])
        topmost: Ints = merged[is_last]
        return topmost

    def _make(self, count: int) -> Ints:
        made = np.arange(self.num_clusters, self.num_clusters + count)
        self.num_clusters += count
        return made

    def _settle(self, parts: Ints, merged: Ints) -> None:
        self.is_alive[parts] = False
        self.is_alive[merged] = True
        self._fill_dense(merged)

    def _fill_dense(self, clusters: Ints) -> None:
        documents = self.shared[clusters]
        row, column = np.nonzero((documents >= 0) & (documents < self.num_dense))
        self.dense[clusters[row], documents[row, column]] = 1.0

    def _score(self, a: Ints, b: Ints, overlap: Floats) -> Floats:
        """Score pairs by saved tokens less a share of the smaller side's loss.

        Ties go to the nearest in a fixed random order, so that equal clusters pair up instead of
        all choosing the same one.
        """
        loss = np.minimum(self.size[a], self.size[b]) - overlap
        score = overlap - _LOSS_WEIGHT * loss - 0.01 * np.abs(self.jitter[a] - self.jitter[b])
        return np.where(overlap > 0, score, -np.inf).astype(np.float32)

    def _replace_dead_partners(self, alive: Ints) -> None:
        """Replace partners that were merged by the merged cluster, with its overlap."""
        partners = self.partners[alive]
        row, column = np.nonzero((partners >= 0) & ~self.is_alive[partners])
        if not len(row):
            return
        cluster, heir = alive[row], self.heir[partners[row, column]]
        common = _intersect(self.shared[cluster], self.shared[heir])
        overlap = self.tokens[common].sum(axis=1)
        self.partners[cluster, column] = heir
        self.overlaps[cluster, column] = overlap
        self.scores[cluster, column] = self._score(cluster, heir, overlap)

    def _find_partners(self, stale: Ints, alive: Ints) -> None:
        if not len(stale):
            return
        postings = _Postings(self.shared[alive], self.num_dense, len(self.tokens))
        columns = np.ascontiguousarray(self.dense[alive].T)
        place = np.full(self.num_clusters, -1)
        place[alive] = np.arange(len(alive))
        step = max(1, _BLOCK_CELLS // len(alive))
        for start in range(0, len(stale), step):
            part = stale[start : start + step]
            if self.num_dense:
                overlap = (self.dense[part] * self.tokens[: self.num_dense]) @ columns
            else:
                overlap = np.zeros((len(part), len(alive)), dtype=np.float32)
            postings.add_overlaps(self.shared[part], self.tokens, overlap)
            self._keep_best(part, alive, overlap, place[part])

    def _keep_best(self, part: Ints, alive: Ints, overlap: Floats, own: Ints) -> None:
        rows = np.arange(len(part))
        overlap[rows, own] = -1.0
        for rank in range(_CANDIDATES):
            column = overlap.argmax(axis=1)
            self.partners[part, rank] = alive[column]
            self.overlaps[part, rank] = overlap[rows, column]
            overlap[rows, column] = -1.0
        found = self.overlaps[part]
        self.bound[part] = np.maximum(found[:, -1], 0.5)
        a = np.broadcast_to(part[:, None], found.shape)
        self.scores[part] = self._score(a, self.partners[part], found)


class _Postings:
    """An inverted index: the clusters that hold each of the rarer documents."""

    def __init__(self, shared: NDArray[np.int32], num_dense: int, num_documents: int) -> None:
        self.num_dense = num_dense
        holder, column = np.nonzero(shared >= num_dense)
        documents = shared[holder, column]
        order = np.argsort(documents, kind="stable")
        self.holders = holder[order]
        self.starts = np.searchsorted(documents[order], np.arange(num_documents + 1))

    def add_overlaps(self, shared: NDArray[np.int32], tokens: Floats, overlap: Floats) -> None:
        """Add the tokens of each document to the cells (row, holder) that share it."""
        row, column = np.nonzero(shared >= self.num_dense)
        documents = shared[row, column]
        first = self.starts[documents]
        count = self.starts[documents + 1] - first
        total = int(count.sum())
        if not total:
            return
        before = np.concatenate(([0], np.cumsum(count)[:-1]))
        holder = self.holders[np.repeat(first - before, count) + np.arange(total)]
        cells = np.repeat(row * overlap.shape[1], count) + holder
        np.add.at(overlap.reshape(-1), cells, np.repeat(tokens[documents], count))


def _intersect(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.int32]:
    """Replace the documents of each row of `a` that the row of `b` lacks by -1."""
    if a.shape[1] <= 32:
        common = (a[:, :, None] == b[:, None, :]).any(axis=2) & (a >= 0)
    else:  # by sorting: all pairs would be too many
        row = np.arange(len(a), dtype=np.int64)[:, None] << 32
        common = np.isin(row + a, (row + b)[b >= 0]) & (a >= 0)
    return np.where(common, a, np.int32(-1))
