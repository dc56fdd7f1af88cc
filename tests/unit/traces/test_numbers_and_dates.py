"""Numbers and dates as spreadsheets write them: read where the file tells how, refused in one line otherwise."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from servesim.errors import UserError
from servesim.traces import load_trace
from servesim.workload.trace import Trace

HEADER = ["timestamp", "prompt_tokens", "completion_tokens", "latency_s"]
LONGEST = 300
"""Characters of a refusal without the path."""


def log(folder: Path, *rows: str, separator: str = ",", header: list[str] = HEADER, columns: str = "") -> Trace:
    path = folder / "log.csv"
    width = len(next(csv.reader(rows[:1], delimiter=separator)))
    path.write_text("\n".join([separator.join(header[:width]), *rows]) + "\n", encoding="utf-8")
    return load_trace(path, **({"columns": columns} if columns else {}))


def refusal(folder: Path, *rows: str, separator: str = ",", header: list[str] = HEADER) -> str:
    with pytest.raises(UserError) as error:
        log(folder, *rows, separator=separator, header=header)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) - len(str(folder / "log.csv")) < LONGEST
    return text


def prompts(trace: Trace) -> list[int]:
    return trace.prompt_len.tolist()


@pytest.mark.parametrize(
    ("separator", "cells", "read"),
    [
        (",", ('"1,234"', '"12,345"', "812"), [1234, 12345, 812]),
        (",", ('"1,234"', '"2,345"', '"3,456"'), [1234, 2345, 3456]),  # commas separate cells: they group digits
        (",", ('"1,234,567"', "2000", "812"), [1234567, 2000, 812]),
        (";", ("1.234", "12.345", "812"), [1234, 12345, 812]),
        (";", ("1.234.567", "12.345", "1"), [1234567, 12345, 1]),
        (";", ("1'234", "12'345", "812"), [1234, 12345, 812]),
        (";", ("1\u00a0234", "12\u202f345", "812"), [1234, 12345, 812]),
        (",", ("512.0", "1024.0", "7.0"), [512, 1024, 7]),
        (";", ("512,0", "1024,0", "7,0"), [512, 1024, 7]),
    ],
)
def test_digits_are_grouped_where_the_column_shows_it(
    tmp_path: Path, separator: str, cells: tuple[str, ...], read: list[int]
) -> None:
    rows = [f"{i}{separator}{cell}{separator}5" for i, cell in enumerate(cells)]
    assert prompts(log(tmp_path, *rows, separator=separator)) == read


def test_a_decimal_comma_in_one_column_tells_what_a_point_is_in_another(tmp_path: Path) -> None:
    rows = ["0,5;1.200;300;4,25", "1.000,5;2.500;100;3,0"]
    trace = log(tmp_path, *rows, separator=";")
    assert prompts(trace) == [1200, 2500]
    assert trace.arrival_ns.tolist() == [0, 1_000_000_000_000]
    assert any("decimal comma" in note for note in trace.notes)


def test_a_latency_with_grouped_digits_is_no_fraction(tmp_path: Path) -> None:
    from servesim.traces.formats.log import recorded

    header = [*HEADER[:3], "latency_ms"]
    log(tmp_path, '0,"1,200",300,"4,000"', '5,800,100,"3,500"', header=header)
    assert recorded(tmp_path / "log.csv").e2el_ms.tolist() == [4000.0, 3500.0]


@pytest.mark.parametrize(
    ("separator", "cells"),
    [
        (";", ("1.234", "2.345", "3.456")),
        (";", ("2.000", "3.000", "4.000")),
        (";", ("1,234", "2,345", "3,456")),
        (",", ("1.234", "2.345", "3.456")),
    ],
)
def test_digits_that_may_be_grouped_or_a_fraction_are_asked_for(
    tmp_path: Path, separator: str, cells: tuple[str, ...]
) -> None:
    rows = [f"{i}{separator}{cell}{separator}5" for i, cell in enumerate(cells)]
    text = refusal(tmp_path, *rows, separator=separator)
    assert f"line 2: prompt_tokens is '{cells[0]}'" in text
    assert "choose with --columns decimal=" in text
    mark = "comma" if "." in cells[0] else "point"
    assert prompts(log(tmp_path, *rows, separator=separator, columns=f"decimal={mark}")) == [
        int(cell.replace(".", "").replace(",", "")) for cell in cells
    ]


def test_commas_and_points_that_both_mark_fractions_are_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, "0;5;5;1,5", "1;5;5;1.5", separator=";")
    assert "decimal commas" in text
    assert "line 3" in text


def test_words_of_columns_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="columns: decimal is 'semicolon' but must be one of comma, point"):
        log(tmp_path, "0,1,1", columns="decimal=semicolon")
    with pytest.raises(UserError, match="columns: dates is 'us' but must be one of mdy, dmy"):
        log(tmp_path, "0,1,1", columns="dates=us")


@pytest.mark.parametrize(
    ("first", "second", "gap_s"),
    [
        ("11/20/2026 2:00:01 PM", "11/20/2026 2:00:03 PM", 2),
        ("11/20/2026 11:59:59 AM", "11/20/2026 12:00:03 PM", 4),
        ("11/20/2026 11:59:59 PM", "11/21/2026 12:00:03 AM", 4),
        ("11/30/2026, 14:00:01", "12/1/2026, 14:00:01", 86400),
        ("30/11/2026 14:00:01", "1/12/2026 14:00:01", 86400),
        ("30.11.2026 14:00:01", "01.12.2026 14:00:01", 86400),
        ("1.11.2026 14:00:01,5", "2.11.2026 14:00:01,5", 86400),
        ("01/02/2026 14:00:01.250", "01/02/2026 14:00:03.250", 2),  # one day: the order does not matter
        ("03/03/2026 14:00:01", "04/04/2026 14:00:01", 32 * 86400),
        ("11/20/2026 14:00:01 +01:00", "11/20/2026 14:00:01 Z", 3600),
    ],
)
def test_dates_whose_order_the_file_shows_are_read(tmp_path: Path, first: str, second: str, gap_s: int) -> None:
    trace = log(tmp_path, f"{first};5;5", f"{second};5;5", separator=";")
    assert trace.arrival_ns.tolist() == [0, gap_s * 1_000_000_000]


def test_dates_that_may_be_of_two_orders_are_asked_for(tmp_path: Path) -> None:
    rows = ("11/05/2026 14:00:01;5;5", "11/06/2026 14:00:01;5;5")
    text = refusal(tmp_path, *rows, separator=";")
    assert "line 2: timestamp is '11/05/2026 14:00:01'" in text
    assert "--columns dates=mdy" in text
    for order, days in (("mdy", 1), ("dmy", 31)):
        trace = log(tmp_path, *rows, separator=";", columns=f"dates={order}")
        assert trace.arrival_ns.tolist() == [0, days * 86_400_000_000_000]


def test_dates_of_two_orders_and_days_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    assert "dates mix two field orders" in refusal(
        tmp_path, "11/20/2026 14:00:01;5;5", "20/11/2026 14:00:01;5;5", separator=";"
    )
    assert "line 3" in refusal(tmp_path, "11/20/2026 14:00:01;5;5", "2/30/2026 14:00:01;5;5", separator=";")
    assert "line 2" in refusal(tmp_path, "11/20/2026 13:00:01 PM;5;5", "11/20/2026 14:00:01;5;5", separator=";")


def test_an_end_tells_the_order_of_a_start(tmp_path: Path) -> None:
    header = ["start_time", "prompt_tokens", "output_tokens", "end_time"]
    rows = ("11/05/2026 14:00:01;5;5;11/05/2026 14:00:02", "12/05/2026 14:00:01;5;5;12/13/2026 14:00:02")
    assert log(tmp_path, *rows, separator=";", header=header).arrival_ns[1] == 30 * 86_400_000_000_000


def test_dates_of_one_month_or_day_on_both_sides_are_asked_for_unless_all_are_one_day(tmp_path: Path) -> None:
    for rows in (
        ("11/05/2026 1:00:01;5;5", "12/05/2026 1:00:01;5;5"),
        ("5/1/2026 1:00:01;5;5", "5/2/2026 1:00:01;5;5"),
    ):
        assert "--columns dates=mdy or dates=dmy" in refusal(tmp_path, *rows, separator=";")
