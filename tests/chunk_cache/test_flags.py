"""The flags of an engine carry the settings that it reads."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragboost.chunk_cache.__main__ import FAILED_FLAG, engine_flags, main
from ragboost.chunk_cache.sglang.flags import BACKEND, read_settings
from ragboost.errors import ConfigError


def server_args(text: str | None, *, tp_size: int = 1) -> SimpleNamespace:
    return SimpleNamespace(device="cpu", hicache_storage_backend_extra_config=text, tp_size=tp_size)


def test_sglang_reads_the_settings_that_its_flags_were_printed_with() -> None:
    flags = shlex.split(engine_flags("sglang", ["reuse=approx", "ratio=0.3"]))

    assert flags[:2] == ["--radix-cache-backend", BACKEND]
    settings = read_settings(server_args(flags[3]))
    assert (settings.reuse, settings.ratio) == ("approx", 0.3)


def test_sglang_without_settings_gets_the_backend_only() -> None:
    assert shlex.split(engine_flags("sglang", [])) == ["--radix-cache-backend", BACKEND]
    assert read_settings(server_args(None)).ratio == 0.15


@pytest.mark.parametrize("text", ["{", "[]", '{"ratio": 2}', '{"other": 1}', "@file"])
def test_malformed_settings_of_sglang_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ratio|other|JSON object"):
        read_settings(server_args(text))


def test_a_public_corpus_in_an_engine_of_several_workers_stops_it() -> None:
    setting = json.dumps({"public_key": "secret"})
    assert read_settings(server_args(setting))
    with pytest.raises(ConfigError, match=r"public_key.*needs one worker") as refused:
        read_settings(server_args(setting, tp_size=2))
    assert "secret" not in str(refused.value)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="vllm, sglang"):
        engine_flags("tgi", [])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["tgi"],
        ["vllm", "reuse"],
        ["vllm", "--other"],
        ["vllm", "--config", "reuse.json"],
        ["vllm", "--config", "/nowhere/reuse.yaml"],
    ],
)
def test_a_shell_line_cannot_go_on_without_the_flags(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))

    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, FAILED_FLAG + "\n")
    assert err


def test_the_command_ends_with_its_exit_code() -> None:
    command = [sys.executable, "-m", "ragboost.chunk_cache", "vllm", "ratio=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, FAILED_FLAG + "\n")
    assert "ratio" in done.stderr


def test_vllms_file_carries_flags_events_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "reuse.yaml"
    assert main(["vllm", "reuse=approx", "--config", str(file), "ratio=0.3"]) == 0

    config = json.loads(file.read_text("utf-8"))
    flags = shlex.split(engine_flags("vllm", ["reuse=approx", "ratio=0.3"]))
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        assert config[name.removeprefix("--")] == value
    assert config["kv-events-config"]["enable_kv_cache_events"] is True
    assert config["enable-prompt-tokens-details"] is True


def test_sglangs_file_carries_flags_events_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "reuse.yaml"
    assert main(["sglang", "reuse=approx", "--config", str(file)]) == 0

    config = json.loads(file.read_text("utf-8"))
    text = config["hicache-storage-backend-extra-config"]
    settings = read_settings(server_args(text))
    assert (config["radix-cache-backend"], settings.reuse) == (BACKEND, "approx")
    assert json.loads(config["kv-events-config"])["publisher"] == "zmq"
    assert (config["page-size"], config["enable-cache-report"]) == (16, True)


_PARSE = {
    "vllm": (
        "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser\n"
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "args = make_arg_parser(Parser()).parse_args(['--config', sys.argv[1]])\n"
        "print(args.kv_transfer_config.kv_connector_extra_config['ratio'])\n"
        "print(args.kv_events_config.enable_kv_cache_events, args.enable_prompt_tokens_details)\n"
    ),
    "sglang": (
        "from sglang.srt.server_args import prepare_server_args\n"
        "import sglang.srt.server_args as module\n"
        "module.ServerArgs.__post_init__ = lambda self: None\n"
        "args = prepare_server_args(['--model-path', 'm', '--config', sys.argv[1]])\n"
        "print(json.loads(args.hicache_storage_backend_extra_config)['ratio'])\n"
        "print(json.loads(args.kv_events_config)['publisher'] == 'zmq', args.enable_cache_report)\n"
    ),
}


@pytest.mark.real_engine
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engines_own_parser_reads_the_file(engine: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    python = root / f".venv-{engine}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no .venv-{engine}")
    file = tmp_path / "reuse.yaml"
    assert main([engine, "reuse=approx", "ratio=0.3", "--config", str(file)]) == 0

    command = [str(python), "-c", "import json, sys\n" + _PARSE[engine], str(file)]
    path = os.pathsep.join([str(root), str(root / "scripts" / "engines" / "sglang_cpu")])
    environment = {**os.environ, **({"PYTHONPATH": path} if engine == "sglang" else {})}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["0.3", "True", "True"]
