"""The page in a real headless Chromium."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.proxy.routes.dashboard.test_data import ask

webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra test")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

# CI keeps the pictures that the tests take in this folder.
SCREENSHOTS = Path(folder) if (folder := os.environ.get("DASHBOARD_SCREENSHOTS")) else None
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver"
)


@pytest.fixture(scope="module")
def browser() -> Iterator["webdriver.Chrome"]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def open_live(browser: "webdriver.Chrome", url: str, *, requests: int) -> None:
    """Open the page and wait until it shows this many requests."""
    browser.get(f"{url}/dashboard")
    eventually(lambda: text(browser, "requests"), equals=str(requests))


def text(browser: "webdriver.Chrome", name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def metric(page: str, name: str) -> int:
    """Sum of a counter over its labels."""
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", page, flags=re.MULTILINE)
    return round(sum(map(float, values)))


def test_the_figures_on_the_page_equal_the_metrics(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    for names in ("abc", "bca", "cda", "abd"):
        ask(proxy.url, names)

    open_live(browser, proxy.url, requests=4)

    page = httpx.get(f"{proxy.url}/metrics").text
    prompt = metric(page, "ragboost_prompt_tokens_total")
    cached = metric(page, "ragboost_cached_prompt_tokens_total")
    assert prompt > cached > 0
    assert text(browser, "prompt_tokens") == f"{prompt:,}"
    assert text(browser, "cached_tokens") == f"{cached:,}"
    assert text(browser, "hit_rate") == f"{100 * cached / prompt:.1f} %"
    assert text(browser, "requests") == f"{metric(page, 'ragboost_requests_total')}"
    assert text(browser, "documents_sent") == f"{metric(page, 'ragboost_documents_total')}"
    assert text(browser, "index_nodes") == f"{metric(page, 'ragboost_index_nodes')}"
    assert text(browser, "state") == "live"
    saved = metric(page, "ragboost_saved_prompt_tokens_total")
    saved -= metric(page, "ragboost_extra_prompt_tokens_total")
    assert text(browser, "saved") == f"{saved:,} tokens"
    assert text(browser, "boosted-of") == "4 of 4"
    assert text(browser, "health") == "healthy"
    orders = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#recent td.order")]
    assert "[Doc_b] [Doc_c] [Doc_a]" in orders
    assert browser.get_log("browser") == []


def test_the_index_opens_by_keyboard_and_stays_open(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    for names in ("abc", "abd"):
        ask(proxy.url, names)
    open_live(browser, proxy.url, requests=2)
    summary = browser.find_element(By.CSS_SELECTOR, "#indexes summary")
    browser.execute_script("arguments[0].focus()", summary)

    summary.send_keys(Keys.ENTER)

    inner = browser.find_element(By.CSS_SELECTOR, "#indexes details details summary")
    assert inner.is_displayed()
    assert "[Doc_" in inner.text
    ask(proxy.url, "abc")
    WebDriverWait(browser, 20).until(lambda b: text(b, "requests") == "3")
    assert browser.find_element(By.CSS_SELECTOR, "#indexes details details").is_displayed()


@pytest.mark.parametrize("name", ["m", "W" * 300])
@pytest.mark.parametrize("width", [360, 400, 768, 1240, 1400])
def test_nothing_sticks_out_of_a_window(
    browser: "webdriver.Chrome",
    start_proxy: Callable[..., ProxyServer],
    engine: FakeEngine,
    width: int,
    name: str,
) -> None:
    proxy = start_proxy(boost={"share": 0.5}, backends=[{"url": engine.url, "name": name}])
    ask(proxy.url, "abcd", model=name)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    open_live(browser, proxy.url, requests=1)

    scroll = browser.execute_script("return document.documentElement.scrollWidth")
    cut = browser.execute_script(
        "return [...document.querySelectorAll('section, section *')].filter("
        "(e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display === 'block')"
        ".map((e) => e.textContent)"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (scroll <= width, cut) == (True, [])


def test_a_dead_backend_is_red_with_its_reason_and_its_errors_have_a_kind(
    browser: "webdriver.Chrome", start_proxy: Callable[..., ProxyServer], unused_port: int
) -> None:
    proxy = start_proxy(backend={"url": f"http://127.0.0.1:{unused_port}"})
    httpx.post(f"{proxy.url}/v1/chat/completions", json={"model": "m", "messages": []})

    open_live(browser, proxy.url, requests=1)

    bad = [part.text for part in browser.find_elements(By.CSS_SELECTOR, ".bad")]
    assert "no backend works" in bad
    assert "down: cannot connect to the backend: connection refused" in bad
    assert text(browser, "health") == "1 of 1 backend down"
    assert {"1", "502"} <= set(bad)  # errors, and the status of the recent request
    assert "backend_unreachable" in text(browser, "error-kinds")
    assert (text(browser, "precision"), text(browser, "recall")) == ("\u2013", "\u2013")


def test_a_line_ends_with_the_requests_and_times_have_24_hours(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    ask(proxy.url, "ab")
    open_live(browser, proxy.url, requests=1)
    history = {
        "time": [1000.0 + 60 * at for at in range(20)],
        "prompt_tokens": [0, 0, 100, 200] + [200] * 9 + [300] + [300] * 6,
        "cached_tokens": [0, 0, 50, 100] + [100] * 9 + [100] + [100] * 6,
        "saved_tokens": [0.0] * 20,
    }

    browser.execute_script("charts(arguments[0])", history)

    lines = browser.find_elements(By.CSS_SELECTOR, "#rate-chart polyline")
    assert len(lines) == 2
    ends = [float(line.get_attribute("points").split()[-1].split(",")[0]) for line in lines]
    assert ends == pytest.approx([600 * 3 / 19, 600 * 13 / 19], abs=0.1)
    assert "the last one was 6 min ago" in text(browser, "rate-text")
    time = browser.find_element(By.CSS_SELECTOR, "#recent td").text
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)


def test_words_are_explained_and_the_root_leads_here(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    browser.get(f"{proxy.url}/")
    eventually(lambda: text(browser, "state"), equals="live")
    words = [part.get_attribute("textContent") for part in browser.find_elements(By.TAG_NAME, "dt")]
    figures = browser.find_elements(By.CSS_SELECTOR, ".figure span")
    assert {figure.get_attribute("textContent") for figure in figures} < set(words)


def test_tiles_of_features_that_are_off_are_not_shown(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    ask(proxy.url, "ab")
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    open_live(browser, proxy.url, requests=1)

    tiles = browser.find_elements(By.CSS_SELECTOR, ".figure")
    shown = [tile.find_element(By.TAG_NAME, "span").text for tile in tiles if tile.is_displayed()]

    assert shown[:3] == ["Saved by RAGBoost", "Boosted", "Health"]
    assert "Engine's cache anyway" in shown
    heads = {head.text for head in browser.find_elements(By.TAG_NAME, "th")}
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert "running" in heads
    assert not {"held above", "reason", "kind"} & heads  # no waiting room, nothing to list
    hidden = {"Bought tokens", "Recomputed tokens", "Cost of prompts", "Waiting", "Not sent again"}
    assert not hidden & set(shown)


def test_a_request_that_was_not_boosted_is_one_click_from_why(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    chat = f"{proxy.url}/v1/chat/completions"
    httpx.post(chat, json={"model": "m", "messages": [], "ragboost": {"documents": 1}})
    httpx.post(chat, json={"model": "m", "messages": [{"role": "user", "content": "Why?"}]})
    open_live(browser, proxy.url, requests=2)

    for details in browser.find_elements(By.CSS_SELECTOR, "#recent summary"):
        details.click()

    unmarked, refused = [d.text for d in browser.find_elements(By.CSS_SELECTOR, "#recent details")]
    assert "What helps: put each document into a tag" in unmarked
    assert "Why: ragboost.documents must be a list" in refused
    assert "put each document into a tag" in text(browser, "reasons")


def test_a_pasted_request_is_explained(browser: "webdriver.Chrome", proxy: ProxyServer) -> None:
    open_live(browser, proxy.url, requests=0)
    texts = "".join(f"<document>Text {i}. {'word ' * 60}</document>\\n" for i in range(3))
    body = f'{{"messages": [{{"role": "user", "content": "{texts}Why?"}}]}}'

    browser.find_element(By.ID, "body").send_keys(body)
    browser.find_element(By.CSS_SELECTOR, "#explain-form button").click()

    eventually(lambda: text(browser, "explanation") != "")
    assert text(browser, "explanation").startswith("found; 3 documents to order")


@pytest.mark.parametrize("state", ["empty", "busy", "dead"])
def test_every_state_fits_both_windows_in_light_and_dark(
    browser: "webdriver.Chrome",
    start_proxy: Callable[..., ProxyServer],
    unused_port: int,
    state: str,
    tmp_path: Path,
) -> None:
    dead = {"backend": {"url": f"http://127.0.0.1:{unused_port}"}} if state == "dead" else {}
    proxy = start_proxy(**dead)
    for names in () if state == "empty" else ("abc", "cab"):
        ask(proxy.url, names, fails=state == "dead")
    pictures = set()
    for scheme, width in itertools.product(("light", "dark"), (1280, 390)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        open_live(browser, proxy.url, requests=0 if state == "empty" else 2)
        file = SCREENSHOTS or tmp_path
        browser.save_screenshot(str(file / f"dashboard-{state}-{scheme}-{width}.png"))
        pictures.add((file / f"dashboard-{state}-{scheme}-{width}.png").read_bytes())
        sizes = "const e = document.documentElement; return e.scrollWidth - e.clientWidth"
        assert browser.execute_script(sizes) == 0, (scheme, width)
        saved = {"empty": "\u2013", "busy": "tokens", "dead": "0 tokens"}[state]
        assert saved in text(browser, "saved")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(pictures) == 4


def test_a_name_that_looks_like_html_is_text(
    browser: "webdriver.Chrome", proxy: ProxyServer
) -> None:
    name = "<img src=x onerror=document.title=1>"
    ask(proxy.url, "ab", model=name)

    open_live(browser, proxy.url, requests=1)

    assert browser.title == "RAGBoost"
    assert browser.find_elements(By.CSS_SELECTOR, "main img") == []
    assert name in text(browser, "indexes")


def test_the_page_asks_for_the_api_key(browser: "webdriver.Chrome") -> None:
    with (
        FakeEngine() as engine,
        ProxyServer(proxy_settings(engine.url, proxy={"api_keys": ["right"]})) as proxy,
    ):
        browser.get(f"{proxy.url}/dashboard")
        key = browser.find_element(By.ID, "key")
        WebDriverWait(browser, 20).until(lambda _: key.is_displayed())
        assert text(browser, "state") == "an API key is needed"

        key.send_keys("right", Keys.ENTER)

        WebDriverWait(browser, 20).until(lambda b: text(b, "state") == "live")
        assert not key.is_displayed()
