"""The explorer without a browser: what its server answers, whom it refuses, and what its controls change."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli.explore import opened
from servesim.errors import UserError
from servesim.reports.explore.controls import changed, changes, controls_of
from servesim.reports.explore.page import explore_page
from servesim.reports.explore.picture import Explorer, Overtaken
from servesim.reports.explore.server import HEADERS, MOST_BYTES, Sessions, application, listening

testclient = pytest.importorskip("starlette.testclient", reason="the extra explore is not installed")
PORT = 8642
OWN = f"http://127.0.0.1:{PORT}"
GIVEN: dict[str, Any] = {
    "trace": "synth:rate=60,prompt=400,output=30",
    "requests": 60,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "slo": "ttft:50,tpot:10",
}


def asked(*states: dict[str, str], session: str = "a", number: int = 1, narrow: bool = False) -> dict[str, Any]:
    return {"session": session, "number": number, "states": list(states) or [{}], "narrow": narrow}


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return opened(None, dict(GIVEN))[0]


@pytest.fixture(scope="module")
def client(explorer: Explorer) -> Iterator[Any]:
    app, _ = application(explorer, PORT, opened(None, dict(GIVEN))[1])
    with testclient.TestClient(app, base_url=OWN, raise_server_exceptions=True) as found:
        yield found


def ask(client: Any, question: Any, **headers: str) -> Any:
    return client.post("/runs", json=question, headers={"Origin": OWN, **headers})


def test_the_page_has_a_control_for_each_setting_and_needs_nothing_from_elsewhere(client: Any) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    for header, value in HEADERS.items():
        assert answer.headers[header] == value
    for key in ("rate", "gpu", "tp", "scheduler", "kv", "speculation", "slo.ttft", "slo.tpot"):
        assert f'data-key="{key}"' in answer.text
    assert not re.search(r'(?:src|href)="(?!data:|#|/canvases")', answer.text)
    assert client.get("/").text == answer.text


def test_the_canvases_begin_with_the_model_and_gpu_of_the_explorer(client: Any) -> None:
    answer = client.get("/canvases")
    assert answer.status_code == 200
    assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
    for key in ("model", "gpu"):
        assert f'data-key="{key}" data-base="{GIVEN[key]}"' in answer.text


def test_an_answer_holds_the_figures_of_the_run_it_names(client: Any) -> None:
    answer = ask(client, asked({"rate": "30"}, {}, number=7))
    assert answer.status_code == 200
    found = answer.json()
    assert (found["number"], found["state"]) == (7, {"rate": "30"})
    assert re.findall(r'<figure id="(\w+)"', found["html"]) == ["latency_cdf", "timeline"]
    run = servesim.simulate(**GIVEN, rate=30)
    assert f"{run.summary['throughput']['request_throughput']:.4g}".rstrip("0") in found["html"]
    assert found["html"].count('<th scope="row"') == 2, "a row a run"


def test_the_command_it_shows_makes_the_run_it_shows(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from servesim.cli import app as cli

    state = {"rate": "35", "scheduler": "sarathi", "gpu": "h100", "slo.ttft": "40", "slo.tpot": "",
             "engine.gpu_memory_utilization": "0.5"}  # fmt: skip
    html = ask(client, asked(state)).json()["html"]
    command, scenario = (
        unescape(re.findall(rf'id="{name}">(.*?)</pre>', html, re.S)[0]) for name in ("command", "scenario")
    )
    words = shlex.split(command)
    assert words[:2] == ["servesim", "run"]
    ran: list[Any] = []
    simulate = servesim.run.simulate.simulate
    monkeypatch.setattr("servesim.run.simulate.simulate", lambda *a, **k: ran.append(simulate(*a, **k)) or ran[-1])
    assert cli.app([*words[1:], "-q"], standalone_mode=False) in (None, 0)
    assert ran[0].scenario.to_yaml() == scenario


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"rate": "-1"}, "Rate: -1 is not between 0.001 and 100000"),
        ({"rate": "nan"}, "Rate: nan is not between 0.001 and 100000"),
        ({"rate": "fast"}, "Rate: 'fast' is not a number"),
        ({"replicas": "1.5"}, "Replicas: 1.5 is not a whole number"),
        ({"gpu": "/etc/passwd"}, "GPU: '/etc/passwd' is not a valid choice"),
        ({"scheduler": "evil.py:Class"}, "Scheduler: 'evil.py:Class' is not a valid choice"),
        ({"trace": "/etc/passwd"}, "there is no control named 'trace'"),
        ({"model": "llama-3.1-405b"}, ""),
    ],
)
def test_a_bad_value_is_a_line(client: Any, state: dict[str, str], said: str) -> None:
    answer = ask(client, asked(state))
    assert answer.status_code == 422
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert "html" not in answer.json()


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""])
def test_another_host_is_served_nothing(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403
    assert ask(client, asked(), Host=host).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://localhost:{PORT}"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_page_is_served_nothing(client: Any, headers: dict[str, str]) -> None:
    assert ask(client, asked(), **headers).status_code == 403
    assert client.get("/", headers=headers).status_code == 403


def test_a_run_needs_the_origin_of_the_page(client: Any) -> None:
    assert client.post("/runs", json=asked()).status_code == 403
    assert client.get("/runs", headers={"Origin": OWN}).status_code == 405


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"[" * 5000, b'{"session": 1, "number": 1, "states": [{}], "narrow": false}',
     b'{"session": "a", "number": 1, "states": [], "narrow": false}',
     b'{"session": "a", "number": 1, "states": [{"rate": 3}], "narrow": false}',
     b'{"session": "a", "number": 1, "states": [{}], "narrow": false}' + b" " * MOST_BYTES],
)  # fmt: skip
def test_what_the_page_would_not_ask_is_refused_in_a_line(client: Any, body: bytes) -> None:
    answer = client.post("/runs", content=body, headers={"Origin": OWN})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_newer_question_overtakes_the_older_of_its_session_alone() -> None:
    sessions = Sessions()
    first, other = sessions.begin("a", 1), sessions.begin("b", 1)
    second = sessions.begin("a", 2)
    assert (first.is_set(), second.is_set(), other.is_set()) == (True, False, False)
    sessions.end("a", first)  # it ends late, and takes nothing along
    assert sessions.begin("a", 1).is_set(), "an older question that comes late is overtaken already"
    sessions.end_all()
    assert second.is_set()
    assert other.is_set()
    assert sessions.begin("c", 1).is_set()


def test_a_simulation_that_is_overtaken_stops_within_its_first_requests(explorer: Explorer) -> None:
    asked_for = 0

    def overtaken() -> bool:
        nonlocal asked_for
        asked_for += 1
        return asked_for > 3

    with pytest.raises(Overtaken):
        explorer.picture([{"rate": "41", "requests": "2000"}], overtaken)
    assert asked_for == 4


def test_an_overtaken_question_is_answered_so(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began, answers = threading.Event(), []
    simulate = servesim.run.simulate.simulate

    def slowly(*args: Any, on_ready: Any, **more: Any) -> Any:
        def ready(setup: Any) -> Any:
            progress = on_ready(setup)
            began.set()
            while True:  # a run without end
                progress(0, 0)

        return simulate(*args, on_ready=ready, **more)

    monkeypatch.setattr("servesim.reports.explore.picture.simulate", slowly)
    first = threading.Thread(target=lambda: answers.append(ask(client, asked({"rate": "51"}, session="o"))))
    first.start()
    assert began.wait(300)
    monkeypatch.undo()
    assert ask(client, asked({"rate": "52"}, session="o", number=2)).status_code == 200
    first.join(300)
    assert answers[0].status_code == 409
    assert answers[0].json() == {"number": 1, "overtaken": True}


def test_two_sessions_at_once_get_their_own_pictures(client: Any) -> None:
    """Each what it gets alone, in whatever order the threads run."""
    states = [{"rate": str(rate)} for rate in (21, 22, 23, 24)]
    found: dict[int, Any] = {}

    def one(i: int) -> None:
        found[i] = ask(client, asked(states[i], session=f"s{i}")).json()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = opened(None, dict(GIVEN))[0]
    for i, state in enumerate(states):
        assert found[i]["state"] == state
        assert found[i]["html"] == alone.picture([state], lambda: False)


def test_a_parameter_of_a_policy_comes_after_the_policy() -> None:
    controls = controls_of(GIVEN, 60.0)
    found = changes(controls, {"scheduler.max_num_seqs": "8", "scheduler": "sarathi"})
    assert changed(GIVEN, found)["scheduler"] == {"name": "sarathi", "max_num_seqs": 8}
    assert changed({**GIVEN, "scheduler": "vllm:max_num_seqs=4"}, {"scheduler.max_num_seqs": None})["scheduler"] == {
        "name": "vllm"
    }


def test_a_limit_is_changed_or_left_out_and_the_others_stay() -> None:
    assert changed(GIVEN, {"slo.ttft": 20.0})["slo"] == {"ttft": 20.0, "tpot": 10.0}
    assert changed(GIVEN, {"slo.ttft": None})["slo"] == {"tpot": 10.0}


def test_a_run_directory_is_explored_and_another_gpu_has_its_own_memory(tmp_path: Path) -> None:
    run = servesim.simulate(**GIVEN, out=tmp_path / "run")
    explorer, _ = opened(tmp_path / "run", {})
    never = lambda: False  # noqa: E731
    same = explorer._explored({}, never)
    assert same.run.scenario.to_yaml() == run.scenario.to_yaml()
    other = explorer._explored({"gpu": "l40s"}, never).run.scenario
    alone = servesim.simulate(**{**GIVEN, "gpu": "l40s"}).scenario
    assert other.engine.num_gpu_blocks == alone.engine.num_gpu_blocks != run.scenario.engine.num_gpu_blocks
    assert other.to_yaml() == alone.to_yaml()
    own = servesim.simulate(**GIVEN, max_num_seqs=7, num_gpu_blocks=4000, out=tmp_path / "own").scenario
    kept = opened(tmp_path / "own", {})[0]._explored({"gpu": "l40s"}, never).run.scenario
    assert (kept.scheduler["max_num_seqs"], kept.engine.num_gpu_blocks) == (7, 4000), "what was asked for stays"
    assert opened(tmp_path / "own", {})[0]._explored({}, never).run.scenario.to_yaml() == own.to_yaml()


def test_a_sweep_opens_at_its_best_variant_with_the_others_as_states(tmp_path: Path) -> None:
    servesim.sweep(
        **GIVEN, scheduler=["vllm", "vllm:max_num_seqs=2"], block_size=[16, 32], jobs=1, out=tmp_path / "grid"
    )
    explorer, page = opened(tmp_path / "grid", {})
    states = dict(page["variants"])
    assert len(states) == 4
    blocks = {
        explorer._explored(state, lambda: False).run.scenario.engine.block_size
        for label, state in states.items()
        if "max_num_seqs=2" in label
    }
    assert blocks == {16, 32}
    few = next(state for label, state in states.items() if "max_num_seqs=2" in label)
    assert explorer._explored(few, lambda: False).run.scenario.scheduler["max_num_seqs"] == 2


def test_what_cannot_be_explored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run nor a sweep"):
        opened(tmp_path, {})
    with pytest.raises(UserError, match="streamed"):
        opened(None, {**GIVEN, "stream": "true"})
    with listening(0) as taken, pytest.raises(UserError, match=r"--port \d+: Address already in use"):
        listening(taken.getsockname()[1])


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from servesim.reports.explore.server import check_installed

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'servesim\[explore\]'"):
        check_installed()


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_cleanly_when_interrupted() -> None:
    command = [sys.executable, "-m", "servesim", "explore", "--port", "0"]
    for key, value in GIVEN.items():
        command += [f"--{key}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address is not None, said
        import httpx

        assert httpx.get(address[0]).status_code == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_slider_without_a_value_stands_at_its_end_and_is_marked() -> None:
    explorer, words = opened(None, {key: value for key, value in GIVEN.items() if key != "slo"})
    html = explore_page(explorer.controls, **words).html()
    sliders = {
        re.findall(r'data-key="([^"]+)"', control)[0]: control
        for control in html.split('<div class="control">')[1:]
        if 'type="range"' in control
    }
    for key, control in sliders.items():
        unset = 'value="" placeholder' in control
        assert ('class="unset"' in control) == unset, key
        assert not unset or 'max="1000" value="0"' in control, key
    assert 'value="" placeholder' in sliders["slo.ttft"]
    assert 'value="" placeholder' not in sliders["rate"]
