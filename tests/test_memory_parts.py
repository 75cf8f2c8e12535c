"""One number bounds what all parts of a proxy may take."""

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.config import Settings
from ragboost.config.memory import NODE_BYTES, PROCESS_BYTES, MemoryParts
from ragboost.types import Document


def test_the_parts_fit_into_the_memory_together() -> None:
    for memory_bytes in (PROCESS_BYTES, 512 << 20, 2 << 30):
        parts = MemoryParts.of(memory_bytes)
        caches = parts.prompts + parts.evidence + parts.uncounted + parts.texts
        kept = 2 * parts.conversations + parts.chat_sessions + NODE_BYTES * parts.nodes
        spare = memory_bytes - PROCESS_BYTES
        assert 4 * parts.bodies + caches + kept <= 0.9 * spare


def test_indexes_of_tenants_that_are_not_used_make_room() -> None:
    tenants = Tenants(Settings(proxy={"memory_bytes": PROCESS_BYTES + 8 * NODE_BYTES * 100}))
    for number in range(40):
        for _ in range(2):  # it counts when it is used next
            tenant = tenants.get(TenantKey(f"model-{number}", ""))
            for at in range(10):
                documents = [Document(f"{number} {at} {i}") for i in range(3)]
                tenant.booster("backend").boost("", documents)
    assert 0 < tenants.num_nodes <= 100 + 20
    assert tenants.find(TenantKey("model-39", "")) is not None
