"""Readers of untrusted input: valid, nearly valid or hostile, there is a result or one UserError, nothing else."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servesim import untrusted
from servesim.cost.host import HostTerms
from servesim.errors import MOST_LINE, UserError
from servesim.experiments.recording_formats import read_folder
from servesim.hardware.gpu import Gpu
from servesim.hardware.model import ModelSpec, bundled_models, read_config
from servesim.run.scenario import Scenario
from servesim.run.setting_names import load_settings
from servesim.traces import load_trace
from servesim.traces.formats import formats

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        2**31,
        2**63,
        2**70,
        10**400,
        -(2**63),
        1e308,
        "",
        "x",
        "1",
        "\x00\x1b[31m",
        "a\nb",
        "é" * 300,
    ]
) | st.sampled_from([[], {}, [[]], [[1, 2], [3]], {"a": None}, [None], "nan", "inf", "\ud800"])
NUMBERS = st.integers(1, 50)


def rows_of(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Rows of a format: plausible numbers, of which some are missing, odd or of another name."""
    plain = st.fixed_dictionaries(dict.fromkeys(names, NUMBERS))
    return st.builds(
        lambda row, odd: row | odd, plain, st.dictionaries(st.sampled_from([*names, "other"]), ODD, max_size=2)
    )


SHAPES = [
    ("arrival_ns", "prompt_len", "output_len", "content", "after", "samples", "n", "session", "stop", "priority"),
    ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay"),
    ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids"),
    ("id", "block_size", "requests", "t", "in", "out"),
    ("sub_requests", "session_id", "arrival_time_ns", "input_toks", "output_toks"),
    ("num_prompts", "max_concurrency", "completed", "total_input_tokens", "total_output_tokens", "input_lens"),
    ("attributes", "span_id", "trace_id", "start_time", "end_time"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
]
ROWS = st.sampled_from(SHAPES).flatmap(lambda names: st.lists(rows_of(*names), min_size=1, max_size=4))
HEADERS = st.sampled_from(["", '{"servesim_trace": 1}\n', '{"servesim_trace": 1, "notes": 5}\n', '{"version": 1}\n'])


def one_line_or_result(read: Any, *args: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a line too many
        told = "-"
        try:
            read(*args, **options)
        except UserError as error:
            told = str(error)
        assert told.isprintable()
        assert 0 < len(told) <= MOST_LINE


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input") / "x.json"


CHECKED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@CHECKED
@given(rows=ROWS, header=HEADERS, name=st.sampled_from([None, *formats()]))
def test_traces_as_json_lines(rows: list[dict[str, Any]], header: str, name: str | None, place: Path) -> None:
    place.write_text(header + "".join(json.dumps(row) + "\n" for row in rows))
    one_line_or_result(load_trace, place, name)


@CHECKED
@given(rows=ROWS, name=st.sampled_from([None, *formats()]))
def test_traces_as_csv(rows: list[dict[str, Any]], name: str | None, place: Path) -> None:
    lines = [",".join(rows[0])] + [",".join(str(value) for value in row.values()) for row in rows]
    place.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    one_line_or_result(load_trace, place, name)


@CHECKED
@given(
    data=st.binary(max_size=200), kept=st.sampled_from([b"", b"PAR1", b"\x1f\x8b\x08\x00", b'{"servesim_trace": 1}\n'])
)
def test_bytes_of_any_kind(data: bytes, kept: bytes, place: Path) -> None:
    place.write_bytes(kept + data)
    for read in (load_trace, untrusted.read_json, untrusted.read_yaml, load_settings, read_folder):
        one_line_or_result(read, place)


YAML = st.text("abc:&*[]{}- \n\"'<!|>%@`~.0129_=?,#", max_size=60)


@CHECKED
@given(text=YAML)
def test_yaml_of_any_kind(text: str) -> None:
    one_line_or_result(untrusted.parse_yaml, text, "x")


@CHECKED
@given(name=st.sampled_from(bundled_models()), changed=st.data())
def test_model_configs_with_odd_values(name: str, changed: st.DataObject, place: Path) -> None:
    config, _ = read_config(name)
    odd = changed.draw(st.dictionaries(st.sampled_from(sorted(config)), ODD, max_size=3))
    place.write_text(json.dumps(config | odd))
    one_line_or_result(ModelSpec.load, str(place))


@CHECKED
@given(
    odd=st.dictionaries(
        st.sampled_from(["model", "gpu", "trace", "engine", "slo", "slo_classes", "seed", "shape"]), ODD
    )
)
def test_scenarios_with_odd_values(odd: dict[str, Any]) -> None:
    base = {"trace": "synth:rate=1", "model": "llama-3.1-8b", "gpu": "h200"}
    one_line_or_result(Scenario.of, base | odd)


@CHECKED
@given(odd=st.dictionaries(st.sampled_from(["gpus", "engine", "exposed", "overlapped", "provenance", "x"]), ODD))
def test_host_terms_with_odd_values(odd: dict[str, Any], place: Path) -> None:
    place.write_text(json.dumps(odd))
    one_line_or_result(HostTerms.load, str(place))


@CHECKED
@given(odd=st.dictionaries(st.sampled_from(["memory_bytes", "flops", "bandwidth", "tables", "description"]), ODD))
def test_data_sheets_with_odd_values(odd: dict[str, Any], place: Path) -> None:
    sheet = dict.fromkeys(("bandwidth", "nvlink_bandwidth", "pcie_bandwidth", "usd_per_hour", "memory_bytes"), 1)
    path = place.with_suffix(".yaml")
    path.write_text(json.dumps(sheet | {"description": "", "flops": {"bf16": 1}, "tables": None} | odd))
    one_line_or_result(Gpu.load, str(path))
