"""The way that docs/serve.md tells: install the package with its extra, serve, and ask with curl."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.live_server import ROOT

pytestmark = pytest.mark.live


def test_a_clean_install_with_the_extra_serves_curl(tmp_path: Path) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("there is no curl")
    source = tmp_path / "source"  # pip builds where the source is
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries, lock = tmp_path / "venv" / "bin", str(ROOT / "requirements.lock")
    own = {**os.environ, "PIP_CONSTRAINT": lock, "PIP_BUILD_CONSTRAINT": lock, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    own.pop("PYTHONPATH", None)
    subprocess.run([binaries / "pip", "install", "--quiet", f"{source}[serve]"], check=True, env=own, cwd=tmp_path)
    command = [binaries / "servesim", "serve", "--model", "llama-3.1-8b", "--gpu", "h100", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own, cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split("at ")[-1].split()[0]
        body = '{"prompt": "Once upon", "max_tokens": 20, "ignore_eos": true, "stream": true}'
        asked = [curl, "--silent", "--fail", "--max-time", "60", f"{url}/v1/completions", "-d", body]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    *events, last = said.split("\n\n")[:-1]
    assert last == "data: [DONE]"
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)
    assert len(text.split()) == 20
