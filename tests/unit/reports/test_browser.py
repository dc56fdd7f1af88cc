"""The pages in a real browser: no console errors, no sideways scrolling on a phone. Skipped without Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import servesim
from servesim.reports.playback import play
from servesim.reports.playback_page import playback_page
from servesim.reports.prefix_tree import tree_of
from servesim_lab import claims_page
from servesim_lab.claims import find

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: pages are not opened in a browser"),
]
FRAME = """<!DOCTYPE html><title>none</title><iframe style="width: {width}px; height: 900px" srcdoc="{page}"
onload="document.title = 'width ' + this.contentDocument.documentElement.scrollWidth"></iframe></html>"""


def opened(page: Path, address: str = "") -> tuple[str, list[str]]:
    """The document once loaded at this part of its address (`#...`), and what was written to the console."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        f"--user-data-dir={page.parent / 'profile'}", "--window-size=1400,1000", page.as_uri() + address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "</html>" in done.stdout, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=400,output=lognormal(p50=30,p95=90)",
    "requests": 100,
    "model": "llama-3.2-1b",
    "gpu": "h200",
}
SLO = "ttft:50,tpot:10"
PAGES: dict[str, Callable[[Path], Any]] = {
    "run": lambda out: servesim.simulate(**WORKLOAD, slo=SLO, engine={"num_gpu_blocks": 120}, out=out),
    "compare": lambda out: servesim.compare(
        **WORKLOAD, slo=SLO, scheduler=["vllm", "vllm:max_num_batched_tokens=512"], replicates=2, jobs=1, out=out
    ),
    "sweep": lambda out: servesim.sweep(**WORKLOAD, rate=[20, 40, 80], jobs=1, out=out),
    "reproduce": lambda out: claims_page.write(
        out, [find(name)[0].document() for name in ("batching-steps", "selective-batching")], {}
    ),
    "capacity": lambda out: servesim.capacity(**WORKLOAD, slo=SLO, tolerance=0.5, replicates=2, jobs=1, out=out),
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_opens_without_a_word_on_the_console_and_fits(kind: str, tmp_path: Path) -> None:
    PAGES[kind](tmp_path / "result")
    html = servesim.report(tmp_path / "result")
    for width in (1280, 390):
        page = tmp_path / f"{width}.html"
        page.write_text(FRAME.format(width=width, page=escape(html)))
        document, console = opened(page)
        assert console == []
        said = re.search(r"<title>width (\d+)</title>", document)
        assert said is not None
        assert int(said[1]) <= width


def test_a_broken_page_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<!DOCTYPE html><html><body><script>missing();</script></body></html>")
    assert "missing is not defined" in opened(page)[1][0]
    page.write_text(FRAME.format(width=390, page=escape('<div style="width: 500px">wide</div>')))
    assert "<title>width 508</title>" in opened(page)[0]


def printed(page: Path) -> str:
    """The text of a page on paper."""
    from pypdf import PdfReader

    paper = page.with_suffix(".pdf")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}",
        f"--print-to-pdf={paper}", "--no-pdf-header-footer", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    return "".join(sheet.extract_text() for sheet in PdfReader(paper).pages)


@pytest.mark.parametrize("kind", ["compare", "sweep", "capacity"])
def test_paper_loses_no_column(kind: str, tmp_path: Path) -> None:
    PAGES[kind](tmp_path / "result")
    page = tmp_path / "page.html"
    page.write_text(servesim.report(tmp_path / "result"))
    text = "".join(printed(page).split())
    rows = re.findall(r"<tr>(.*?)</tr>", page.read_text(), re.S)
    last = [re.sub(r"<[^>]*>", "", unescape(re.split(r"<t[hd][^>]*>", row)[-1])) for row in rows]
    assert len(last) > 5
    assert [cell for cell in last if "".join(cell.split()) not in text] == []


HANDS = """<script>
const found = [];
const shown = (id) => [...document.querySelectorAll(`#${id} svg`)].find((svg) => svg.getBoundingClientRect().width);
const point = (svg, x, y) => {
  const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: at.x, clientY: at.y, bubbles: true }));
  return document.querySelector(".tip").innerText.replaceAll("\\n", "|");
};
const line = panels(shown("timeline"))[1];
const [x, y] = line.lines[0].points[40];
found.push(point(shown("timeline"), x, y), String(inValues(line, [x, y])[1]));
const frame = shown("timeline").parentElement;
frame.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
found.push(document.querySelector(".tip").innerText.replaceAll("\\n", "|"));
const { bars, box } = panels(shown("gantt"))[0];
const last = bars.find((one) => one.colour === "blue" && one.box[0] > (box[0] + box[2]) / 4 && one.box[2] < box[2]).box;
found.push(point(shown("gantt"), (last[0] + last[2]) / 2, (last[1] + last[3]) / 2));
const pale = bars.filter((one) => one.path.style.opacity === "0.2");
const apart = ({ colour, box: b }) => colour === "amber" || b[2] <= last[0] || b[0] >= last[2];
found.push(pale.length > 0 && pale.every(apart));
hideTip();
found.push(bars.some((one) => one.path.style.opacity === "0.2"));
const [first] = document.querySelectorAll("#gantt .legend button");
first.click();
const drawn = [...document.querySelectorAll("#gantt svg [style]")];
found.push(drawn.some((one) => one.style.visibility === "hidden"));
found.push(first.getAttribute("aria-pressed"));
const table = document.querySelector("table");
const means = () => [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
const before = means();
table.querySelectorAll("thead button")[0].click();
found.push(before, means());
const links = [...document.querySelectorAll("nav.sections a")].map((a) => a.getAttribute("href"));
found.push(links.length > 2 && links.every((link) => document.querySelector(link)));
found.push(asCsv(shown("timeline")).split("\\n")[0]);
document.title = JSON.stringify(found);
</script></body>"""


