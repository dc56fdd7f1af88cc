"""`servesim schema`: JSON schemas of scenarios and of the output of each `--json`.

Objects may have more keys than their schema lists. Listed keys are always present, with the types given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated

import typer

from servesim.errors import UserError, suggest
from servesim.schemas import (
    ANY,
    COUNT,
    FIGURE,
    FLAG,
    NUMBER,
    SHARE,
    TEXT,
    TEXT_OR_NULL,
    Schema,
    a_list,
    a_map,
    an_object,
    figures,
    or_null,
)

SCHEMA_EXAMPLES = """
\b
Examples:
  servesim schema
  servesim schema scenario
  servesim schema trace inspect
  servesim schema run --features energy.py:Energy

Without a name, the command prints all schemas by name.
"""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Schema to print: scenario, or a command such as trace inspect."),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:CLASS", help="Your own feature to include. Repeatable."),
    ] = None,
) -> None:
    """Print the JSON schemas of scenarios and of --json output."""
    from servesim.cli.known import print_json

    own = tuple(features or ())
    if not name:
        print_json({each: schema_of(each, own) for each in names()})
        return
    print_json(schema_of(" ".join(name), own))


def names() -> list[str]:
    """Return every name that has a schema: `scenario`, and commands as they are typed."""
    return ["scenario", *sorted(_outputs())]


@cache
def _outputs() -> dict[str, Callable[[], Schema]]:
    """Return the schemas of the commands' `--json` output, including commands of other packages (entry points
    `servesim.schema`)."""
    found = dict(_OUTPUTS)
    for entry in entry_points(group="servesim.schema"):
        with suppress(ImportError, AttributeError):  # incompatible package: its commands report the error
            found[entry.name] = entry.load()
    return found


def schema_of(name: str, own: Sequence[str] = ()) -> Schema:
    """Return a schema by name. Raise UserError if there is none. `own`: names of a user's features."""
    from servesim.run.scenario import scenario_class
    from servesim.run.shown import groups_of

    if name == "scenario":
        kind = scenario_class(tuple(own))
        return {"$schema": DIALECT, **kind.model_json_schema(), "title": "A scenario, as YAML or JSON"}
    if name not in _outputs():
        raise UserError(f"no schema named {name!r}{suggest(name, names())}")
    found = _outputs()[name]()
    if name == "run":
        for group in groups_of(own):
            if group.section:
                found["properties"].setdefault(group.section, group.schema())
    return {"$schema": DIALECT, "title": f"What servesim {name} --json prints", **found}


def _run() -> Schema:
    """Return the schema of a run's summary. `schema_of` adds the sections of features, which are optional."""
    from servesim.metrics.figures import GROUPS, OF_A_RUN

    must: Schema = {}
    may: Schema = {"custom_metrics": a_map(FIGURE)}
    for group in GROUPS:
        if not group.section:
            must |= group.schema()["properties"]
        elif group in OF_A_RUN:
            must[group.section] = group.schema()
        else:
            may[group.section] = group.schema()
    must["scenario"] = an_object(
        trace=TEXT, model=TEXT, gpu=TEXT, scheduler=an_object(name=TEXT), engine=an_object(), seed=NUMBER
    )
    must |= {"warnings": a_list(TEXT), "notes": a_list(TEXT), "provenance": an_object(versions=a_map(ANY))}
    return an_object(may, **must)


def _experiment(**fields: Schema) -> Schema:
    """Return the schema of a document of compare, sweep or capacity."""
    workload = an_object(trace=ANY, model=ANY, gpu=ANY, requests=ANY)
    return an_object(
        schema=TEXT,
        answer=TEXT,
        workload=workload,
        replicates=an_object(count=COUNT, kind=TEXT),
        warnings=a_list(TEXT),
        notes=a_list(TEXT),
    ) | {"allOf": [an_object(**fields)]}


def _metrics() -> Schema:
    return a_list(an_object(name=TEXT, unit=TEXT, better=TEXT, scale=TEXT, latency=FLAG))


def _compare() -> Schema:
    row = an_object(
        variant=TEXT,
        metric=TEXT,
        value=FIGURE,
        baseline_value=FIGURE,
        change=FIGURE,
        change_low=FIGURE,
        change_high=FIGURE,
        unit=TEXT,
        verdict=TEXT,
    )
    variant = an_object(label=TEXT, axes=a_map(ANY), error=TEXT_OR_NULL)
    return _experiment(
        baseline=TEXT_OR_NULL,
        headline=a_list(TEXT),
        rows=a_list(row),
        variants=a_list(variant),
        metrics=_metrics(),
        ranking=an_object(metric=TEXT, order=a_list(TEXT)),
    )


