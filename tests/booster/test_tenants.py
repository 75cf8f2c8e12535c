"""Tenants are bounded, and users are told apart by their credentials."""

import asyncio

from ragboost.booster.tenants import Tenant, TenantKey, Tenants
from ragboost.config import Settings
from ragboost.requests.headers import user_of


def test_the_least_recently_used_tenants_are_evicted_first() -> None:
    tenants = Tenants(Settings(), max_tenants=2)
    first = tenants.get(TenantKey("a", ""))
    tenants.get(TenantKey("b", ""))
    assert tenants.get(TenantKey("a", "")) is first
    tenants.get(TenantKey("c", ""))
    assert (len(tenants), tenants.get(TenantKey("a", "")) is first) == (2, True)


def test_users_are_told_apart_by_all_their_credentials() -> None:
    headers = [
        [],
        [(b"authorization", b"a")],
        [(b"x-api-key", b"a")],
        [(b"api-key", b"a")],
        [(b"authorization", b"a"), (b"x-api-key", b"b")],
        [(b"authorization", b"b")],
    ]
    assert len({user_of(each) for each in headers}) == len(headers)
    assert user_of([(b"x-other", b"z")]) == user_of([])


class _InterruptedTenant(Tenant):
    """The event loop forgets the backend `a` once, after a thread has cleaned up the directory."""

    is_interrupted = False

    def _leave_directory(self) -> None:
        super()._leave_directory()
        if self.is_interrupted:
            self.is_interrupted = False
            self.forget("a")


async def test_no_two_indexes_have_one_bit_when_a_backend_is_forgotten_beside_a_thread() -> None:
    tenant = _InterruptedTenant(TenantKey("m", ""), Settings(), numbers={})
    async with tenant.lock:  # as held for the thread
        before = tenant.booster("a")
        before.boost("q", ["x", "y"])
        tenant.is_interrupted = True
        after = await asyncio.to_thread(tenant.booster, "a")
        assert after is before or before.index.root.branch is None

        tenant.forget("a")
        last = tenant.booster("a")
        assert before.index.root.branch is None
        last.boost("q", ["x", "z"])
        assert [each.members for each in tenant.residents(["x", "z"]).cached] == [1]


def test_a_number_is_given_again_when_its_backend_is_removed() -> None:
    tenants = Tenants(Settings.model_validate({"backends": [{"url": "http://a"}] * 2}))
    tenant = tenants.get(TenantKey("m", ""))
    tenant.booster("a").boost("q", ["x", "y"])
    tenant.booster("b")
    tenants.remove("a")
    tenant.booster("c").boost("q", ["z", "w"])
    assert tenants.numbers == {"b": 1, "c": 0}
    assert [bool(tenant.residents([document]).cached) for document in "xz"] == [False, True]
