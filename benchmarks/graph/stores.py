"""Measure load time and two-hop lookup time of embedded graph stores.

    python -m benchmarks.graph.stores --stores sqlite,networkx,duckdb,ladybug --json

Only SQLite is a dependency of RAGBoost; install the other stores into a separate environment. The
graph is random, with the size of the largest one in the DepCache paper (RGB: 54,544 entities,
74,394 relations). A lookup returns all two-hop paths from one entity; wall time, in milliseconds.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_columns

Triplets = list[tuple[str, str, str]]
Lookup = Callable[[str], Iterable[Any]]


def make_graph(*, entities: int, edges: int, seed: int) -> Triplets:
    """Draw edges with a skewed degree distribution, as in real graphs."""
    rng = random.Random(seed)
    found: dict[tuple[str, str, str], None] = {}
    while len(found) < edges:
        head = int(entities * rng.random() ** 2)
        found[
            (
                f"entity {head}",
                f"relation {rng.randrange(200)}",
                f"entity {rng.randrange(entities)}",
            )
        ] = None
    return list(found)


def sqlite_store(triplets: Triplets, folder: Path) -> Lookup:
    from ragboost.graph import GraphStore

    store = GraphStore(folder / "graph.sqlite")
    store.add(triplets)

    def lookup(root: str) -> list[Any]:
        return [
            (first, second)
            for first in store.edges_from(root)
            for second in store.edges_from(first.tail)
        ]

    return lookup


def networkx_store(triplets: Triplets, folder: Path) -> Lookup:
    import networkx as nx

    graph = nx.MultiDiGraph()
    graph.add_edges_from((head, tail, relation) for head, relation, tail in triplets)

    def lookup(root: str) -> list[Any]:
        return [
            (first, second)
            for first in graph.out_edges(root, keys=True)
            for second in graph.out_edges(first[1], keys=True)
        ]

    return lookup


def duckdb_store(triplets: Triplets, folder: Path) -> Lookup:
    import csv

    import duckdb

    path = folder / "triplets.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(triplets)
    db = duckdb.connect(str(folder / "graph.duckdb"))
    db.execute(
        f"CREATE TABLE edge AS SELECT * FROM read_csv('{path}', header=false, "
        "names=['head', 'relation', 'tail'])"
    )
    db.execute("CREATE INDEX edge_head ON edge (head)")
    query = (
        "SELECT a.relation, a.tail, b.relation, b.tail FROM edge a JOIN edge b ON b.head = a.tail "
        "WHERE a.head = ?"
    )
    return lambda root: db.execute(query, [root]).fetchall()


def ladybug_store(triplets: Triplets, folder: Path) -> Lookup:
    import csv

    import ladybug

    db = ladybug.Database(str(folder / "graph.lbug"))
    connection = ladybug.Connection(db)
    connection.execute("CREATE NODE TABLE Entity(name STRING, PRIMARY KEY (name))")
    connection.execute("CREATE REL TABLE Edge(FROM Entity TO Entity, relation STRING)")
    names = sorted({name for head, _, tail in triplets for name in (head, tail)})
    for name, rows in (
        ("Entity", [(name,) for name in names]),
        ("Edge", [(head, tail, relation) for head, relation, tail in triplets]),
    ):
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        connection.execute(f"COPY {name} FROM '{path}'")
    query = (
        "MATCH (a:Entity)-[r:Edge]->(b:Entity)-[s:Edge]->(c:Entity) WHERE a.name = $root "
        "RETURN r.relation, b.name, s.relation, c.name"
    )
    return lambda root: list(connection.execute(query, {"root": root}))


STORES: dict[str, Callable[[Triplets, Path], Lookup]] = {
    "sqlite": sqlite_store,
    "networkx": networkx_store,
    "duckdb": duckdb_store,
    "ladybug": ladybug_store,
}


def measure(name: str, triplets: Triplets, roots: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        lookup = STORES[name](triplets, Path(folder))
        load_s = time.perf_counter() - begin
        times, count = [], 0
        for root in roots:
            begin = time.perf_counter()
            count += len(list(lookup(root)))
            times.append(time.perf_counter() - begin)
    return {
        "load_s": round(load_s, 2),
        "lookup_ms": round(1e3 * statistics.median(times), 3),
        "lookup_p95_ms": round(1e3 * sorted(times)[int(0.95 * len(times))], 3),
        "paths": count,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--stores", default="sqlite", help="stores to compare, comma-separated")
    parser.add_argument("--entities", type=int, default=54_544, help="entities of the graph")
    parser.add_argument("--edges", type=int, default=74_394, help="relations of the graph")
    parser.add_argument("--lookups", type=int, default=300, help="measured lookups")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    triplets = make_graph(entities=args.entities, edges=args.edges, seed=args.seed)
    heads = [head for head, _, _ in triplets]
    roots = random.Random(args.seed).sample(heads, args.lookups)
    found = {name: measure(name, triplets, roots) for name in args.stores.split(",")}
    report({"stores": found, "edges": len(triplets)}, args, lambda r: show_columns(r["stores"]))


if __name__ == "__main__":
    main()
