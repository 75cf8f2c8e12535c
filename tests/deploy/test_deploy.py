"""What `deploy/` ships is valid: linted, rendered and compared with what the proxy offers.

No cluster and no container runtime: the images themselves are not built here.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from ragboost import __version__
from ragboost.config import load_settings
from ragboost.proxy.app import create_app
from tests.eventually import DEADLINE_S, eventually
from tests.fakes.proxy import ProxyServer

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
CHART = DEPLOY / "helm" / "ragboost"
helm = pytest.importorskip("helm_python", reason="needs the extra deploy")
promql = pytest.importorskip("promql_parser", reason="needs the extra deploy")
kubernetes = pytest.importorskip("kubernetes_validate", reason="needs the extra deploy")


def run(*command: str | Path) -> None:
    """The command, from the environment that runs the tests, must succeed."""
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rendered(values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Objects of the chart by kind; those of its Redis by `redis` and kind."""
    chart = helm.Chart.load(CHART)
    chart.validate_schema(values)
    texts = chart.render(values, name="test").values()
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    return {
        "redis " * item["metadata"]["name"].endswith("-redis") + item["kind"]: item
        for item in objects
    }


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def secrets_of(container: dict[str, Any]) -> dict[str, dict[str, str]]:
    """References to secrets in the environment."""
    variables = container.get("env", [])
    return {v["name"]: v["valueFrom"]["secretKeyRef"] for v in variables if "valueFrom" in v}


def plain_of(container: dict[str, Any]) -> dict[str, str]:
    """Plain values in the environment."""
    return {v["name"]: v["value"] for v in container.get("env", []) if "value" in v}


def test_the_dockerfile_passes_the_linter() -> None:
    run("hadolint", DEPLOY / "Dockerfile")


def test_the_health_check_of_the_image_tells_a_proxy_from_none(
    proxy: ProxyServer, unused_port: int
) -> None:
    check = re.search(r"^HEALTHCHECK .*\n    CMD (\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    assert check is not None
    program, *arguments = json.loads(check[1])
    assert program == "python"
    for port, is_healthy in ((proxy.port, True), (unused_port, False)):
        env = {**os.environ, "RAGBOOST_PROXY__PORT": str(port)}
        done = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, check=False
        )
        assert (done.returncode == 0) == is_healthy


def test_images_have_exact_tags_which_a_digest_can_replace() -> None:
    default = re.search(r"^ARG PYTHON_IMAGE=(.+)$", DOCKERFILE, flags=re.MULTILINE)
    assert default is not None
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", default[1])
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert set(bases) == {"${PYTHON_IMAGE}"}
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert re.fullmatch(r"\$\{VLLM_IMAGE:-\S+:v\d+\.\d+\.\d+\}", services["vllm"]["image"])
    built = services["ragboost"]["build"]["args"]["PYTHON_IMAGE"]
    assert built == f"${{PYTHON_IMAGE:-{default[1]}}}"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cluster.yaml"])
def test_a_compose_file_fits_its_schema(name: str) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / name)


def test_the_compose_file_of_a_cluster_runs_what_the_balancer_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text("utf-8"))["services"]
    haproxy = (DEPLOY / "haproxy.cfg").read_text("utf-8")
    replicas = re.findall(r"^ +server (\S+) \1:8080$", haproxy, flags=re.MULTILINE)
    assert {*replicas, "haproxy", "redis"} == set(services)
    assert services["haproxy"]["volumes"][0].startswith("./haproxy.cfg:")
    for name, value in services[replicas[0]]["environment"].items():
        backends = '[{"url": "http://gpu-1:8000"}]' if name == "RAGBOOST_BACKENDS" else "secret"
        monkeypatch.setenv(name, re.sub(r"\$\{.*?\}", backends, value))

    settings = load_settings()

    assert settings.session.store == "redis"
    assert settings.session.url is not None
    assert settings.session.url.get_secret_value() == "redis://:secret@redis:6379"
    assert settings.backends[0].url == "http://gpu-1:8000"


def test_the_environment_of_the_containers_is_known_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"RAGBOOST_PROXY__HOST": "0.0.0.0", "RAGBOOST_PROXY__PORT": "8080"}
    assert all(name in DOCKERFILE for name in names)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    environment = compose["services"]["ragboost"]["environment"]
    for name, value in (names | environment).items():
        monkeypatch.setenv(name, re.sub(r"\$\{.*?\}", "a-key", value))

    settings = load_settings()

    assert settings.backend.url == "http://vllm:8000"
    assert settings.proxy.api_keys[0].get_secret_value() == "a-key"


def test_the_chart_passes_the_linter() -> None:
    report = helm.lint(CHART, strict=True)

    info = 1  # an icon is recommended
    assert [message for message in report["messages"] if message["severity"] > info] == []


