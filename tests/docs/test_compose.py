"""The Compose file of docs/compose: its commands are understood, and its parts find each other. Docker is not needed,
and not used."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from servesim.cli.app import app
from tests.support.documents import ROOT

FOLDER = ROOT / "docs" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = {name: service for name, service in SERVICES.items() if service.get("image") == "servesim"}
ADDRESSES = {f"{name}:8000" for name in SERVERS}


@pytest.mark.parametrize("name", SERVERS)
def test_the_command_of_a_server_is_understood(name: str) -> None:
    group: Any = typer.main.get_command(app)
    word, *arguments = SERVERS[name]["command"]
    command = group.get_command(None, word)
    given = command.make_context(word, list(arguments)).params
    assert (given["host"], given["port"]) == ("0.0.0.0", 8000)
    assert {"llama-3.1-8b", "h100"} <= {each for each in given.values() if isinstance(each, str)}


def test_router_and_prometheus_know_all_servers() -> None:
    assert len(SERVERS) == 4
    command = SERVICES["router"]["command"]
    workers = command[command.index("--worker-urls") + 1 :]
    assert {url.removeprefix("http://") for url in workers} == ADDRESSES
    assert set(SERVICES["router"]["depends_on"]) == set(SERVERS)
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == ADDRESSES
    assert "metrics_path" not in job  # /metrics, where servers have them


def test_the_router_is_the_version_of_the_live_tests_and_listens_where_its_port_leads() -> None:
    lock = (ROOT / "tests" / "live" / "requirements.lock").read_text()
    (router,) = re.findall(r"sglang-router==\S+", SERVICES["router"]["build"]["dockerfile_inline"])
    assert router in lock.splitlines()
    assert "--port=8080" in SERVICES["router"]["command"]
    assert SERVICES["router"]["ports"] == ["127.0.0.1:8080:8080"]


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_is_mounted_is_there() -> None:
    mounted = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert len(mounted) == 4
    assert all((FOLDER / path).is_file() for path in mounted)
    assert (FOLDER / SERVERS["server-1"]["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"


def test_the_board_asks_the_provisioned_datasource() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    (place,) = [mount.split(":")[1] for mount in SERVICES["grafana"]["volumes"] if "vllm.json" in mount]
    assert str(Path(place).parent) == provider["options"]["path"]
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == place
    board = json.loads((FOLDER / "grafana" / "vllm.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert {target["datasource"]["uid"] for target in targets} == {source["uid"]}
    assert all("vllm:" in target["expr"] for target in targets)
