"""Choose the requests that are not boosted, so that both kinds can be compared.

Knows parsed requests. Does not know how they are forwarded or counted.
"""

import hashlib

from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.wires.registry import ANY


def choose_arm(request: ParsedRequest, *, share: float) -> None:
    """Put a request in an arm, unless there are no documents to boost, or no hold-out.

    One that is held out is not planned with others either. All requests of a conversation have one
    arm, in every process: it follows from the conversation's name, else from the tenant and the
    messages up to the first that is no instruction.

    Args:
        share: of the conversations that are boosted, from 0 to 1.
    """
    if share >= 1 or request.found is None or not request.is_boost_wanted:
        return
    names = [request.session] if request.session is not None else request.tenant_key
    parts = [name.encode("utf-8", "surrogatepass") for name in names]
    if request.session is None:
        parts += _beginning(request)
    digest = hashlib.sha256(b"\0".join(parts)).digest()
    request.is_boost_wanted = int.from_bytes(digest[:8], "big") < share * 2**64
    request.arm = "boosted" if request.is_boost_wanted else "held_out"


def _beginning(request: ParsedRequest) -> list[bytes]:
    """Return the part of a body that every later turn of its conversation resends."""
    body = request.body
    messages, digests = body.fields.get(body.list_name) or (), body.message_digests
    for at, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ANY.instruction_roles:
            return digests[: at + 1]
    return digests or [body.raw]
