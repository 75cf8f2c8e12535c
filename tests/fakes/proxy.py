"""Run the proxy as a real server in front of a FakeEngine."""

import threading
from typing import Any, Self

from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.server import guarded, listen, make_server
from tests.eventually import DEADLINE_S, eventually


class ProxyServer:
    """Proxy in a thread, on a free port.

    Args:
        settings: of the proxy.
        is_guarded: it refuses what `ragboost serve` refuses; otherwise tests may use any `host`.
    """

    def __init__(self, settings: Settings, *, is_guarded: bool = False) -> None:
        self.settings = settings
        self.app = create_app(settings)
        app = guarded(self.app, settings.proxy) if is_guarded else self.app
        self.server = make_server(app, settings.proxy)
        listener = listen(settings.proxy)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.server.started or not self._thread.is_alive())
        assert self.server.started, "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the proxy did not stop"


def proxy_settings(backend_url: str, **sections: Any) -> Settings:
    """Return settings for a test: a free port, a short drain time, and the given sections.

    All paths are forwarded, so that a test may use any.
    """
    proxy = {"port": 0, "drain_s": 1, "forwarded_paths": ["/"], **sections.pop("proxy", {})}
    backend = {"connect_timeout_s": DEADLINE_S, **sections.pop("backend", {})}
    if "file" not in backend:
        backend.setdefault("url", backend_url)
    # Token lengths are estimates, so that the engine receives the test's requests only.
    sections.setdefault("tokens", {"ask_backend": False})
    return Settings(proxy=proxy, backend=backend, **sections)
