"""Find which of several context indexes hold a prefix, by one search for all of them.

A radix tree over the documents of all indexes of a tenant, with a bit per index on each run.
Tokens, ages and eviction are the indexes' own: they say what they insert and remove. Not
thread-safe.
"""

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ragboost.index.node import Branch, RetiredTree, common_length, unlink_all
from ragboost.util.bounded_map import Generations


class Clearings:
    """A record has a bit per member, and the tick of its last change; ticks never fall.

    Not every bit counts: a member that was cleared at that tick or later has left the record.
    """

    __slots__ = ("_ticks", "last")

    def __init__(self) -> None:
        self.last = -1  # records of later ticks count as they are
        self._ticks: dict[int, int] = {}  # by bit

    def add(self, bit: int, tick: int) -> None:
        self._ticks[bit] = self.last = tick

    def live(self, members: int, tick: int) -> int:
        """Return the members of a record that are still in it."""
        if tick <= self.last:
            for bit, cleared in self._ticks.items():
                if tick <= cleared:
                    members &= ~bit
        return members


# Documents, in all and distinct, after which those of earlier sequences begin to be forgotten.
_RECENT_PER_INDEX = 720
_MAX_RECENT = 50_000


class Holders(NamedTuple):
    """The indexes that hold a prefix of so many tokens, and none that is longer."""

    tokens: int
    members: int  # a bit per index


class PrefixDirectory:
    """The prefixes of all indexes of a tenant, and the documents that each was lately sent.

    An index is known by a bit of its own. One search compares at most `max_visits` branches.
    """

    def __init__(self, *, max_visits: int = 32) -> None:
        self.root = Branch((), parent=None)
        self.max_visits = max_visits
        self._tick = 1
        self._clearings = Clearings()
        self._recent: Generations[Hashable, int] = Generations()  # the indexes sent a document
        self._num_recent = 0  # documents sent since its last turn
        self._members = 0
        self.retired: list[RetiredTree] = []  # of its indexes, which take them apart

    def __del__(self) -> None:
        branches = [self.root]  # parents and children refer to each other
        while branches:
            branch = branches.pop()
            branches.extend(branch.children.values())
            branch.parent, branch.children = None, {}
        unlink_all([node for tree in self.retired for node in tree.nodes])

    def search(self, documents: Sequence[Hashable], tokens: Sequence[int]) -> list[Holders]:
        """Find for each index the longest prefix that consists of the request's documents.

        Longest match first; what `max_visits` leaves out is found only up to there. The prefix may
        be resident in part, or about to be evicted; the index's own search says so.
        """
        length = dict(zip(documents, tokens, strict=True))
        last_cleared, max_visits = self._clearings.last, self.max_visits
        found: list[tuple[int, int]] = []
        frontier = [(0, 0, self.root)]
        visits = num_pushed = 0
        while frontier and visits < max_visits:
            visits += 1
            negative, _, branch = heappop(frontier)
            children = branch.children
            if len(children) > len(length):
                starts = [document for document in documents if document in children]
            else:
                starts = [document for document in children if document in length]
            for start in starts:
                child = children[start]
                members = child.members if child.tick > last_cleared else self._live(child)
                if not members:
                    continue
                matched = -negative
                for document in child.documents:
                    if document not in length:
                        break
                    matched += length[document]
                else:
                    if child.children:
                        num_pushed += 1
                        heappush(frontier, (-matched, num_pushed, child))
                found.append((matched, members))
        return _longest(found)

    def search_in_order(
        self, documents: Sequence[Hashable], tokens: Sequence[int]
    ) -> list[Holders]:
        """Find for each index how much it holds of a sequence in its given order."""
        found: list[tuple[int, int]] = []
        branch, at, matched = self.root, 0, 0
        while at < len(documents) and (child := branch.children.get(documents[at])) is not None:
            count = common_length(child.documents, documents, at)
            matched += sum(tokens[at : at + count])
            found.append((matched, self._live(child)))
            if count < len(child.documents):
                break
            branch, at = child, at + count
        return _longest(found)

    def recent(self, documents: Sequence[Hashable]) -> list[int]:
        """Return for each document the indexes that were lately sent it, wherever it stood."""
        newer, older = self._recent.newer.get, self._recent.older.get
        return [newer(document, 0) | older(document, 0) for document in documents]

    def note(self, documents: Sequence[Hashable], bit: int) -> None:
        """Note that an index is sent these documents."""
        self._members |= bit
        self._num_recent += len(documents)
        max_recent = _RECENT_PER_INDEX * self._members.bit_count()
        if self._num_recent > max_recent or len(self._recent.newer) > _MAX_RECENT:
            self._recent.turn()
            self._num_recent = 0
        recent = self._recent.newer
        for document in documents:
            recent[document] = recent.get(document, 0) | bit

    def forget(self, bit: int) -> None:
        """Forget what an index was lately sent: its backend is gone."""
        self._members &= ~bit
        self._recent.newer, self._recent.older = (
            {document: others for document, members in sent.items() if (others := members & ~bit)}
            for sent in (self._recent.newer, self._recent.older)
        )

    def add(self, above: Branch, documents: Sequence[Hashable], bit: int) -> Branch:
        """Add a sequence of an index behind one that it holds; return the branch where it ends."""
        self._tick += 1
        branch, at = above, 0
        while at < len(documents):
            child = branch.children.get(documents[at])
            if child is None:
                rest = tuple(documents[at:])
                child = Branch(rest, parent=branch, members=bit, tick=self._tick)
                branch.children[rest[0]] = child
                return child
            count = common_length(child.documents, documents, at)
            if count < len(child.documents):
                child = child.split(count)
            child.members, child.tick = self._live(child) | bit, self._tick
            branch, at = child, at + count
        return branch

    def end_before(self, branch: Branch, num_documents: int) -> Branch:
        """Return the branch that ends so many documents before the end of another one."""
        while num_documents >= len(branch.documents):
            num_documents -= len(branch.documents)
            assert branch.parent is not None, "a sequence begins at the root"
            branch = branch.parent
        return branch.split(len(branch.documents) - num_documents) if num_documents else branch

    def remove(
        self, branch: Branch, num_documents: int, bit: int, *, cleared: int | None = None
    ) -> None:
        """Take the last documents of a sequence, which ends at a branch, from an index; `cleared`
        is the tick at which that was cleared, for a sequence that it held then."""
        while num_documents > 0:
            num_documents -= len(branch.documents)
            parent = branch.parent
            assert parent is not None, "the root is never removed"
            if cleared is None or branch.tick <= cleared:  # else it was taken when others came
                branch.members &= ~bit
            if not branch.members and parent.children.get(branch.documents[0]) is branch:
                del parent.children[branch.documents[0]]
            branch = parent

    def clear(self, bit: int) -> int:
        """Forget what an index holds, in the same time for any amount; return the tick for
        `remove`, which has to be called for what it held."""
        self._clearings.add(bit, self._tick)
        self._tick += 1
        return self._clearings.last

    def _live(self, branch: Branch) -> int:
        return self._clearings.live(branch.members, branch.tick)


def _longest(found: list[tuple[int, int]]) -> list[Holders]:
    """Keep for each index its longest prefix; longest first."""
    holders, seen = [], 0
    for tokens, members in sorted(found, reverse=True):
        if new := members & ~seen:
            holders.append(Holders(tokens, new))
            seen |= new
    return holders
