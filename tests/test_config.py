from pathlib import Path

import pytest
from pydantic import ValidationError

from ragboost.config import Settings, field_paths, load_settings
from ragboost.config.proxy import ReplicaSettings
from ragboost.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_outside_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("RAGBOOST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _toml(text: str) -> Path:
    path = Path("ragboost.toml")
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_stand_where_nothing_else_is_given() -> None:
    assert load_settings() == Settings()


def test_toml_beats_defaults() -> None:
    _toml("[proxy]\nport = 1111\n")

    assert load_settings().proxy.port == 1111


def test_environment_beats_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    _toml("[proxy]\nport = 1111\nhost = '0.0.0.0'\n")
    monkeypatch.setenv("RAGBOOST_PROXY__PORT", "2222")

    assert load_settings().proxy.port == 2222
    assert load_settings().proxy.host == "0.0.0.0"


def test_flags_beat_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _toml("[proxy]\nport = 1111\n")
    monkeypatch.setenv("RAGBOOST_PROXY__PORT", "2222")
    monkeypatch.setenv("RAGBOOST_PROXY__HOST", "::1")

    settings = load_settings({"proxy.port": 3333, "proxy.host": None})

    assert (settings.proxy.port, settings.proxy.host) == (3333, "::1")


def test_a_named_file_beats_the_one_of_the_working_directory(tmp_path: Path) -> None:
    _toml("[proxy]\nport = 1111\n")
    other = tmp_path / "other.toml"
    other.write_text("[proxy]\nport = 4444\n")

    assert load_settings(toml=other).proxy.port == 4444


def test_settings_in_code_read_neither_environment_nor_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _toml("[proxy]\nport = 1111\n")
    monkeypatch.setenv("RAGBOOST_PROXY__HOST", "0.0.0.0")

    assert Settings().proxy.port == 8080
    assert Settings().proxy.host == "127.0.0.1"


def test_an_unknown_key_names_the_nearest_and_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"'proxy.prot' \(from command line\).*'proxy.port'"):
        load_settings({"proxy.prot": 1})

    monkeypatch.setenv("RAGBOOST_HINTS__ORDR", "false")
    with pytest.raises(ConfigError, match=r"RAGBOOST_HINTS__ORDR\); did you mean 'hints.order'"):
        load_settings()
    monkeypatch.delenv("RAGBOOST_HINTS__ORDR")

    _toml("[index]\ncapacity_token = 5\n")
    with pytest.raises(ConfigError, match=r"ragboost.toml\); did you mean 'index.capacity_tokens'"):
        load_settings()


@pytest.mark.parametrize("text", ["port = 5\n", "[unheard]\nof = 1\n", "[unheard]\n"])
def test_an_unknown_section_is_an_error(text: str) -> None:
    _toml(text)

    with pytest.raises(ConfigError, match="unknown setting") as caught:
        load_settings()

    assert len(str(caught.value)) < 300  # no list of more than a hundred names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy = 5\n", r"proxy: must be a table, got 5 \(from ragboost\.toml\)"),
        ('[formats]\nnumbers = []\nframes = "x"\n', r"formats\.frames: must be a list"),
        ('[[backends]]\nurl = "http://a"\nuri = 1\n', r"backends\.0\.uri: unknown setting"),
        ('[proxy]\nforwarded_paths = ["sleep"]\n', r"must begin with /.*, got 'sleep'"),
        ('[proxy]\nallowed_hosts = ["https://a"]\n', "without scheme, port or .*'https://a'"),
        ('[proxy]\nallowed_hosts = ["*"]\n', r"must be a name such as .*, got '\*'"),
        ('[proxy]\nallowed_hosts = ["a:8080"]\n', "must be a name such as .*, got 'a:8080'"),
        ('[engine_hooks]\nendpoint = "a:1"\n', r"endpoint: must begin with tcp.*, got 'a:1'"),
    ],
)
def test_a_value_of_another_shape_is_named_in_the_words_of_the_file(
    text: str, message: str
) -> None:
    _toml(text)

    with pytest.raises(ConfigError, match=message):
        load_settings({"proxy.port": 0})


@pytest.mark.parametrize("host", ["a..b", "a b", "a\0", "\u2028a", "a" * 300])
def test_a_host_that_no_connection_can_name_is_no_url(host: str) -> None:
    with pytest.raises(ValidationError, match="must be a URL such as"):
        ReplicaSettings(url=f"http://{host}:8000")


def test_a_folder_in_place_of_the_file_is_an_error() -> None:
    Path("ragboost.toml").mkdir()  # as a container's mount makes of a file that is missing

    with pytest.raises(ConfigError, match=r"cannot read ragboost\.toml: Is a directory"):
        load_settings()


