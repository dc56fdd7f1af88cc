"""KV memory watched block by block: what lies where by hand, and the page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from servesim.checking.world import toy_trace
from servesim.cli.app import app
from servesim.contracts.request import Request
from servesim.errors import UserError
from servesim.reports.playback import CACHED, FREE, Playback, Watch, play
from servesim.reports.playback_page import playback_page

MACHINE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100"}
OPTIONS = "--model llama-3.2-1b --gpu h100 --engine.num-gpu-blocks 65 --engine.max-model-len 256"
TRACE = "--trace synth:rate=40,prompt=64,output=20 --requests 6"


def watched(kv: str, blocks: int, **more: Any) -> Playback:
    """Two prompts of 40 tokens, five tokens out each, the second after the first is done."""
    runs = [[(1, 32), (2, 8)], [(1, 32), (3, 8)]]
    trace = toy_trace([0, 2 * 10**9], [40, 40], [5, 5], runs=runs)
    engine = {"num_gpu_blocks": blocks, "max_model_len": 64, **more}
    return play({**MACHINE, "trace": trace, "kv": kv, "engine": engine})


def shown(playback: Playback) -> list[str]:
    """Cells of each frame that differs from the one before: . free, c cached, a number by its request, ' not filled."""
    words = []
    for frame in playback.frames:
        cells = ["." if v == FREE else "c" if v == CACHED else f"{v // 2 - 1}" + "'" * (v % 2) for v in frame.cells]
        if not words or words[-1] != " ".join(cells):
            words.append(" ".join(cells))
    return words


def test_pages_come_one_by_one_and_go_when_the_request_is_done() -> None:
    """40 tokens take three blocks of 16, and the five of the answer stay within the third."""
    assert shown(watched("paged", 6)) == [". . . . .", "0 0 0 . .", "1 1 1 . .", ". . . . ."]


def test_a_reservation_is_held_to_the_longest_and_filled_from_its_beginning() -> None:
    """64 tokens are reserved: four cells, the last of which 45 tokens never reach."""
    assert shown(watched("contiguous", 8)) == [
        ". . . . . . . .",
        "0 0 0 0' . . . .",
        "1 1 1 1' . . . .",
        ". . . . . . . .",
    ]


def test_a_prefix_cache_keeps_full_blocks_and_the_next_request_takes_what_it_shares() -> None:
    """Two blocks of 16 are full and stay; the second request takes these two for its own 32 tokens in common."""
    assert shown(watched("prefix-hash", 6)) == [". . . . .", "0 0 0 . .", "1 1 1 . .", "c c . . ."]


def test_runs_of_a_page_share_the_time_axis_of_who_ran_together() -> None:
    """32 blocks of 16 tokens reserve room for two requests at a time, so one run ends far later than the other."""
    given = {**MACHINE, "trace": "synth:rate=60,prompt=64,output=20", "requests": 12}
    given["engine"] = {"num_gpu_blocks": 33, "max_model_len": 256}
    html = playback_page([play({**given, "kv": kv}, kv) for kv in ("contiguous", "paged")]).html()
    axes = [json.loads(unescape(found)) for found in re.findall(r'data-axes="([^"]+)"', html)]
    assert len(axes) == 4, "two figures in two versions"
    assert len({panel["x"]["to"] for (panel,) in axes}) == 1
    assert len({panel["x"]["label"] for (panel,) in axes}) == 1


def test_frames_come_in_the_order_of_time_from_empty_memory_to_the_end() -> None:
    frames = watched("paged", 6).frames
    times = [frame.ns for frame in frames]
    assert times == sorted(times)
    assert not frames[0].cells.any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": {"num_gpu_blocks": 4096}}, "4,095 blocks, but at most 2,048 can be drawn"),
        ({"replicas": 2}, "can draw only one replica, not 2"),
        (
            {"kv": "prefix-radix", "engine": {"num_gpu_blocks": 64, "max_model_len": 256}},
            "does not report which blocks",
        ),
        ({"requests": 500}, "500 requests, but at most 400 can be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_it_runs(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        play({**MACHINE, "trace": "synth:rate=9,prompt=64,output=8", "requests": 4, **settings})


def test_the_page_holds_every_frame_and_the_same_bytes_each_time() -> None:
    plays = [watched("paged", 6), watched("contiguous", 8)]
    html = playback_page(plays).html()
    assert html == playback_page(plays).html()
    for i, each in enumerate(plays):
        found = re.search(rf'id="memory-{i}-data">(.*?)</script>', html, re.S)
        assert found is not None
        told = json.loads(found[1])
        state = np.zeros_like(each.frames[0].cells)
        for frame, changes in zip(each.frames, told["changes"], strict=True):
            state[changes[::2]] = changes[1::2]
            assert (state == frame.cells).all()
        assert len(told["words"]) == len(told["s"]) == len(each.frames)


def test_a_frame_is_told_in_words() -> None:
    html = playback_page([watched("contiguous", 8)]).html()
    assert "1 request in memory, 0 waiting, 3 blocks filled, 1 reserved but empty, 4 free" in html


def test_the_command_writes_a_grid_for_each_combination(tmp_path: Path) -> None:
    out = tmp_path / "play.html"
    command = f"play {TRACE} {OPTIONS} --kv paged,contiguous --scheduler vllm,static --out {out}"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    assert out.read_text().count('class="memory"') == 4


def test_the_command_refuses_what_is_no_page_and_too_many_grids(tmp_path: Path) -> None:
    for more in (["--out", str(tmp_path / "play.txt")], ["--engine.block-size", "1,2,4,8,16,32,64"]):
        done = CliRunner().invoke(app, ["play", *TRACE.split(), *OPTIONS.split(), *more])
        assert isinstance(done.exception, UserError)
    assert not list(tmp_path.iterdir())


def test_blocks_outside_the_memory_that_is_drawn_mark_no_cell() -> None:
    """Block 0 is the null block: it is before the first cell, and not the last."""
    watch, kv = Watch(), SimpleNamespace(block_size=4)
    watch._kv, watch._first, watch._units, watch.num_cells = kv, 1, 1, 4  # type: ignore[assignment]
    request = Request(0, "a", 9, 1, 0)
    request.num_computed_tokens = 8
    found = np.zeros(4, np.int32)
    watch._mark(found, request, [0, 2, 3])
    assert found.tolist() == [FREE, 2, 2, FREE]
    watch._mark(found, request, [[1, 5]])
    assert found.tolist() == [2, 2, 2, FREE]