def _sweep() -> Schema:
    variant = an_object(label=TEXT, axes=a_map(ANY), error=TEXT_OR_NULL, values=or_null(a_map(FIGURE)))
    entry = an_object(label=TEXT, on=FLAG, told=or_null(FLAG), sure=FIGURE, low=FIGURE, high=FIGURE, says=TEXT)
    error = or_null(an_object(level=SHARE, says=TEXT, front=a_list(entry)))
    return _experiment(
        variants=a_list(variant), metrics=_metrics(), axes=a_map(a_list(ANY)), best=ANY, model_error=error
    )


def _capacity(**more: Schema) -> Schema:
    row = an_object(
        label=TEXT,
        gpu=TEXT,
        gpus=FIGURE,
        replicas=FIGURE,
        rate=FIGURE,
        usd_per_hour=FIGURE,
        usd_per_hour_low=FIGURE,
        usd_per_hour_high=FIGURE,
        attainment=FIGURE,
        verdict=TEXT,
        error=TEXT_OR_NULL,
        model_error=or_null(an_object(low=FIGURE, high=FIGURE, says=TEXT)),
    )
    decision = an_object(cheapest=TEXT, against=TEXT, holds={"type": ["boolean", "null"]}, factor=FIGURE, says=TEXT)
    error = an_object(level=SHARE, says=TEXT, runs=COUNT, decisions=a_list(decision))
    points = a_list(an_object(label=TEXT, rate=FIGURE))
    return _experiment(question=TEXT, model_error=or_null(error), rows=a_list(row), points=points, **more)


def _worth() -> Schema:
    bars = or_null(an_object(low=FIGURE, high=FIGURE, level=SHARE, says=TEXT))
    both = a_list(FIGURE)
    one = an_object(
        of=TEXT, price_ratio=FIGURE, gain=FIGURE, low=FIGURE, high=FIGURE, says=TEXT, model_error=bars, rate=both
    )
    return _capacity(worth=a_list(one))


def _recommend() -> Schema:
    against = or_null(an_object(label=TEXT, price_ratio=NUMBER, says=TEXT))
    knob = an_object(key=TEXT, price_ratio=FIGURE, at_least=FLAG, share=FIGURE, without=TEXT)
    run = an_object(command=TEXT_OR_NULL, lost=a_map(ANY), forms=a_list(TEXT), files=a_map(TEXT))
    point = an_object(
        label=TEXT, gpus=COUNT, rate=NUMBER, usd_per_hour=NUMBER, ms=NUMBER, headroom=FIGURE, on=FLAG, gpu=TEXT
    )
    found = an_object(
        aim=TEXT,
        first=TEXT,
        front=an_object(latency=TEXT, points=a_list(point)),
        settings=a_map(ANY),
        runner_up=against,
        published=against,
        miss=against,
        knobs=a_list(knob),
        needs=a_list(TEXT),
        sure=a_list(TEXT),
        changes=a_list(TEXT),
        measure=a_list(TEXT),
        not_searched=a_list(an_object(says=TEXT)),
        run=run,
        search=a_map(COUNT),
    )
    return _capacity(recommendation=or_null(found))


def _roofline() -> Schema:
    step = an_object(label=TEXT, kind=TEXT, flops=FIGURE, bytes=FIGURE, intensity=FIGURE, operators=a_list(ANY))
    numbers = dict.fromkeys(("peak_flops", "bandwidth", "ridge"), NUMBER)
    return an_object(model=TEXT, gpu=TEXT, tp=COUNT, dtype=TEXT, steps=a_list(step), notes=a_list(TEXT), **numbers)


def _size() -> Schema:
    fit = an_object(gpu=TEXT)
    model = an_object(
        model=TEXT, params=COUNT, num_layers=COUNT, kv=an_object(), weights=a_list(an_object()), fits=a_list(fit)
    )
    return an_object(models=a_list(model))


def _inspect() -> Schema:
    lengths = figures("mean p50 p90 p95 p99 max total")
    return an_object(
        name=TEXT,
        requests=COUNT,
        span_s=NUMBER,
        mean_rate=FIGURE,
        peak_rate=a_map(FIGURE),
        prompt=lengths,
        output=lengths,
        prefix=or_null(an_object(token_hit_rate=FIGURE)),
        notes=a_list(TEXT),
    )


