"""Check clients' API keys.

Stores hashes, compares them in constant time, and writes no key into any message.
"""

import hashlib
import hmac
from collections.abc import Sequence

from pydantic import SecretStr

from ragboost.errors import RequestError
from ragboost.rewriting.headers import RawHeaders, get_header


class UnauthorizedError(RequestError):
    """The request has no API key, or a wrong one."""

    status = 401


class ApiKeys:
    """The accepted API keys; if there are none, every request is accepted."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        self._digests = [_digest(key.get_secret_value()) for key in keys]

    def check(self, headers: RawHeaders) -> None:
        """Look for an accepted key in `authorization: Bearer` or `x-api-key`.

        Raises:
            UnauthorizedError: there is none.
        """
        if not self._digests:
            return
        scheme, _, token = (get_header(headers, b"authorization") or "").partition(" ")
        candidates = [get_header(headers, b"x-api-key")]
        if scheme.lower() == "bearer":
            candidates.append(token.strip())
        given = [_digest(key) for key in candidates if key]
        matches = [hmac.compare_digest(one, two) for one in given for two in self._digests]
        if not any(matches):
            raise UnauthorizedError(
                "invalid API key" if given else "missing API key: send authorization: Bearer KEY"
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
