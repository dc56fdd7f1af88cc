"""Checks of a policy's declarations: parameters, `needs` and `supports`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from servesim.checking.subject import Subject
from servesim.contracts import Defaults, Request, build_params, make
from servesim.contracts.scheduler import PREDICTED
from servesim.errors import PolicyError, UserError, suggest
from servesim.plugins.user_policies import blaming

WORDS = {
    "scheduler": {
        "needs": {"output_len", PREDICTED},
        "supports": {"async", "speculation", "swap", "remote_kv", "deferred", "external"},
    },
    "kv": {"needs": {"output_len", "future"}, "supports": {"fork", "events", "remote_kv"}},
    "speculation": {"needs": {"acceptance"}, "supports": {"async"}},
    "connector": {"needs": {"remote_kv", "deferred", "external"}},
}
"""Allowed values of `needs` and `supports`, by kind of policy."""


def settings_failures(subject: Subject) -> Iterator[str]:
    """Yield a line for each invalid declaration of a policy."""
    if not hasattr(subject.cls, "Params"):
        return
    for label, known in WORDS.get(subject.kind, {}).items():
        for word in sorted(set(getattr(subject.cls, label)) - known):
            yield f"{label} of {subject.name} has the unknown entry {word!r}{suggest(word, known)}"
    if not subject.cls.Params.__dataclass_params__.frozen:
        yield f"Params of {subject.name} must be frozen: write @dataclass(frozen=True)"
    yield from _written(subject)
    if subject.kind == "scheduler":
        yield from _completed(subject)


def _written(subject: Subject) -> Iterator[str]:
    """Check that parameters survive being written to scenario.yaml and read back."""
    for field in dataclasses.fields(subject.params):
        value = getattr(subject.params, field.name)
        try:
            text = TypeAdapter(Any).dump_python(value, mode="json")
            again = getattr(dataclasses.replace(_built(subject, {field.name: text})), field.name)
        except (UserError, PydanticSerializationError, ValueError, TypeError) as error:
            told = str(error).partition("\n")[0]
            yield f"{subject.name}: parameter {field.name} = {value!r} cannot be written and read back: {told}"
            continue
        if again != value:
            yield f"{subject.name}: parameter {field.name} = {value!r} becomes {again!r} when written and read back"


def _built(subject: Subject, values: dict[str, Any]) -> Any:
    """Return the given parameters, overridden by `values`."""
    given = subject.registry.resolve(subject.spec)[1]
    return build_params(subject.name, subject.cls.Params, {**given, **values})


def _completed(subject: Subject) -> Iterator[str]:
    """Check the parameters that a scheduler derives for a GPU."""
    defaults = Defaults(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=131072, gpu_memory_gib=80)
    try:
        with blaming([subject.cls]):
            params = subject.cls.complete(subject.params, defaults)
    except PolicyError as error:
        yield str(error)
        return
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = getattr(params, name, 1)
        if type(value) is not int or value < 1:
            yield f"{subject.name}: complete() leaves {name} at {value!r}, but it must be a whole number of at least 1"


def impurities(subject: Subject) -> Iterator[str]:
    """Yield a line for each answer of an acceptance model that depends on more than request and position."""
    if subject.kind != "acceptance":
        return
    model = make(subject.cls, subject.params, 0)
    asked = [(row, position) for row in range(4) for position in range(40)]
    requests = [Request(row, f"request-{row}", 10, 50, 0) for row in range(4)]

    def answers(pairs: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        return {(row, position): model.accepted(requests[row], position, 3) for row, position in pairs}

    try:
        with blaming([subject.cls]):
            once, again = answers(asked), answers(asked[1::2] + asked[::2])
            rates = model.rates(3)
    except PolicyError as error:
        yield str(error)
        return
    for pair in asked:
        if once[pair] != again[pair]:
            told = f"row {pair[0]}, position {pair[1]}: {once[pair]} of 3 drafts, {again[pair]} when called again"
            yield f"{subject.name}: 'accepted' must depend only on the request and the position ({told})"
            break
    if len(rates) != 3 or not all(0 <= rate <= 1 for rate in rates) or sorted(rates, reverse=True) != rates:
        yield f"{subject.name}: rates(3) is {rates} but must be 3 probabilities in non-increasing order"