def test_loaded_settings_are_of_the_public_class() -> None:
    assert type(load_settings()) is Settings


def test_a_value_out_of_range_names_field_value_and_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAGBOOST_PROXY__PORT", "70000")

    with pytest.raises(ConfigError, match=r"proxy.port: .*got '?70000.*RAGBOOST_PROXY__PORT"):
        load_settings()


@pytest.mark.parametrize("text", ["[proxy\n", "a = \n", "[proxy]\nport = 1\nport = 2\n"])
def test_bad_toml_names_the_file(text: str) -> None:
    _toml(text)

    with pytest.raises(ConfigError, match=r"ragboost\.toml is not valid TOML"):
        load_settings()


def test_a_file_that_is_not_utf8_names_the_file() -> None:
    Path("ragboost.toml").write_bytes(b"[proxy]\nhost = '\xff'\n")

    with pytest.raises(ConfigError, match=r"ragboost\.toml is not valid TOML"):
        load_settings()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml"):
        load_settings(toml=Path("missing.toml"))


@pytest.mark.parametrize(
    ("field", "placeholder"),
    [("order_template", "order"), ("label_template", "label"), ("location_template", "document")],
)
def test_a_template_must_contain_its_placeholder(field: str, placeholder: str) -> None:
    with pytest.raises(ConfigError, match=rf"hints\.{field}: .*must contain {{{placeholder}}}"):
        load_settings({f"hints.{field}": "nothing to fill in"})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().proxy.port = 1  # type: ignore[misc]


def test_every_setting_has_a_description() -> None:
    assert [path for path, description in field_paths().items() if not description] == []


def test_repr_shows_what_was_changed() -> None:
    assert repr(Settings()) == "Settings()"
    settings = Settings.model_validate({"ordering": {"keep_last": 2}})
    assert repr(settings) == "Settings(ordering=OrderingSettings(keep_last=2))"
    engine = Settings.model_validate(
        {"engine": {"chunks": {"remote": "redis://user:secret@host:1"}}}
    )
    assert "secret" not in repr(engine)
    assert "redis://host:1" in repr(engine)


@pytest.mark.parametrize("name", ["frames", "delimiters"])  # the older name is read, too
def test_frames_are_a_list_of_tables(name: str) -> None:
    _toml(f'[[formats.{name}]]\nname = "kb"\nstart = "<<"\nend = ">>"\n')

    (frame,) = load_settings().formats.frames

    assert (frame.name, frame.start, frame.end) == ("kb", "<<", ">>")
    assert frame.separator is None


def test_frames_with_an_unknown_key_are_refused() -> None:
    _toml('[[formats.frames]]\nname = "kb"\nstart = "<<"\nend = ">>"\nstop = ">>"\n')

    with pytest.raises(ConfigError, match=r"formats\.frames\.0\.stop: unknown setting"):
        load_settings()


def test_a_list_in_the_environment_that_is_not_json_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAGBOOST_PROXY__API_KEYS", "secret")

    with pytest.raises(ConfigError, match=r"RAGBOOST_PROXY__API_KEYS: .*must be JSON") as caught:
        load_settings()

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[backends]]\nurl = "http://a"\napikey = "secret"\n', "backends.0.apikey: unknown"),
        ('[[backends]]\nname = "a"\napi_key = "secret"\n', "backends.0.url: is missing"),
        ("[engine_hooks]\nreport_key = ['secret']\n", "engine_hooks.report_key: "),
        ('[proxy]\napi_keys = ["secret", [""]]\n', "proxy.api_keys: has an empty key"),
        ('[proxy]\napi_keys = ["secret "]\n', "proxy.api_keys: must be one line without"),
        ('[backend]\napi_key = "secret\\n"\n', "backend.api_key: must be one line without"),
    ],
)
def test_an_error_shows_no_key(text: str, message: str) -> None:
    _toml(text)

    with pytest.raises(ConfigError, match=message) as caught:
        load_settings()

    assert "secret" not in str(caught.value)


def test_variables_of_others_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {  # of Kubernetes' services `ragboost` and `ragboost-redis`
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT_HTTP": "8080",
        "PORT": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "REDIS_SERVICE_PORT": "6379",
        "REDIS_PORT": "tcp://10.0.0.2:6379",
    }.items():
        monkeypatch.setenv(f"RAGBOOST_{name}", value)
    monkeypatch.setenv("RAGBOOST_PUBLIC_KEY", "of `ragboost precompute`")
    assert load_settings() == Settings()

    monkeypatch.setenv("RAGBOOST_PORT", "8080")
    with pytest.raises(ConfigError, match=r"RAGBOOST_PORT\); did you mean 'proxy.port'"):
        load_settings()