def _trace_list() -> Schema:
    public = an_object(name=TEXT, about=TEXT, licence=TEXT, url=TEXT, bytes={"type": ["integer", "null"]})
    formats = an_object(name=TEXT, about=TEXT, writes=FLAG)
    return an_object(presets=a_list(TEXT), public=a_list(public), formats=a_list(formats))


def _policies() -> Schema:
    default = TEXT_OR_NULL
    parameter = an_object(name=TEXT, type=TEXT, required=FLAG, default=default, doc=TEXT)
    policy = an_object(
        kind=TEXT,
        name=TEXT,
        idea=TEXT,
        needs=a_list(TEXT),
        supports=a_list(TEXT),
        cannot=a_map(TEXT),
        paper=TEXT_OR_NULL,
        parameters=a_list(parameter),
    )
    checked = an_object(policy=TEXT, runs=COUNT, failures=a_list(TEXT), notes=a_list(TEXT))
    return {"anyOf": [an_object(policies=a_list(policy)), checked]}


def _settings() -> Schema:
    one = an_object(
        key=TEXT,
        option=TEXT,
        section=TEXT,
        type=TEXT,
        default=TEXT_OR_NULL,
        doc=TEXT,
        policies=a_list(TEXT),
    )
    return an_object(settings=a_list(one))


def _figures() -> Schema:
    one = an_object(key=TEXT, unit=TEXT, doc=TEXT, better=TEXT_OR_NULL, metrics=a_list(TEXT))
    return an_object(figures=a_list(one))


def _models() -> Schema:
    counts = "weight_bytes layers experts kv_bytes_per_token max_position"
    listed = an_object(models=a_list(an_object(name=TEXT, dtype=TEXT, **dict.fromkeys(counts.split(), COUNT))))
    texts = dict.fromkeys(("model", "gpu", "engine", "dtype", "state", "reason"), TEXT)
    return {"anyOf": [listed, an_object(matrix=a_list(an_object(tp=COUNT, known=SHARE, **texts)))]}


def _gpus() -> Schema:
    numbers = "memory_bytes bandwidth nvlink_bandwidth pcie_bandwidth usd_per_hour"
    one = an_object(
        name=TEXT,
        description=TEXT,
        flops=a_map(NUMBER),
        tables=TEXT_OR_NULL,
        **dict.fromkeys(numbers.split(), NUMBER),
    )
    return an_object(gpus=a_list(one))


def _doctor() -> Schema:
    version = TEXT_OR_NULL
    return an_object(
        servesim=TEXT,
        compiled=FLAG,
        folder=TEXT,
        python=TEXT,
        platform=TEXT,
        cores=COUNT,
        packages=a_map(an_object(installed=version, needed=TEXT, ok=FLAG)),
        optional=a_map(version),
        tables=a_map(FLAG),
        self_test=an_object(seconds=NUMBER, requests_per_second=NUMBER, error=version),
        problems=a_list(TEXT),
        sound=FLAG,
    )


def _accuracy() -> Schema:
    score = an_object(by=TEXT, what=TEXT, cells=COUNT, answered=COUNT)
    return an_object(scores=a_list(score), decisions=ANY, screen=ANY)


def _validate() -> Schema:
    figures = or_null(an_object(ttft=a_map(FIGURE), tpot=a_map(FIGURE), e2el=a_map(FIGURE), output_throughput=FIGURE))
    run = an_object(name=TEXT, requests=COUNT, measured=figures, simulated=figures, error=ANY, notes=a_list(TEXT))
    return an_object(runs=a_list(run))


def _left_out() -> Schema:
    error = an_object(operator=TEXT, dtype=TEXT, split=TEXT, held_out=COUNT, median=NUMBER, mean=NUMBER, p95=NUMBER)
    return an_object(table=TEXT, gpu=TEXT, errors=a_list(error), warnings=a_list(TEXT))


_OUTPUTS: dict[str, Callable[[], Schema]] = {
    "run": _run,
    "compare": _compare,
    "sweep": _sweep,
    "capacity": _capacity,
    "worth": _worth,
    "recommend": _recommend,
    "roofline": _roofline,
    "size": _size,
    "trace inspect": _inspect,
    "trace list": _trace_list,
    "policies": _policies,
    "settings": _settings,
    "figures": _figures,
    "models": _models,
    "gpus": _gpus,
    "doctor": _doctor,
    "accuracy": _accuracy,
    "validate": _validate,
    "calibrate left-out": _left_out,
}
"""Schemas of the JSON that each command prints with `--json`, or writes to the file named there."""
