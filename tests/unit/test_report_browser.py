"""The pages in a real browser: no console errors, no sideways scrolling on a phone. Skipped without Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

import servesim
from servesim.reports.page import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: pages are not opened in a browser"),
]
FRAME = """<!DOCTYPE html><title>none</title><iframe style="width: {width}px; height: 900px" srcdoc="{page}"
onload="document.title = 'width ' + this.contentDocument.documentElement.scrollWidth"></iframe></html>"""


def opened(page: Path) -> tuple[str, list[str]]:
    """The document once loaded, and what was written to the console."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        f"--user-data-dir={page.parent / 'profile'}", "--window-size=1400,1000", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "</html>" in done.stdout, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("run") / "result"
    servesim.simulate(
        trace="synth:rate=60,prompt=400,output=lognormal(p50=30,p95=90)", requests=150, model="llama-3.2-1b",
        gpu="h200", slo="ttft:50", engine={"num_gpu_blocks": 120}, out=out,
    )  # fmt: skip
    return build(out)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_opens_without_a_word_on_the_console_and_fits(html: str, width: int, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(FRAME.format(width=width, page=escape(html)))
    document, console = opened(page)
    assert console == []
    said = re.search(r"<title>width (\d+)</title>", document)
    assert said is not None
    assert int(said[1]) <= width


def test_a_broken_page_would_be_noticed(html: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", "<script>missing();</script></body>"))
    assert "missing is not defined" in opened(page)[1][0]
