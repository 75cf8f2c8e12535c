"""Merge what several workers of a proxy report: metrics, readiness and the dashboard's figures."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")
_STATES = ("exact", "degraded", "fallback")  # the best one first


def label_metrics(texts: Mapping[int, bytes]) -> bytes:
    """Join metrics in Prometheus' text format, each sample with the label `worker`.

    Counters are not added up: the sum would shrink when a worker is restarted, and a monitoring
    system that takes every decrease for a restart would count the rest twice.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for worker, text in texts.items():
        family = b""
        is_known = True
        for line in text.splitlines():
            if line.startswith(b"# HELP "):
                family = line.split(b" ", 3)[2]
                is_known = family in heads
            if line.startswith(b"#"):
                if not is_known:
                    heads.setdefault(family, []).append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return b"\n".join([*lines, b""])


def _labelled(line: bytes, worker: int) -> bytes:
    found = _SAMPLE.match(line)
    assert found is not None, f"no sample: {line!r}"
    rest, label = line[found.end() :], b'worker="%d"' % worker
    if found[2] is None:
        return b"%b{%b}%b" % (found[1], label, rest)
    return b"%b{%b%b%b" % (found[1], label, b"" if rest.startswith(b"}") else b",", rest)


def merge_readiness(own: dict[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the readiness of all workers: the worst state of each stream, any worker's problem."""
    streams: dict[str, Any] = dict(own.get("kv_events") or {})
    sessions = own.get("sessions")
    for other in others:
        sessions = sessions or other.get("sessions")
        for name, stream in (other.get("kv_events") or {}).items():
            worst = streams.get(name)
            if worst is None or _badness(stream) > _badness(worst):
                streams[name] = stream
    status = own["status"]
    if sessions is not None and status == "ready":
        status = "degraded"
    return {**own, "status": status, "sessions": sessions, "kv_events": streams or None}


def _badness(stream: Mapping[str, Any]) -> int:
    return _STATES.index(stream["state"]) if stream["state"] in _STATES else len(_STATES)


def merge_history(
    own: Mapping[str, Sequence[float]], others: Sequence[Mapping[str, Sequence[float]]]
) -> dict[str, list[float]]:
    """Add the last earlier sample of each other worker to every sample of one worker."""
    merged = {name: list(values) for name, values in own.items()}
    for other in others:
        for row, at in enumerate(own["time"]):
            earlier = bisect_right(other["time"], at) - 1
            if earlier >= 0:
                for name in merged.keys() - {"time"}:
                    merged[name][row] += other[name][earlier]
    return merged


def merge_dashboard(
    own: Mapping[str, Any], others: Sequence[Mapping[str, Any]], *, max_recent: int
) -> dict[str, Any]:
    """Return the figures of all workers, with the indexes and counters of `own`."""
    totals = dict(own["totals"])
    for name in ("sessions", "waiting"):
        totals[name] += sum(other["totals"][name] for other in others)
    backends = [dict(backend) for backend in own["backends"]]
    for other in others:
        for backend, theirs in zip(backends, other["backends"], strict=True):
            backend["is_healthy"] = backend["is_healthy"] and theirs["is_healthy"]
            backend["problem"] = backend["problem"] or theirs["problem"]
            for name in ("running", "prefill_tokens"):
                backend[name] += theirs[name]
    workers = [own, *others]
    recent = [entry for worker in workers for entry in worker["recent"]]
    recent.sort(key=lambda entry: float(entry["time"]), reverse=True)
    return {
        **own,
        "started": min(worker["started"] for worker in workers),
        "totals": totals,
        "fidelity": {
            name: sum(worker["fidelity"][name] for worker in workers) / len(workers)
            for name in own["fidelity"]
        },
        "history": merge_history(own["history"], [other["history"] for other in others]),
        "backends": backends,
        "varying": max((worker["varying"] for worker in workers), key=len),
        "recent": recent[:max_recent],
    }
