"""Keys of our own: of which a client must show one.

Keeps hashes, compares them in constant time, and names no key in any message.
"""

import hashlib
import hmac
from collections.abc import Sequence

from pydantic import SecretStr

from ragboost.errors import RequestError
from ragboost.rewriting.headers import RawHeaders, get_header


class UnauthorizedError(RequestError):
    """No key, or a wrong one."""

    status = 401


class ApiKeys:
    """The keys that are accepted; with none, everybody is let in."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        self._digests = [_digest(key.get_secret_value()) for key in keys]

    def check(self, headers: RawHeaders) -> None:
        """Look for a key in `authorization: Bearer` or `x-api-key`.

        Raises:
            UnauthorizedError: there is none that is accepted.
        """
        if not self._digests:
            return
        headers = list(headers)
        scheme, _, token = (get_header(headers, b"authorization") or "").partition(" ")
        shown = [get_header(headers, b"x-api-key")]
        if scheme.lower() == "bearer":
            shown.append(token.strip())
        given = [_digest(key) for key in shown if key]
        matches = [hmac.compare_digest(one, two) for one in given for two in self._digests]
        if not any(matches):
            raise UnauthorizedError(
                "wrong API key" if given else "no API key: send authorization: Bearer KEY"
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
