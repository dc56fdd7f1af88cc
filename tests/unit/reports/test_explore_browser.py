"""The explorer in a real browser: quick changes leave no stale or mixed picture. Skipped without Chromium."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

import pytest

from servesim.cli.explore import opened
from servesim.reports.explore import server
from servesim.reports.explore.page import explore_page
from tests.unit.reports.test_browser import CHROMIUM, FRAME
from tests.unit.reports.test_browser import opened as seen
from tests.unit.reports.test_explore import GIVEN

uvicorn = pytest.importorskip("uvicorn", reason="the extra explore is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: pages are not opened in a browser"),
]
DRIVER = """
const tell = (text) => fetch("/told", { method: "POST", body: text + "\\n" + document.documentElement.outerHTML });
const pause = (ms) => new Promise((go) => setTimeout(go, ms));
const settled = async () => { while (picture.getAttribute("aria-busy") === "true") await pause(20); };
const set = (key, value) => {
  const control = controls.find((one) => one.dataset.key === key);
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
};
const slide = (key, place) => {
  const slider = sliderOf(controls.find((one) => one.dataset.key === key));
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
};
"""
"""What stands at the end of the page's own script; the test's part follows, and tells what it has found."""


class Desk:
    """An explorer's server in this process, whose page runs the test's part and tells what that found."""

    def __init__(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        explorer, page = opened(None, dict(GIVEN))
        self.explorer = explorer
        sock = server.listening(0)
        self.address = f"http://127.0.0.1:{sock.getsockname()[1]}/"
        self.told: SimpleQueue[str] = SimpleQueue()
        original, part = (
            server.explore_page,
            f"<script>{DRIVER}(async () => {{ await settled(); {script} }})();</script>",
        )

        class Driven:
            def __init__(self, *args: Any, **more: Any) -> None:
                self._page = original(*args, **more)

            def html(self) -> str:
                return self._page.html().replace("</body>", part + "</body>")

        monkeypatch.setattr(server, "explore_page", Driven)
        inner, _ = server.application(explorer, sock.getsockname()[1], page)

        async def listens(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") != "/told":
                await inner(scope, receive, send)
                return
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body", False)
            self.told.put(body.decode())
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        self._server = uvicorn.Server(uvicorn.Config(listens, log_level="warning", lifespan="off"))
        self._sock = sock
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(300)
        self._sock.close()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Desk]:
    found = Desk(request.param, monkeypatch)
    yield found
    found.close()


@contextmanager
def browser(address: str, folder: Path, size: str = "1400,1000") -> Iterator[None]:
    """A browser at an address, in real time; no word but of questions overtaken on its console."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        "--remote-debugging-port=0", f"--user-data-dir={folder}", f"--window-size={size}", address,
    ]  # fmt: skip
    folder.mkdir()
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            yield
        finally:
            process.terminate()
    lines = (folder / "log").read_text().splitlines()
    assert [line for line in lines if "CONSOLE" in line and "409" not in line and "422" not in line] == []


QUICK = """
  let odd = 0;
  document.addEventListener("shown", () => {
    const state = Object.fromEntries(new URLSearchParams(picture.dataset.state));
    const rate = picture.querySelector("#command").textContent.match(/--rate (\\S+)/)[1];
    if (rate !== String(Number(state.rate)) || picture.dataset.number !== String(number)) odd += 1;
  });
  for (let i = 0; i < 100; i++) { slide("rate", 200 + 5 * i); await pause(i % 7 * 3); }
  await settled();
  await pause(600);
  const rate = controls.find((one) => one.dataset.key === "rate").value;
  const same = rate === new URLSearchParams(picture.dataset.state).get("rate");
  tell([number, odd, same, picture.querySelectorAll("#timeline").length, location.hash].join(" "));
"""


@pytest.mark.parametrize("desk", [QUICK], indirect=True)
def test_a_hundred_quick_changes_end_in_the_picture_of_the_last(desk: Desk, tmp_path: Path) -> None:
    with browser(desk.address, tmp_path / "profile"):
        said, _, html = desk.told.get(timeout=120).partition("\n")
    number, odd, same, figures, place = said.split()
    assert 80 < int(number) <= 101, "places of the slider between which a value rounds to the same are no change"
    assert (odd, same, figures) == ("0", "true", "1")
    rate = re.search(r"rate=([\d.]+)", place)
    assert rate is not None
    alone = opened(None, dict(GIVEN))[0]
    expected = alone.picture([{"rate": rate[1]}], lambda: False)
    drawn = re.findall(r' d="([^"]+)" clip-path', expected)
    assert drawn == re.findall(r' d="([^"]+)" clip-path', html), "every line of the figures is that run's"
    assert len(drawn) >= 6


BAD = """
  set("rate", "-3");
  await settled();
  const first = wrong.textContent + "|" + wrong.hidden + "|" + picture.children.length;
  set("rate", "30");
  await settled();
  tell(first + "|" + wrong.hidden + "|" + (picture.children.length > 0));
"""


@pytest.mark.parametrize("desk", [BAD], indirect=True)
def test_a_bad_value_is_a_line_in_place_of_the_picture(desk: Desk, tmp_path: Path) -> None:
    with browser(desk.address, tmp_path / "profile"):
        said, _, _ = desk.told.get(timeout=120).partition("\n")
    assert said == "Rate: -3 is not between 0.001 and 100000|false|0|true|true"


STAY = """
  const rows = picture.querySelectorAll("tbody th[scope=row]").length;
  tell([picture.dataset.state, document.querySelectorAll("#kept .chip").length, rows].join(" "));
"""


@pytest.mark.parametrize("desk", [STAY], indirect=True)
def test_the_address_holds_the_state_for_two_browsers_at_once(desk: Desk, tmp_path: Path) -> None:
    first = "#" + urlencode([("rate", "31"), ("beside", "rate=45"), ("beside", "gpu=h100")])
    second = "#" + urlencode([("gpu", "h100"), ("scheduler", "sarathi")])
    with (
        browser(desk.address + first, tmp_path / "one"),
        browser(desk.address + second, tmp_path / "two"),
    ):
        told = sorted(desk.told.get(timeout=120).partition("\n")[::2] for _ in range(2))
    (said_second, html_second), (said_first, html_first) = told
    assert (said_first, said_second) == ("rate=31 3 3", "gpu=h100&scheduler=sarathi 1 0")
    assert "--rate 31" in html_first
    assert "--scheduler sarathi" in html_second


FIT = "tell(document.documentElement.scrollWidth <= innerWidth);"


@pytest.mark.parametrize("desk", [FIT], indirect=True)
@pytest.mark.parametrize("width", [1400, 768])
def test_it_fits_its_window(desk: Desk, width: int, tmp_path: Path) -> None:
    with browser(desk.address, tmp_path / "profile", f"{width},1000"):
        assert desk.told.get(timeout=120).startswith("true\n")


def test_it_fits_a_phone(tmp_path: Path) -> None:
    explorer, words = opened(None, dict(GIVEN))
    page = explore_page(explorer.controls, **words)
    page.scripts = ("page.js", "zoom.js")
    picture = explorer.picture([{"rate": "31"}, {}], lambda: False, narrow=True)
    html = page.html().replace('<div id="picture" aria-busy="true">', f'<div id="picture">{picture}')
    assert picture in html
    frame = tmp_path / "phone.html"
    frame.write_text(FRAME.format(width=390, page=escape(html)))
    document, console = seen(frame)
    assert console == []
    width = re.search(r"<title>width (\d+)</title>", document)
    assert width is not None
    assert int(width[1]) <= 390