def test_a_page_tells_values_by_pointer_and_keys_hides_series_sorts_tables_and_leads_to_sections(
    tmp_path: Path,
) -> None:
    PAGES["run"](tmp_path / "result")
    page = tmp_path / "hands.html"
    page.write_text(servesim.report(tmp_path / "result").replace("</body>", HANDS))
    document, console = opened(page)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", document, re.S)
    assert title is not None
    hover, value, by_key, *beside, hidden, pressed, before, after, led, csv = json.loads(unescape(title[1]))
    assert re.fullmatch(r"[\d.]+ seconds since the first arrival\|Sequences in a step [\d.]+", hover)
    assert float(hover.rpartition(" ")[2]) == pytest.approx(float(value), rel=0.01)
    assert by_key != hover
    assert "seconds since the first arrival" in by_key
    assert re.search(r"ran beside \d+$", beside[0])
    assert beside[1:] == [True, False], "others are pale while the pointer is there"
    assert (hidden, pressed) == (True, "false")
    assert sorted(before) == sorted(after)
    assert [_ms(mean) for mean in after] == sorted(_ms(mean) for mean in before)
    assert led
    assert csv == '"panel","series","x","y","x_end"'


PLAYED = """<script>
{
const found = [];
const slider = document.getElementById("clock");
const words = () => all("[id$=-words]").map((one) => one.textContent);
const numbers = (i) => all(`#memory-${i} text`).map((one) => one.textContent).join("");
found.push(document.querySelector(".player").hidden, words(), numbers(0));
const to = (value) => {
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
  const now = document.getElementById("now").textContent;
  return [words(), numbers(0), numbers(1), now, slider.getAttribute("aria-valuetext")];
};
found.push(to(0), to(1000), to(500), to(500));
document.getElementById("play").click();
found.push(document.getElementById("play").textContent);
document.getElementById("play").click();
found.push(document.getElementById("play").textContent);
document.title = JSON.stringify(found);
}
</script></body>"""


def test_memory_is_played_back_by_a_slider_in_every_grid_at_once(tmp_path: Path) -> None:
    given = {"trace": "synth:rate=40,prompt=64,output=20", "requests": 12, "model": "llama-3.2-1b", "gpu": "h100"}
    engine = {"num_gpu_blocks": 65, "max_model_len": 256}
    plays = [play({**given, "engine": engine, "kv": kv}, kv) for kv in ("contiguous", "paged")]
    page = tmp_path / "played.html"
    page.write_text(playback_page(plays).html().replace("</body>", PLAYED))
    document, console = opened(page)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", document, re.S)
    assert title is not None
    hidden, _, held, begin, end, middle, again, playing, paused = json.loads(unescape(title[1]))
    assert not hidden
    assert held
    assert begin[1:3] == ["", ""], "nothing is held at first"
    assert all("12 waiting" not in words for words in begin[0])
    assert end[1:3] == ["", ""], "and nothing in the end"
    assert "64 free" in end[0][1]
    assert middle[1]
    assert middle[2]
    assert middle == again
    assert begin[3:] == ["0.000 s", "0.000 s"]
    assert (playing, paused) == ("Pause", "Play")


GROWN = """<script>
{
const found = [];
const slider = document.getElementById("clock");
const numbers = (text) => text.match(/-?\\d+/g).map(Number);
for (let at = 0; at <= 1000; at += 40) {
  slider.value = at;
  slider.dispatchEvent(new Event("input"));
  const cells = all("#memory-0-tree g").map((cell, i) => [cell, i]).filter(([cell]) => !cell.matches(".free"));
  const line = (cell) => (cell.firstChild.getAttribute("d") ? numbers(cell.firstChild.getAttribute("d"))[3] : null);
  const stands = ([cell, i]) => [i, ...numbers(cell.getAttribute("transform")), line(cell)];
  found.push([Number(slider.value), cells.map(stands)]);
}
document.title = JSON.stringify(found);
}
</script></body>"""


