"""Commands with nobody to read them, policies that leave, servers that talk nonsense."""

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from servesim.contracts.scheduler import schedulers
from servesim.errors import UserError
from servesim.traces.catalogue import catalogue, fetch


def test_a_closed_stdout_is_a_quiet_exit() -> None:
    done = subprocess.run(
        f"{sys.executable} -m servesim trace list >&-", shell=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "line", ["import sys; sys.exit(7)", "raise BaseException('no')", "class E(BaseException): ...\nraise E"]
)
def test_a_policy_file_that_leaves_or_raises_anything_is_one_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(line)
    with pytest.raises(UserError, match="cannot be loaded"):
        schedulers.resolve(f"{path}:P")


@pytest.mark.parametrize("value", ["-1", "1", "2"])
@pytest.mark.parametrize("name", ["vllm", "continuous", "sarathi"])
def test_a_watermark_is_a_share(name: str, value: str) -> None:
    from servesim.plugins.registry import build_params

    cls, params = schedulers.resolve(f"{name}:watermark={value}")
    with pytest.raises(UserError, match="watermark is"):
        build_params(name, cls.Params, params)


def served(answer: bytes) -> str:
    """URL of a server that gives this answer once."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, listening:
            connection.recv(4096)
            with suppress(OSError):  # the client has had enough
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/t.csv"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"garbage\r\n\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\nab", "."),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000_000, "too many bytes received: 1,000 were expected"),
    ],
)
def test_fetch_stops_at_the_size_it_was_told_and_tells_of_garbage(answer: bytes, says: str, tmp_path: Path) -> None:
    entry = replace(next(iter(catalogue().values())), url=served(answer), size=1000)
    with pytest.raises(UserError, match=says):
        fetch(entry, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
