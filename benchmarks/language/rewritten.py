"""Write requests as the product does whose cache holds other requests, for benchmarks of prompts.

Also a script for another checkout, whose product then writes them: pairs of an earlier request and
the request itself, a line of JSON each, from stdin to stdout.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.formats import UnknownShapeError, find_format, make_formats

Body = dict[str, Any]
Pair = tuple[Body, Body]  # a request that is cached, and the one to write


def rewrite(pairs: Iterable[Pair], *, checkout: Path | None = None) -> list[Body]:
    """Write the second request of each pair as its product does once the first one is cached.

    Args:
        checkout: another one of the project; None: this one.
    """
    if checkout is None:
        return [_rewrite(*pair) for pair in pairs]
    done = subprocess.run(
        [sys.executable, __file__],
        input="".join(json.dumps(pair) + "\n" for pair in pairs),
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _rewrite(earlier: Body, body: Body) -> Body:
    formats, booster = make_formats(Settings()), Booster()
    try:
        cached, found = find_format(formats, earlier), find_format(formats, body)
    except UnknownShapeError:
        return body
    if cached is None or found is None:
        return body
    booster.boost(cached[1].query, cached[1].documents)
    shape, documents = found
    return shape.replace(body, documents, booster.boost(documents.query, documents.documents))


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_rewrite(*json.loads(line))))
