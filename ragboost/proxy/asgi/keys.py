"""Check clients' API keys: looked up by their hashes, whose order tells nothing of theirs, and in
no message; send each team's requests with the priority that the operator has set for it."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from pydantic import SecretStr

from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.proxy.watched_file import Refreshable, WatchedFile
from ragboost.requests.headers import CREDENTIALS, RawHeaders, get_header
from ragboost.requests.json_body import JsonBody, MalformedBodyError


class UnauthorizedError(RequestError):
    status = 401


class ApiKeys:
    """The accepted API keys; if there are none, every request is accepted."""

    def __init__(self, keys: Sequence[SecretStr | Sequence[SecretStr]]) -> None:
        teams = [(key,) if isinstance(key, SecretStr) else key for key in keys]
        self._teams = {
            _digest(key.get_secret_value()): _name(team) if len(teams) > 1 else ""
            for team in reversed(teams)  # of two with a key the first
            for key in team
        }

    @classmethod
    def watched(cls, settings: Settings, sources: list[Refreshable]) -> "ApiKeys":
        """Return the keys of the clients; their file, if there is one, is added to the sources."""
        keys, path = cls(settings.proxy.api_keys), settings.proxy.api_keys_file
        if path is None:
            if settings.proxy.priorities:
                raise ConfigError("proxy.priorities needs the teams of proxy.api_keys_file")
            return keys
        if settings.proxy.api_keys:
            raise ConfigError("set either proxy.api_keys or proxy.api_keys_file")
        report = settings.engine_hooks.report_key
        reserved = _digest(report.get_secret_value()) if report is not None else b""

        def apply(contents: bytes) -> None:
            teams = _read_teams(contents)
            if reserved in teams:
                raise ConfigError("has the key of engine_hooks.report_key: choose another key")
            keys._teams = teams

        sources.append(WatchedFile(path, setting="proxy.api_keys_file", apply=apply))
        return keys

    def check(self, headers: RawHeaders) -> str:
        """Look for an accepted key in `authorization: Bearer`, `x-api-key` or `api-key`, and return
        its team.

        A team shares context indexes; it is empty if there is one team.
        """
        if not self._teams:
            return ""
        scheme, _, token = (get_header(headers, b"authorization") or "").partition(" ")
        candidates = [get_header(headers, name) for name in CREDENTIALS[1:]]
        if scheme.lower() == "bearer":
            candidates.append(token.strip())
        digests = [_digest(key) for key in candidates if key]
        matches = [self._teams[digest] for digest in digests if digest in self._teams]
        if not matches:
            raise UnauthorizedError(
                "invalid API key" if digests else "missing API key: send authorization: Bearer KEY"
            )
        return matches[0]


def _read_teams(contents: bytes) -> dict[bytes, str]:
    """Read keys and their teams, whose names stay the same when their keys change."""
    try:
        teams = json.loads(contents)
    except (ValueError, RecursionError):
        raise ConfigError("is not JSON") from None
    found = [
        (_digest(key) if isinstance(key, str) and key else b"", team_of(name))
        for name, keys in (teams.items() if isinstance(teams, dict) else ())
        for key in (keys if isinstance(keys, list) else [keys])
    ]
    by_key = dict(found)
    if not found or b"" in by_key:
        raise ConfigError('must be an object such as {"team": ["new key", "old key"]}')
    if len(by_key) < len(found):
        raise ConfigError("has a key twice")
    return by_key


def team_of(name: str) -> str:
    """Return the team that has this name in the file of keys."""
    return _digest(f"named {name}").hex()[:16]


def _name(team: Sequence[SecretStr]) -> str:
    """Name a team by its first key: the same after a restart, wherever it is in the list, so that
    nobody inherits what an engine has stored for others."""
    return _digest(f"team {team[0].get_secret_value()}").hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Priorities:
    """The least `priority` of each team's requests, by its name; engines begin with the least."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._by_team = {team_of(name): priority for name, priority in priorities.items()}

    def apply(self, raw: bytes, team: str) -> bytes:
        """Return the body with its team's priority, or the client's own where that is greater.

        Raises:
            RequestError: the body cannot be read here, and an engine might find a priority in it.
        """
        least = self._by_team.get(team)
        if least is None:
            return raw
        try:
            body = JsonBody(raw)
        except MalformedBodyError as error:
            raise RequestError(str(error)) from None
        own = body.fields.get("priority")
        # A number in quotes, or with a fraction, is one for engines that convert it.
        if type(own) is int and own >= least:
            return raw
        return body.encode({**body.fields, "priority": least})