def test_a_prefix_tree_grows_in_the_browser_as_it_does_here(tmp_path: Path) -> None:
    """A cell of 26 pixels, 8 between columns; the line to a parent in another row ends in the middle of its row."""
    given = {"trace": "synth:rate=60,prompt=100,output=30", "requests": 30, "model": "llama-3.2-1b", "gpu": "h100"}
    given |= {"shape": "share:tokens=64,groups=3", "seed": 1}
    played = play({**given, "engine": {"num_gpu_blocks": 65, "max_model_len": 256}, "kv": "prefix-hash"})
    tree = tree_of(played)
    assert tree is not None
    page = tmp_path / "grown.html"
    page.write_text(playback_page([played]).html().replace("</body>", GROWN))
    document, console = opened(page)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", document, re.S)
    assert title is not None
    times = np.array([frame.ns - played.run.begin_ns for frame in played.frames]) / 1e9
    end = round((played.run.end_ns - played.run.begin_ns) / 1e9, 6)
    seen = set()
    for at, cells in json.loads(unescape(title[1])):
        k = max(int(np.searchsorted(np.round(times, 6), at / 1000 * end, side="right")) - 1, 0)
        expected = [
            [cell, 34 * place.column, 26 * place.row, None if place.parent_row == place.row
             else 26 * (place.parent_row - place.row) + 13]
            for cell, place in sorted(tree.at(k, played.frames[k].cells).items())
        ]  # fmt: skip
        assert cells == expected
        seen.add(len(cells))
    assert len(seen) > 5


ZOOMED = """<script>
{
const found = [];
const shown = (id) => [...document.querySelectorAll(`#${id} svg`)].find((svg) => svg.getBoundingClientRect().width);
const axes = (id) => JSON.parse(shown(id).dataset.axes)[0].x;
const send = (svg, type, x, y, more = {}) => {
  const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
  svg.dispatchEvent(new PointerEvent(type, { clientX: at.x, clientY: at.y, bubbles: true, ...more }));
};
const svg = shown("timeline");
const whole = axes("timeline");
const drawn = svg.innerHTML;
const [panel] = panels(svg);
const [left, top, right, bottom] = panel.box;
const points = panel.lines[0].points;
const mid = points.find(([x]) => x > left + (right - left) * 0.5);
const said = inValues(panel, mid)[1];
const drag = (pointerType) => {
  send(svg, "pointerdown", left + (right - left) * 0.25, top + 5, { pointerType });
  send(svg, "pointermove", left + (right - left) * 0.75, top + 5, { pointerType });
  send(svg, "pointerup", left + (right - left) * 0.75, top + 5, { pointerType });
};
drag("touch");
found.push(axes("timeline").to === whole.to);
drag("mouse");
const part = axes("timeline");
found.push([part.from / whole.to, part.to / whole.to], axes("kv_memory").to === part.to);
const [narrow] = panels(svg);
const wanted = left + 2 * (mid[0] - (left + right) / 2) + (right - left) / 2;
const near = nearest(narrow.lines[0].points, wanted);
found.push([near[0] - wanted, inValues(narrow, near)[1] - said]);
const ticks = [...svg.querySelectorAll("text.zoomed")].map((text) => Number(text.textContent));
found.push(ticks.length > 2 && ticks.every((tick) => tick >= part.from && tick <= part.to));
found.push(!document.querySelector("#timeline .whole").hidden);
dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
found.push(axes("timeline").to === whole.to && document.querySelector("#timeline .whole").hidden);
found.push(points.every(([x], i) => Math.abs(panels(svg)[0].lines[0].points[i][0] - x) < 0.11));
const frame = svg.parentElement;
for (const key of ["ArrowRight", "PageDown", "+"]) frame.dispatchEvent(new KeyboardEvent("keydown", { key }));
found.push((axes("timeline").to - axes("timeline").from) / whole.to);
document.title = JSON.stringify(found);
}
</script></body>"""


def test_a_stretch_of_time_is_brushed_in_every_figure_and_given_back(tmp_path: Path) -> None:
    PAGES["run"](tmp_path / "result")
    page = tmp_path / "zoomed.html"
    page.write_text(servesim.report(tmp_path / "result").replace("</body>", ZOOMED))
    document, console = opened(page)
    assert console == []
    title = re.search(r"<title>(.*?)</title>", document, re.S)
    assert title is not None
    by_touch, part, linked, off, ticks, offered, back, points, by_key = json.loads(unescape(title[1]))
    assert by_touch  # a finger scrolls
    assert part == pytest.approx([0.25, 0.75], abs=0.005)
    assert linked
    assert off == pytest.approx([0, 0], abs=0.2)  # the same point, drawn where its time now is, means the same value
    assert (ticks, offered, back, points) == (True, True, True, True)
    assert by_key == pytest.approx(0.5, abs=0.01)


def _ms(text: str) -> float:
    figure, unit = text.split()
    return float(figure) * {"µs": 1e-3, "ms": 1.0, "s": 1e3}[unit]
