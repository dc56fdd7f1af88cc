"""Programs that route requests to servers: commands of servesim's routers, written and read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from servesim.contracts.router import routers
from servesim.contracts.section import Settings
from servesim.launch.workers import PORT
from servesim.parsing import spelt
from servesim.versions import engine_facts

DEFAULT = {"name": "round-robin"}


class Program(NamedTuple):
    """A router's program."""

    command: tuple[str, ...]
    image: str


SGLANG = Program(("python3", "-m", "sglang_router.launch_router"), f"lmsysorg/sglang:v{engine_facts('sglang').version}")
VLLM = Program(("vllm-router",), "vllm/vllm-router:nightly")
PROGRAMS = {"sglang_router.launch_router": SGLANG, "vllm-router": VLLM}
"""Programs by the word that tells their command."""
POLICIES: Mapping[str, tuple[Program, str]] = {
    "random": (VLLM, "random"),
    "power-of-two": (VLLM, "power_of_two"),
    "sglang-cache-aware": (SGLANG, "cache_aware"),
    "vllm-router-cache-aware": (VLLM, "cache_aware"),
}
"""Programs and their policies by router."""
PARAMETERS = {
    "cache_threshold": "cache-threshold",
    "balance_abs_threshold": "balance-abs-threshold",
    "balance_rel_threshold": "balance-rel-threshold",
    "eviction_interval_s": "eviction-interval-secs",
    "max_tree_size": "max-tree-size",
    "cb_failure_threshold": "cb-failure-threshold",
    "cb_success_threshold": "cb-success-threshold",
    "cb_timeout_duration_secs": "cb-timeout-duration-secs",
}
"""Flags by parameter of the cache-aware routers."""
SWITCHES = {"disable_circuit_breaker": "disable-circuit-breaker"}
"""Flags without a value, by parameter."""


def router_command(router: Mapping[str, Any], targets: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return image and command of a router in front of servers, or None if no program here has its policy. `targets`:
    flags that name the servers."""
    if router["name"] not in POLICIES:
        return None
    program, policy = POLICIES[router["name"]]
    flags = [part for key, flag in PARAMETERS.items() if key in router for part in (f"--{flag}", str(router[key]))]
    flags += [f"--{flag}" for key, flag in SWITCHES.items() if router.get(key)]
    listen = ["--host", "0.0.0.0", "--port", str(PORT)]
    return program.image, [*program.command, "--policy", policy, *flags, *targets, *listen]


def read_router(words: Sequence[str]) -> Settings | None:
    """Return the router that a command starts, or None if it starts none that is known."""
    program = next((program for word, program in PROGRAMS.items() if word in words), None)
    if program is None:
        return None
    flags = _flags(words)
    policy = flags.get("policy", "cache_aware")
    name = next((name for name, known in POLICIES.items() if known == (program, policy)), None)
    name = name or next((name for name, known in POLICIES.items() if known[1] == policy), None)
    if name is None:
        return dict(DEFAULT) if policy == "round_robin" else None
    params = routers.resolve(name)[0].Params
    known = {field.name for field in dataclasses.fields(params)}
    flags |= {flag: "true" for flag in SWITCHES.values() if f"--{flag}" in words}
    given = {key: flags[flag] for key, flag in {**PARAMETERS, **SWITCHES}.items() if flag in flags and key in known}
    return {"name": name, **typed(params, given)}


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command with the word after each."""
    return {word.lstrip("-").replace("_", "-"): after for word, after in pairwise(words) if word.startswith("--")}


def typed(params: Any, given: Mapping[str, Any]) -> Settings:
    """Return parameters of a policy, given as text or numbers, without those equal to their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(params)}
    made = {key: _typed(value, defaults[key]) for key, value in given.items()}
    return {key: value for key, value in made.items() if value != defaults[key]}


def _typed(value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        return spelt(value) in ("true", "True", "1")
    if isinstance(value, str) and not isinstance(default, str):
        return int(value) if re.fullmatch(r"-?\d+", value) else float(value)
    return float(value) if isinstance(default, float) and isinstance(value, int) else value
