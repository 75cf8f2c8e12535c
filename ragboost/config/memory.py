"""Divide the memory of a process among its parts: docs/sizing.md has the same table."""

from typing import NamedTuple

MIB = 1 << 20
PROCESS_BYTES = 128 * MIB  # of a proxy that has served a few requests
NODE_BYTES = 800  # of a context index


class MemoryParts(NamedTuple):
    """Bounds of what grows with traffic. A seventh is left for the allocator."""

    bodies: int  # of running requests, as they arrive: each takes about four times its length
    conversations: int  # as they were sent: once for those with a name, once for those without
    chat_sessions: int  # turns of the chat-session API
    prompts: int  # that are compared with the next request, over all teams
    evidence: int  # digests of lines, of all tenants
    uncounted: int  # texts whose tokens are still to be counted
    texts: int  # of the latest documents
    nodes: int  # of the context indexes

    @classmethod
    def of(cls, memory_bytes: int) -> "MemoryParts":
        spare = max(memory_bytes - PROCESS_BYTES, 0)
        eighth, small = spare // 8, spare // 32
        bodies, nodes = spare // 16, eighth // NODE_BYTES
        return cls(bodies, eighth, eighth, small, small, small, spare // 64, nodes)
