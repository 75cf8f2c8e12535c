"""Take the documentation's screenshots of the dashboard under the demo's workload.

    python -m scripts.dashboard_screenshots

Needs Debian's chromium and chromium-driver.
"""

import asyncio
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from ragboost.config import BackendSettings, EngineSettings, IndexSettings, Settings
from ragboost.engine import create_engine_app, with_events
from ragboost.evaluation.demo.replay import MODEL, replay
from ragboost.evaluation.demo.workload import Workload, make_workload, standard_library
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CAPACITY = 65_536
MIN_REQUESTS = 90


class View(NamedTuple):
    """Browser window of one screenshot."""

    name: str
    scheme: str
    width: int
    height: int


VIEWS = (
    View("dashboard-light", "light", 1280, 1900),
    View("dashboard-dark", "dark", 1280, 1900),
    View("dashboard-narrow", "light", 390, 1900),
)
DEAD = View("dashboard-dead", "light", 1280, 1000)


def load(proxy: str) -> threading.Thread:
    """Replay the demo's workload in a thread: single questions, conversations, and questions
    without documents, concurrently."""
    documents = standard_library()
    workload = make_workload(documents, sessions=240, conversations=30, turns=4, k=8, seed=1)

    async def send(part: Workload) -> None:
        async for _ in replay(part, proxy, boosted=True, max_tokens=8):
            pass

    async def chat() -> None:
        async with httpx.AsyncClient(base_url=proxy, timeout=300) as client:
            for number in range(20):
                messages = [{"role": "user", "content": f"What is {number} times {number}?"}]
                body = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True}
                await client.post("/v1/chat/completions", json=body)
                await asyncio.sleep(4)

    async def run() -> None:
        await asyncio.gather(
            send(workload._replace(conversations=[])), send(workload._replace(sessions=[])), chat()
        )

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    return thread


def take(url: str, *views: View, min_requests: int = MIN_REQUESTS) -> None:
    """Write a screenshot of each view, when the page shows so many requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("chromium is not installed")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    IMAGES.mkdir(exist_ok=True)
    try:
        for view in views:
            features = [{"name": "prefers-color-scheme", "value": view.scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            size = {"width": view.width, "height": view.height}
            scale = {"deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, **scale})
            browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            browser.get(f"{url}/dashboard")
            WebDriverWait(browser, 600).until(partial(_is_filled, min_requests))
            browser.execute_script(
                "document.querySelectorAll('#indexes > div > details').forEach((d, i) => {"
                " if (i < 2) d.open = true; })"
            )
            path = IMAGES / f"{view.name}.png"
            browser.save_screenshot(str(path))
            print(path)
    finally:
        browser.quit()


def _is_filled(min_requests: int, browser: webdriver.Chrome) -> bool:
    count = "document.getElementById('requests').textContent.replace(/\\D/g, '')"
    return bool(browser.execute_script(f"return Number({count}) >= {min_requests}"))


def take_dead() -> None:
    """Write a screenshot of a proxy whose only backend does not answer."""
    settings = Settings(backend=BackendSettings(url="http://127.0.0.1:9"))  # nobody listens
    with serve_in_thread(create_app(settings)) as url:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Who signed the lease?"}]}
        for _ in range(3):
            httpx.post(f"{url}/v1/chat/completions", json=body)
        take(url, DEAD, min_requests=3)


def main() -> None:
    """Serve the embedded engine and the proxy, and take screenshots under load."""
    engine = EngineSettings(capacity_tokens=CAPACITY, served_model_name=MODEL)
    with serve_in_thread(create_engine_app(with_events(engine))) as engine_url:
        settings = Settings(
            backend=BackendSettings(url=engine_url), index=IndexSettings(capacity_tokens=CAPACITY)
        )
        with serve_in_thread(create_app(settings)) as url:
            thread = load(url)
            take(url, *VIEWS)
            thread.join()
    take_dead()


if __name__ == "__main__":
    main()
