"""A result names the bytes of every file of the user's own that a run was made by."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import servesim

OWN = """
from servesim.policies.kv.prefix_hash import PrefixHash
from servesim.policies.routing.round_robin import RoundRobin
from servesim.policies.scheduling.vllm import Vllm
from servesim.traces.acceptance.independent import Independent


class Order(Vllm):
    pass


class Memory(PrefixHash):
    pass


class Turns(RoundRobin):
    pass


class Right(Independent):
    pass
"""
SCALER = """
from servesim.policies.scaling.hpa import Hpa


class Mine(Hpa):
    pass
"""
RUN: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=50,output=5",
    "requests": 5,
    "model": "llama-3.2-1b",
    "gpu": "h200",
}


def files_of(**settings: Any) -> dict[str, str]:
    found: dict[str, str] = servesim.simulate(**RUN, **settings).summary["provenance"]["policy_files"]
    return found


def test_files_of_policies_of_every_kind_are_hashed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    names = {"scheduler": f"{file}:Order", "kv": f"{file}:Memory", "router": f"{file}:Turns"}
    drafts = {"speculation": "eagle:k=2", "acceptance": f"{file}:Right:alpha=0.7"}
    sha = hashlib.sha256(OWN.encode()).hexdigest()
    assert files_of(**names, **drafts) == dict.fromkeys((*names, "acceptance"), sha)
    assert files_of() == {}


@pytest.mark.feature("scaling")
def test_the_file_of_an_autoscaler_is_hashed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(SCALER)
    assert files_of(scaler=f"{file}:Mine:target=1") == {"scaler": hashlib.sha256(SCALER.encode()).hexdigest()}
