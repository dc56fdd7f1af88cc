"""Writers of result directories that meet, are killed, or run out of space."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.reports.files import writing
from servesim.run.result_files import SUMMARY, ResultWriter

WRITE = """
import sys
from servesim.run.result_files import SUMMARY, ResultWriter
for _ in range(int(sys.argv[2])):
    writer = ResultWriter(sys.argv[1])
    writer._close()
    writer._put_in_place()
    writer.discard()
"""


def test_writers_that_finish_at_the_same_instant_all_succeed_and_one_result_stays(tmp_path: Path) -> None:
    out = tmp_path / "r"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(out), "150"], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [writer.communicate(timeout=120)[1] for writer in writers]
    assert told == ["", "", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert [path.name for path in out.iterdir()] == [SUMMARY]


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_lives_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"r.{dead.pid}.partial").mkdir()
    (tmp_path / f"r.{os.getppid()}.partial").mkdir()
    (tmp_path / f"other.{dead.pid}.partial").mkdir()
    ResultWriter(tmp_path / "r").discard()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"r.{os.getppid()}.partial", f"other.{dead.pid}.partial"}


def test_so_are_half_written_pages(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"p.html.{dead.pid}.partial").write_text("half")
    with writing(tmp_path / "p.html") as file:
        file.write("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["p.html"]


def test_an_earlier_result_that_a_killed_run_had_moved_away_comes_back(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"r.{dead.pid}.replaced").mkdir()
    (tmp_path / f"r.{dead.pid}.replaced" / SUMMARY).write_text("{}")
    ResultWriter(tmp_path / "r").discard()
    assert (tmp_path / "r" / SUMMARY).read_text() == "{}"


def test_out_through_a_folder_that_is_not_there_is_the_place_it_names(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path / "a" / ".." / "b")
    writer.discard()
    assert writer.out == tmp_path / "b"
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    import pyarrow as pa

    writer = ResultWriter(tmp_path / "r")
    with pytest.raises(UserError, match="No space left"):
        writer.finish({}, pa.table({"row": np.zeros(1)}), "", {}, page=full)
    writer.discard()
    assert list(tmp_path.iterdir()) == []
