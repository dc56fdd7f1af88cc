"""The same sweep on a Ray cluster: two nodes on this machine, one worker killed, nothing lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from servesim.experiments.ray_executor import LISTENER, Quiet
from servesim.experiments.sweep import sweep

ONCE = """
import os, signal
from pathlib import Path
from servesim.policies.scheduling.vllm import Vllm
FLAG = Path(__file__).with_name("killed")
class Once(Vllm):
    def on_arrival(self, request):
        if request.row == 20 and not FLAG.exists():
            FLAG.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        super().on_arrival(request)
"""


LOCAL = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The second keeps Ray on the loopback address, as it does by default on those systems."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a cluster of two nodes, one CPU each, bound to 127.0.0.1."""
    script = (
        "import sys\n"
        "from ray.cluster_utils import Cluster\n"
        "node = dict(num_cpus=1, object_store_memory=80 << 20, node_ip_address='127.0.0.1')\n"
        "node['include_dashboard'] = False\n"
        "cluster = Cluster(initialize_head=True, head_node_args=node)\n"
        "cluster.add_node(**node)\n"
        "print(cluster.address, flush=True)\n"
        "sys.stdin.read()\n"
        "cluster.shutdown()\n"
    )
    command = [sys.executable, "-c", script]
    with (
        tempfile.TemporaryDirectory(prefix="ray") as scratch,  # sockets need short paths
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | LOCAL | {"RAY_TMPDIR": scratch},
        ) as head,
    ):
        assert head.stdout is not None
        address = next((line.strip() for line in head.stdout if line.startswith("127.0.0.1:")), None)
        assert address is not None, "no cluster on 127.0.0.1"
        yield address
        head.communicate()


@pytest.mark.slow
def test_a_sweep_on_two_nodes_with_a_worker_killed_equals_the_local_one(cluster: str, tmp_path: Path) -> None:
    policy = tmp_path / "once.py"
    policy.write_text(ONCE)
    words = {
        "trace": "synth:rate=40,prompt=300,output=30",
        "requests": "60",
        "model": "llama-3.2-1b",
        "gpu": "h200",
        "scheduler": f"vllm,{policy}:Once",
        "rate": "20,40,80",
    }
    options = [word for key, value in words.items() for word in (f"--{key}", value)]
    command = [sys.executable, "-m", "servesim", "sweep", *options, "--out", str(tmp_path / "far")]
    subprocess.run([*command, "--executor", f"ray:{cluster}"], check=True, timeout=240, env=os.environ | LOCAL)
    assert (tmp_path / "killed").is_file()
    frame = sweep(**words, jobs=1, out=tmp_path / "near")
    assert set(frame["status"]) == {"ok"}
    found = {folder.name for folder in (tmp_path / "far" / "cells").iterdir()}
    assert found == set(frame["address"])
    for path in (p for p in (tmp_path / "near").rglob("*") if p.is_file() and p.name != "timing.json"):
        assert (tmp_path / "far" / path.relative_to(tmp_path / "near")).read_bytes() == path.read_bytes()


def test_what_the_listener_of_ray_prints_does_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stdout(Quiet(sys.stdout)):
        for name in (LISTENER, "another"):
            thread = threading.Thread(target=lambda: print(f"from {threading.current_thread().name}"), name=name)
            thread.start()
            thread.join()
        print("from here", flush=True)
    assert capsys.readouterr().out == "from another\nfrom here\n"


OBJECT = """
import sys
import pandas as pd
import servesim
rows = {"arrival_ns": [20_000_000 * i for i in range(60)], "prompt_len": [300] * 60, "output_len": [20] * 60}
asked = {"trace": pd.DataFrame(rows), "model": "llama-3.2-1b", "gpu": "h200", "kv": "paged,prefix-hash"}
far = servesim.sweep(**asked, executor=f"ray:{sys.argv[1]}")
near = servesim.sweep(**asked, jobs=1)
pd.testing.assert_frame_equal(far, near)
assert set(far["status"]) == {"ok"}
"""


@pytest.mark.slow
def test_a_trace_that_is_an_object_travels_to_the_nodes(cluster: str) -> None:
    subprocess.run([sys.executable, "-c", OBJECT, cluster], check=True, timeout=120, env=os.environ | LOCAL)
