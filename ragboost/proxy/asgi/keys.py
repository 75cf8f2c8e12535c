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

    def __init__(self, keys: Sequence[SecretStr | Sequence[SecretStr]]) -> None:
        teams = [(key,) if isinstance(key, SecretStr) else key for key in keys]
        self._teams = [
            (_digest(key.get_secret_value()), _name(team) if len(teams) > 1 else "")
            for team in teams
            for key in team
        ]

    def check(self, headers: RawHeaders) -> str:
        """Look for an accepted key in `authorization: Bearer` or `x-api-key`.

        Returns:
            The team of the key, which shares context indexes; empty if there is one team.

        Raises:
            UnauthorizedError: there is none.
        """
        if not self._teams:
            return ""
        scheme, _, token = (get_header(headers, b"authorization") or "").partition(" ")
        candidates = [get_header(headers, b"x-api-key")]
        if scheme.lower() == "bearer":
            candidates.append(token.strip())
        digests = [_digest(key) for key in candidates if key]
        matches = [
            team
            for digest in digests
            for key, team in self._teams
            if hmac.compare_digest(digest, key)
        ]
        if not matches:
            raise UnauthorizedError(
                "invalid API key" if digests else "missing API key: send authorization: Bearer KEY"
            )
        return matches[0]


def _name(team: Sequence[SecretStr]) -> str:
    """Name a team by its first key: the same after a restart, wherever it is in the list, so that
    nobody inherits what an engine has stored for others."""
    return _digest(f"team {team[0].get_secret_value()}").hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
