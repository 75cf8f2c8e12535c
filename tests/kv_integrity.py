"""Invariants of the caches of KV, checked from outside."""

from collections import Counter

from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.engine.runtime.prefix_cache import BlockCache
from ragboost.graph.tree_cache import TreeCache, _below


def check_store(store: TieredStore) -> None:
    memory = store.memory
    with store._lock:  # loading threads may add chunks
        total = sum(chunk.size_bytes for _, chunk in memory.items())
        assert total == memory.size_bytes <= memory.capacity_bytes


def check_tree(tree: TreeCache) -> None:
    rows = [*tree._free]
    for root in tree._trees.values():
        assert root.children, "a tree without paths is kept"
        for node in _below(root):
            rows += node.rows
            assert len(node.rows) == len(node.tokens) > 0
            assert node.parent is not None
            assert node.parent.children.get(node.tokens[0]) is node
    assert sorted(rows) == list(range(tree.num_rows)), "rows are lost or doubled"


def check_blocks(cache: BlockCache) -> None:
    blocks = list(cache._blocks.values())
    assert len(blocks) <= cache.num_blocks, f"{len(blocks)} blocks in {cache.num_blocks} slots"
    slots = sorted([*cache._free, *(block.slot for block in blocks)])
    assert slots == list(range(cache.num_blocks)), f"slots lost or doubled: {slots}"
    children = Counter(block.parent.key for block in blocks if block.parent is not None)
    for block in blocks:
        if block.parent is not None:
            assert cache.holds(block.parent), f"slot {block.slot} outlived its parent"
            is_older = block.parent.last_used < block.last_used
            assert block.num_users or not is_older, "parent is older than its free child"
            assert block.parent.num_users >= block.num_users, "child held, parent free"
        counted = children[block.key]
        assert block.num_children == counted, (block.slot, block.num_children, counted)
        assert block.num_users >= 0, (block.slot, block.num_users)
