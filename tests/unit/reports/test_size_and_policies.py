"""The pages of `servesim size` and `servesim policies`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.contracts import REGISTRIES
from servesim.errors import UserError
from tests.support.pages import assert_sound

runner = CliRunner()


def written(path: Path, *arguments: str) -> str:
    result = runner.invoke(app, [*arguments, "--out", str(path)])
    assert result.exit_code == 0, result.output
    return path.read_text()


def test_the_page_of_sizes_says_first_where_the_load_fits_and_has_every_number_of_the_command(tmp_path: Path) -> None:
    asked = ("size", "llama-3.1-8b", "qwen3-8b", "--gpu", "l40s,h100", "--weights", "bf16,fp8", "--sequences", "16")
    html = written(tmp_path / "size.html", *asked)
    assert_sound(html, 2)
    text = re.sub(r"<[^>]+>", " ", html)
    assert "llama-3.1-8b: 4 of the 4 deployments below have room for 16 sequences of 4,096 tokens" in text
    assert "The smallest of these deployments use 1 GPU, and the tightest of these are L40S in bf16 (50)" in text
    for figure in ("452,768", "205,120", "131,072 B", "9.08 GB", "16.1 GB"):  # as the command prints them
        assert figure in text
    assert written(tmp_path / "size.html", *asked) == html


def test_a_load_that_no_deployment_holds_is_said_so(tmp_path: Path) -> None:
    html = written(tmp_path / "size.html", "size", "llama-2-70b", "--gpu", "l40s", "--tp", "1", "--weights", "bf16")
    assert "none of the 1 deployments below has room for 1 sequence of 4,096 tokens" in html
    assert "GiB is usable" in html


@pytest.mark.medium
def test_the_page_of_policies_has_each_with_its_parameters(tmp_path: Path) -> None:
    html = written(tmp_path / "policies.html", "policies")
    assert_sound(html, 0)
    for registry in REGISTRIES:
        for name in registry.names():
            assert f"<summary>{registry.kind} {name}</summary>" in html
            assert f">{name}</th>" in html


def test_the_page_of_one_policy_has_what_the_command_shows(tmp_path: Path) -> None:
    html = written(tmp_path / "one.html", "policies", "sarathi")
    assert_sound(html, 0)
    assert ">chunk_size</th>" in html
    assert "Token budget per iteration" in html
    assert "paper: Agrawal" in html


def test_a_name_that_is_no_page_a_foreign_file_and_check_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    for arguments, told in (
        (["size", "qwen3-8b", "--out", "size.pdf"], "must end in .html"),
        (["policies", "--out", str(tmp_path / "mine.html")], "was not written by servesim"),
        (["policies", "check", "vllm", "--out", "page.html"], "check writes no page"),
    ):
        result = runner.invoke(app, arguments)
        assert isinstance(result.exception, UserError)
        assert told in str(result.exception)
    assert (tmp_path / "mine.html").read_text() == "mine"