@pytest.mark.parametrize(
    "values",
    [
        {"insecure": True},
        {"apiKeysSecret": "keys"},
        {
            "backends": ["http://vllm-0:8000", "http://vllm-1:8000"],
            "apiKeysSecret": "keys",
            "backendKeySecret": "engine-key",
            "reportKeySecret": "hook-key",
            "sessionUrlSecret": "redis",
            "config": "[ordering]\nkeep_last = 1\n",
            "nodeSelector": {"pool": "cpu"},
            "podAnnotations": {"team": "rag"},
        },
    ],
)
def test_the_chart_renders_valid_objects(values: dict[str, Any]) -> None:
    objects = rendered(values)

    assert {"Deployment", "Service"} <= set(objects)
    assert ("ConfigMap" in objects) == ("config" in values)
    for item in objects.values():
        kubernetes.validate(item, kubernetes.latest_version(), strict=True)
    container = container_of(objects["Deployment"])
    assert ("--insecure" in container["args"]) == ("insecure" in values)
    secrets = secrets_of(container)
    expected = {
        "RAGBOOST_PROXY__API_KEYS": values.get("apiKeysSecret"),
        "RAGBOOST_BACKEND__API_KEY": values.get("backendKeySecret"),
        "RAGBOOST_ENGINE_HOOKS__REPORT_KEY": values.get("reportKeySecret"),
        "RAGBOOST_SESSION__URL": values.get("sessionUrlSecret"),
    }
    assert secrets == {key: {"name": name, "key": key} for key, name in expected.items() if name}
    assert container["image"] == f"ragboost:{__version__}"


def test_the_chart_runs_replicas_with_a_redis_whose_password_is_a_secret() -> None:
    redis = {"enabled": True, "passwordSecret": "redis-password"}
    service = {"type": "ClusterIP", "port": 8080, "sessionAffinity": "ClientIP"}
    values = {"apiKeysSecret": "keys", "replicas": 3, "redis": redis, "service": service}
    objects = rendered(values)

    for item in objects.values():
        kubernetes.validate(item, kubernetes.latest_version(), strict=True)
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert objects["Service"]["spec"]["sessionAffinity"] == "ClientIP"
    password = {"name": "redis-password", "key": "REDIS_PASSWORD"}
    for name in ("Deployment", "redis Deployment"):
        assert secrets_of(container_of(objects[name]))["REDIS_PASSWORD"] == password
    assert plain_of(container_of(objects["Deployment"])) == {
        "RAGBOOST_SESSION__STORE": "redis",
        "RAGBOOST_SESSION__URL": "redis://:$(REDIS_PASSWORD)@test-ragboost-redis:6379",
    }
    assert objects["redis Service"]["metadata"]["name"] == "test-ragboost-redis"
    own, other = (objects[name]["spec"]["selector"] for name in ("Service", "redis Service"))
    assert own != other


def redis_command(of: str) -> list[str]:
    """Return the command of the chart's Redis, or of the compose file's."""
    if of == "chart":
        redis = {"enabled": True, "passwordSecret": "redis-password"}
        objects = rendered({"apiKeysSecret": "keys", "redis": redis})
        command: list[str] = container_of(objects["redis Deployment"])["command"]
        return command
    services = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text("utf-8"))["services"]
    return [part.replace("$$", "$") for part in services["redis"]["command"]]


