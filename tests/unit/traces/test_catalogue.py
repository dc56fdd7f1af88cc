"""Fetching public traces: what is said, what is verified, and that nothing wrong is kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.errors import UserError
from servesim.traces import catalogue as module
from servesim.traces.catalogue import Entry, catalogue, entry_of, fetch

DATA = b"num_prefill_tokens,num_decode_tokens\n7,3\n"
SHA = hashlib.sha256(DATA).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def entry(tmp_path: Path) -> object:
    source = tmp_path / "source"
    source.mkdir()
    (source / "t.csv").write_bytes(DATA)
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(source)))
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/t.csv"
    yield Entry("t", "a test", url, "MIT", "nobody", SHA, len(DATA))
    server.shutdown()
    server.server_close()


def test_a_trace_is_downloaded_verified_and_not_downloaded_twice(entry: Entry, tmp_path: Path) -> None:
    got: list[int] = []
    assert fetch(entry, tmp_path / "t.csv", got.append).read_bytes() == DATA
    assert got == [len(DATA)]
    assert fetch(replace(entry, url="http://127.0.0.1:9/none"), tmp_path / "t.csv").exists()
    partly = replace(entry, sha256=f"{SHA[:8]}...{SHA[-6:]}", size=None)
    assert fetch(partly, tmp_path / "again.csv").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "the file has changed"),
        ({"sha256": f"{SHA[:8]}...{'0' * 6}"}, "the file has changed"),
        ({"size": 5}, "5 were expected"),
    ],
)
def test_a_file_that_is_not_the_one_is_not_kept(entry: Entry, tmp_path: Path, change: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError, match=says):
        fetch(replace(entry, **change), tmp_path / "t.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_no_network_no_file_and_one_line(entry: Entry, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        fetch(replace(entry, url="http://127.0.0.1:9/t.csv"), tmp_path / "t.csv")
    with pytest.raises(UserError, match="404"):
        fetch(replace(entry, url=entry.url + "x"), tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("mine")
    with pytest.raises(UserError, match="already exists but is not t"):
        fetch(entry, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "mine"


def test_the_command_line_says_source_licence_size_and_checksum(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ENTRIES", (entry,))
    done = CliRunner().invoke(app, ["trace", "fetch", "t", "--out", str(tmp_path / "t.csv")])
    assert done.exit_code == 0
    for text in (entry.url, "MIT", f"{len(DATA)} bytes", SHA, str(tmp_path / "t.csv")):
        assert text in done.output
    listed = CliRunner().invoke(app, ["trace", "list"]).output
    assert "azure-conv-2023" in listed
    assert "a test; MIT" in listed
    assert "agentic-mooncake" in listed
    with pytest.raises(UserError, match="unknown public trace"):
        entry_of("none")


def test_every_entry_has_a_licence_a_source_and_a_checksum() -> None:
    for name, known in catalogue().items():
        assert known.url.startswith("https://"), name
        assert known.licence
        assert known.citation
        assert len(known.sha256) == 64 or "only part of the checksum is known" in known.note
