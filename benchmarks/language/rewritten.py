"""Write requests as the product does whose cache holds those before them, to measure prompts.

Also a script for another checkout, whose product then writes them: sequences of requests, a line of
JSON each, from stdin to stdout.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.requests.rewriting_proxy import RewritingProxy

Body = dict[str, Any]


def rewrite(sequences: Iterable[Sequence[Body]], *, checkout: Path | None = None) -> list[Body]:
    """Write the last request of each sequence."""
    return [bodies[-1] for bodies in rewrite_all(sequences, checkout=checkout)]


def rewrite_all(
    sequences: Iterable[Sequence[Body]], *, checkout: Path | None = None
) -> list[list[Body]]:
    """Write the requests of each sequence, which begins with an empty cache.

    Args:
        checkout: another one of the project; None: this one.
    """
    if checkout is None:
        return [_rewrite(bodies) for bodies in sequences]
    done = subprocess.run(
        [sys.executable, __file__],
        input="".join(json.dumps(bodies) + "\n" for bodies in sequences),
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _rewrite(bodies: Sequence[Body]) -> list[Body]:
    proxy = RewritingProxy()
    return [{"messages": [json.loads(each) for each in proxy.send(body)]} for body in bodies]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_rewrite(json.loads(line))))