@pytest.mark.parametrize("of", ["chart", "compose"])
def test_redis_asks_for_its_password_and_gets_sigterm(tmp_path: Path, of: str) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    command = redis_command(of)
    path = tmp_path / "s"
    command[-1] += f" --port 0 --unixsocket {path}"
    server = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "REDIS_PASSWORD": "secret"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        eventually(path.exists)
        answers = []
        for request in (b"PING\r\n", b"AUTH secret\r\nPING\r\n"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(request + b"QUIT\r\n")
                answers.append(client.makefile("rb").read())
        server.terminate()  # the first process of the container, as the kubelet and Docker do
        assert server.wait(DEADLINE_S) == 0, "a shell would have ended by the signal"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert answers[0].startswith(b"-NOAUTH")
    assert answers[1].startswith(b"+OK\r\n+PONG")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "replicas > 1 need Redis"),
        ({"redis": {"enabled": True}}, "needs redis.passwordSecret"),
        (
            {"redis": {"enabled": True, "passwordSecret": "p"}, "sessionUrlSecret": "u"},
            "not both",
        ),
    ],
)
def test_the_chart_refuses_replicas_and_redis_that_would_not_work(
    values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(helm.HelmError, match=reason):
        rendered({"apiKeysSecret": "keys", **values})


def test_the_chart_scales_spreads_and_takes_an_environment() -> None:
    values = {
        "apiKeysSecret": "keys",
        "replicas": 2,
        "redis": {"enabled": True, "passwordSecret": "redis"},
        "autoscaling": {"enabled": True, "maxReplicas": 6},
        "podDisruptionBudget": {"enabled": True},
        "imagePullSecrets": [{"name": "registry"}],
        "extraEnv": [{"name": "RAGBOOST_HINTS__ORDER", "value": "false"}],
    }
    objects = rendered(values)
    for kind in ("HorizontalPodAutoscaler", "PodDisruptionBudget", "Deployment"):
        kubernetes.validate(objects[kind], kubernetes.latest_version(), strict=True)
    scaling = objects["HorizontalPodAutoscaler"]["spec"]
    assert (scaling["minReplicas"], scaling["maxReplicas"]) == (2, 6)
    spec = objects["Deployment"]["spec"]
    assert "replicas" not in spec
    pod = spec["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    selector = pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert selector == objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    container = container_of(objects["Deployment"])
    assert "RAGBOOST_PROXY__API_KEYS" in secrets_of(container)
    assert plain_of(container)["RAGBOOST_HINTS__ORDER"] == "false"


def test_the_chart_accepts_any_client_only_if_told_to() -> None:
    with pytest.raises(helm.HelmError, match="set apiKeysSecret"):
        rendered({})


def test_the_chart_refuses_unknown_values_and_can_be_scraped() -> None:
    with pytest.raises(helm.HelmError, match="backend"):
        rendered({"backend": "http://vllm:8000"})

    values = {"apiKeysSecret": "keys", "serviceMonitor": {"enabled": True}}
    (endpoint,) = rendered(values)["ServiceMonitor"]["spec"]["endpoints"]
    assert (endpoint["path"], "authorization" in endpoint) == ("/metrics", False)

    closed = rendered({**values, "metricsKeySecret": "metrics"})
    (endpoint,) = closed["ServiceMonitor"]["spec"]["endpoints"]
    key = {"name": "metrics", "key": "RAGBOOST_PROXY__METRICS_KEY"}
    assert endpoint["authorization"]["credentials"] == key
    (container,) = closed["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": key["key"], "valueFrom": {"secretKeyRef": key}} in container["env"]


def test_the_grafana_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "ragboost.json").read_text("utf-8"))
    asks_for_what_exists(
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    )


def asks_for_what_exists(queries: Iterable[str]) -> None:
    """Check that queries are PromQL over metrics that the proxy has."""
    asked = set()
    for query in queries:
        asked |= set(re.findall(r"ragboost_\w+", query))
        promql.parse(query.replace("$__rate_interval", "1m"))  # raises where it is no PromQL
    app = create_app()  # some metrics come with what it runs
    offered = set()
    for family in app.state.metrics.registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        offered |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    assert asked
    assert asked <= offered


PRODUCTION = DEPLOY.parent / "examples" / "production"


def loaded(name: str) -> Any:
    return yaml.safe_load((PRODUCTION / name).read_text("utf-8"))


def test_the_production_example_fits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    run(
        "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        PRODUCTION / "compose.yaml",
    )
    compose = loaded("compose.yaml")
    (included,) = compose["include"]
    cluster = yaml.safe_load((PRODUCTION / included["path"]).read_text("utf-8"))
    services = {**cluster["services"], **compose["services"]}
    name, _, backends = (PRODUCTION / included["env_file"]).read_text("utf-8").partition("=")
    monkeypatch.setenv(name, backends)
    names = {urlsplit(each.url).hostname for each in load_settings().backends}
    assert names == {"vllm-0", "vllm-1"} < set(services)
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            assert source in compose["volumes"] or (PRODUCTION / source).is_file()
    targets = [
        target.partition(":")[0]
        for job in loaded("prometheus.yml")["scrape_configs"]
        for target in job["static_configs"][0]["targets"]
    ]
    assert set(targets) == {"ragboost-0", "ragboost-1", "vllm-0", "vllm-1"}
    assert loaded("grafana/datasources.yaml")["datasources"][0]["url"] == "http://prometheus:9090"
    path = loaded("grafana/dashboards.yaml")["providers"][0]["options"]["path"]
    assert any(f":{path}/" in mount for mount in services["grafana"]["volumes"])


def test_the_alerts_ask_for_metrics_that_exist() -> None:
    (group,) = loaded("alerts.yml")["groups"]
    assert all(set(rule) <= {"alert", "expr", "for", "annotations"} for rule in group["rules"])
    asks_for_what_exists(rule["expr"] for rule in group["rules"])


def test_what_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text("utf-8").splitlines()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (DEPLOY.parent / source).exists()
        assert f"!{source}" in ignored
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, flags=re.MULTILINE)[0])
    command = json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, flags=re.MULTILINE)[0])
    run(*entry, *command, "--help")
