"""Ray Data and Ray Serve on one machine."""

import os
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from scripts.ports import free_port
from tests.environments import needs, own_environment

needs("ray")  # 600 MB
# For the examples to join; Ray reads it when it is imported.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ragboost" * 4}
os.environ.update(TOKEN)
# On a busy machine Serve would kill its proxy, which has 5 s to start, again and again.
for check in ("READY", "HEALTH"):
    os.environ[f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S"] = "250"

import httpx

with warnings.catch_warnings():  # ray's own
    warnings.simplefilter("ignore")
    import ray
    import ray.data
    from ray import serve

from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.integrations.ray import boosted, deploy
from tests.fakes import FakeEngine
from tests.fakes.redis import PROGRAM, RedisServer
from tests.integrations.corpus import FIRST, SECOND, TEXTS, words
from tests.test_examples import run_example, running

# Ray leaves sockets, files and subprocesses to the end of the process.
pytestmark = [
    own_environment,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray that runs here; all tests share it, for its start takes seconds."""
    for _ in range(3):
        try:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
            break
        except Exception as error:  # Ray waits 30 s, which is not enough on a busy machine
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
    yield ray.get_runtime_context().gcs_address
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def serve_port(cluster: str) -> int:
    """The port of Ray Serve, which all its applications share."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    return port


def row(question: str, names: tuple[str, ...], **more: Any) -> dict[str, Any]:
    documents = [{"id": name, "text": TEXTS[name]} for name in names]
    return {"question": question, "documents": documents, **more}


@pytest.mark.parametrize(
    ("name", "server", "says"),
    [
        ("ray_batch.py", ("serve", "--embedded"), "row 5:"),
        ("ray_serve.py", ("engine",), "What is the rent?"),
    ],
)
def test_an_example_runs(name: str, server: tuple[str, ...], says: str, cluster: str) -> None:
    with running(*server) as url:
        assert says in run_example(name, f"{url}/v1", env=TOKEN | {"RAY_ADDRESS": cluster})


@pytest.mark.usefixtures("cluster")
def test_rows_that_share_documents_follow_each_other() -> None:
    rows = [
        row("one", FIRST, tag="a"),
        row("two", ("garden", "parking"), tag="b"),
        row("three", SECOND, tag="c"),
        row("four", ("parking", "garden"), tag="d"),
    ]

    planned = boosted(ray.data.from_items(rows), system="Be brief.").take_all()

    assert sorted(each["request_index"] for each in planned) == [0, 1, 2, 3]
    for each in planned:
        assert each["tag"] == rows[each["request_index"]]["tag"]
        system, user = each["messages"]
        assert system == {"role": "system", "content": "Be brief."}
        assert user["content"].endswith(each["question"])
    order = [words(each["messages"][1]["content"]) for each in planned]
    assert sum(a[0] == b[0] for a, b in pairwise(order)) == 2


@pytest.mark.usefixtures("cluster")
def test_texts_are_documents_and_blocks_keep_neighbours() -> None:
    rows = [{"q": str(i), "found": [TEXTS["lease"], TEXTS["rent"]]} for i in range(4)]

    dataset = boosted(ray.data.from_items(rows), question="q", documents="found", num_blocks=2)

    assert dataset.materialize().num_blocks() == 2
    assert all(len(each["messages"]) == 1 for each in dataset.take_all())


@pytest.mark.usefixtures("cluster")
def test_windows_are_planned_in_tasks_and_keep_every_row() -> None:
    names = [FIRST, ("garden", "parking"), SECOND, ("parking", "garden")]
    rows = [row(str(i), names[i % 4], tag=i) for i in range(12)]
    dataset = ray.data.from_items(rows, override_num_blocks=1)

    planned = boosted(dataset, window=4).take_all()

    assert sorted(each["tag"] for each in planned) == [*range(12)]
    for at in range(0, 12, 4):
        window = planned[at : at + 4]
        assert len({each["tag"] // 4 for each in window}) == 1
        assert all(each["request_index"] == each["tag"] % 4 for each in window)
        order = [words(each["messages"][0]["content"]) for each in window]
        assert sum(a[0] == b[0] for a, b in pairwise(order)) == 2
    for each in planned:
        assert each["messages"][0]["content"].endswith(each["question"])
    with pytest.raises(RequestError, match="window must be at least 1, got 0"):
        boosted(dataset, window=0)


def test_the_proxy_serves_and_streams_in_ray_serve(engine: FakeEngine, serve_port: int) -> None:
    settings = Settings(backend={"url": engine.url})  # type: ignore[arg-type]
    serve.run(deploy(settings), name="one", route_prefix="/one")
    url = f"http://127.0.0.1:{serve_port}/one/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "Who?"}]}

    for names in (FIRST, SECOND):
        documents = row("", names)["documents"]
        answer = httpx.post(url, json={**body, "ragboost": {"documents": documents}})
        assert answer.status_code == 200, answer.text
    with httpx.stream("POST", url, json={**body, "stream": True}) as stream:
        events = [line for line in stream.iter_lines() if line]

    boosted_request = engine.completions[1]
    assert words(boosted_request.prompt) == ["lease", "pets", "parking"]
    assert boosted_request.cached_tokens > 100
    assert events[-1] == "data: [DONE]"


@pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server")
def test_a_conversation_stays_with_one_of_two_replicas_and_chat_sessions_are_shared(
    engine: FakeEngine, serve_port: int
) -> None:
    documents = row("", FIRST)["documents"]
    with RedisServer() as redis, httpx.Client() as client:
        settings = Settings.model_validate(
            {"backend": {"url": engine.url}, "session": {"store": "redis", "url": redis.url}}
        )
        serve.run(deploy(settings, num_replicas=2), name="two", route_prefix="/two")
        url = f"http://127.0.0.1:{serve_port}/two/v1"

        for number in range(5):
            messages: list[dict[str, str]] = []
            for turn in range(3):
                messages.append({"role": "user", "content": f"question {turn}"})
                answer = client.post(
                    f"{url}/chat/completions",
                    json={"model": "m", "messages": messages, "ragboost": {"documents": documents}},
                    headers={"x-session-id": f"conversation {number}"},
                )
                dropped = answer.headers.get("x-ragboost-documents-dropped", "0")
                assert dropped == (str(len(FIRST)) if turn else "0"), answer.text
                messages.append(answer.json()["choices"][0]["message"])

        session = client.post(f"{url}/sessions", json={"model": "m"}).json()["id"]
        for turn in range(6):  # to any replica
            body = {"query": f"turn {turn}", "documents": documents}
            answer = client.post(f"{url}/sessions/{session}/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
        assert client.get(f"{url}/sessions/{session}").json()["num_turns"] == 6


@pytest.mark.parametrize(
    ("num_replicas", "reason"), [(0, "at least 1"), (2, r"needs session\.store")]
)
def test_replicas_that_could_not_work_together_are_refused(num_replicas: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        deploy(num_replicas=num_replicas)
