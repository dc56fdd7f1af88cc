"""What an author of a paper chooses: one panel of a figure, and names of variants."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import servesim
from servesim import UserError
from servesim.cli.app import main
from servesim.reports.drawings import _opened
from servesim.reports.variants import renamed
from tests.unit.reports.test_drawings import WORKLOAD

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore:figure ")]
OTHER = "vllm:max_num_seqs=1"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "ab"
    servesim.compare(
        **{**WORKLOAD, "requests": 200},
        scheduler=["vllm", "vllm:max_num_seqs=64", OTHER],
        replicates=2,
        jobs=1,
        out=out,
    )
    return out


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swept") / "grid"
    servesim.sweep(**WORKLOAD, scheduler="vllm,vllm:max_num_seqs=4", rate=[20, 40, 80], jobs=1, out=out)
    return out


def test_a_panel_is_a_figure_of_its_own_with_the_same_data(compared: Path, swept: Path) -> None:
    for source, name in (
        (compared, "latency_cdf"),
        (compared, "timeline"),
        (swept, "latency_load"),
        (compared, "changes"),
    ):
        whole = servesim.figure(source, name).data
        titles = list(dict.fromkeys(whole.panel))
        for title in titles:
            one = servesim.figure(source, name, panel=title)
            expected = whole[whole.panel == title].reset_index(drop=True)
            assert one.data[["panel", "series", "row", "x", "y", "x_label"]].equals(
                expected[["panel", "series", "row", "x", "y", "x_label"]]
            ), (name, title)
            (axes,) = one.to_matplotlib(3.3).axes
            assert axes.get_xlabel()
            assert axes.get_title("left") == title
            assert axes.get_position().width > 0.6


def test_the_legend_of_a_panel_is_of_what_it_shows() -> None:
    cluster = {"failures": ["crash:replica=0,at=0.1,restart=0.2"]}
    result = servesim.simulate(**WORKLOAD, replicas=2, router="least-requests", cluster=cluster)
    assert [words for _, words in result.figure("fleet", panel="Arrivals, requests/s").legend] == ["arrivals"]
    assert "arrivals" not in [words for _, words in result.figure("fleet", panel="Replicas").legend]


def test_an_unknown_panel_is_refused_with_those_there_are(compared: Path) -> None:
    with pytest.raises(
        UserError, match="unknown panel 'TTFT': name one of Time to first token; Time per output token; End"
    ):
        servesim.figure(compared, "latency_cdf", panel="TTFT")
    with pytest.raises(UserError, match="figure kv_memory: panel 'x': it has a single panel"):
        servesim.figure(compared, "kv_memory", panel="x")


def test_variants_have_the_names_that_an_author_gives(compared: Path, swept: Path) -> None:
    names = {"vllm": "ours", "vllm:max_num_seqs=64": "theirs", OTHER: "one at a time"}
    cdf = servesim.figure(compared, "latency_cdf", names=names)
    assert [words for _, words in cdf.legend] == ["ours", "theirs", "unstable: one at a time"]
    assert "vllm" not in cdf.to_svg()
    assert set(servesim.figure(compared, "changes", names=names).data.row) <= {"theirs", "one at a time"}
    load = servesim.figure(swept, "latency_load", names={"vllm:max_num_seqs=4": "four"})
    assert {words for _, words in load.legend} == {"vllm", "four"}
    one = servesim.figure(swept, "latency_load", names={"vllm / rate=20": "a point", "rate=40": "busy"})
    assert {words for _, words in one.legend} == {"vllm", "vllm:max_num_seqs=4"}
    assert servesim.figure(compared, "timeline", variant="theirs", names=names).data.equals(
        servesim.figure(compared, "timeline", variant="vllm:max_num_seqs=64").data
    )


def test_names_may_be_swapped(compared: Path) -> None:
    _, by_label = renamed(_opened(compared), {"vllm": OTHER, OTHER: "vllm"})  # type: ignore[arg-type]
    assert by_label == {"vllm": OTHER, OTHER: "vllm", "vllm:max_num_seqs=64": "vllm:max_num_seqs=64"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"fcfs": "a"}, "names: no variant 'fcfs': rename one of vllm; vllm:max_num_seqs=64; vllm:max_num_seqs=1"),
        ({"vllm": OTHER}, f"names: vllm and {OTHER} would both be {OTHER}"),
    ],
)
def test_names_that_name_nothing_or_two_the_same_are_refused(names: dict[str, str], said: str, compared: Path) -> None:
    with pytest.raises(UserError, match=said):
        servesim.figure(compared, "latency_cdf", names=names)
    with pytest.raises(UserError, match="a run has no variants to rename"):
        servesim.figure(next((compared / "cells").iterdir()), "timeline", names=names)


Cli = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line; return its exit code and what it says."""

    def run(*arguments: object) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["servesim", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().err.splitlines()

    return run


def test_the_command_line_draws_a_figure_and_names_what_is_not_in_it(compared: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "a.pdf"
    chosen = ("--width", 3.3, "--panel", "End to end", "--name", f"{OTHER}=one", "--name", "vllm=ours")
    for _ in range(2):  # a figure replaces a figure
        said = ["note: figure latency_cdf: unstable: one", f"written to {out}"]
        assert run("export", compared, "--to", "latency_cdf", "-o", out, *chosen) == (0, said)
    assert out.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "latency_cdf", "--panel", "x"], "unknown panel 'x': name one of Time to first token; Time per"),
        (["--to", "latency_cdf", "--name", "x=y"], "names: no variant 'x': rename one of vllm; "),
        (["--to", "latency_cdf", "--name", "vllm"], "--name vllm: must be OLD=NEW"),
        (["--to", "latency_cfd"], "unknown format or figure 'latency_cfd' (did you mean \"latency_cdf\"?)"),
        (["--to", "csv", "--width", "3"], "--width, --panel and --name are for figures, not for --to csv"),
    ],
)
def test_a_choice_that_is_none_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, compared: Path, tmp_path: Path, run: Cli
) -> None:
    code, (line,) = run("export", compared, "-o", tmp_path / "a.png", *arguments)
    assert code == 2
    assert said in line
    assert not list(tmp_path.iterdir())


def test_a_file_of_someone_else_is_not_replaced_by_a_figure(compared: Path, tmp_path: Path, run: Cli) -> None:
    (tmp_path / "a.png").write_bytes(b"mine")
    assert run("export", compared, "--to", "timeline", "-o", tmp_path / "a.png")[0] == 2
    assert (tmp_path / "a.png").read_bytes() == b"mine"
