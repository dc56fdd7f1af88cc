"""`servesim schema`: what a scenario may hold, and what each `--json` prints, as JSON schemas.

Objects may have more keys than their schema says; those it says are there, of the types it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from servesim.errors import UserError, suggest

SCHEMA_EXAMPLES = """
\b
Examples:
  servesim schema
  servesim schema scenario
  servesim schema trace inspect

Without a name all of them, by name.
"""
Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
FIGURE: Schema = {"type": ["number", "null"]}
"""A number, null where there is nothing it could be of."""
ANY: Schema = {}
LATENCIES = ("ttft", "tpot", "itl", "e2el", "ntpot", "queue_time")


def schema(
    name: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="scenario, or a command such as trace inspect.")
    ] = None,
) -> None:
    """Print JSON schemas: of scenarios, and of what each --json prints."""
    from servesim.cli.known import print_json

    if not name:
        print_json({each: schema_of(each) for each in names()})
        return
    print_json(schema_of(" ".join(name)))


def names() -> list[str]:
    """Return every name there is a schema of: `scenario`, and commands as they are typed."""
    return ["scenario", *sorted(_OUTPUTS)]


def schema_of(name: str) -> Schema:
    """Return a schema by name; UserError where there is none."""
    if name == "scenario":
        from servesim.run.scenario import Scenario

        return {"$schema": DIALECT, **Scenario.model_json_schema(), "title": "A scenario, as YAML or JSON"}
    if name not in _OUTPUTS:
        raise UserError(f"no schema of {name!r}{suggest(name, names())}")
    return {"$schema": DIALECT, "title": f"What servesim {name} --json prints", **_OUTPUTS[name]()}


def _object(**fields: Schema) -> Schema:
    """An object with these keys, and perhaps more."""
    return {"type": "object", "properties": fields, "required": sorted(fields)}


def _map(values: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "null"}]}


def _figures(names: str) -> Schema:
    return _object(**dict.fromkeys(names.split(), FIGURE))


def _run() -> Schema:
    distribution = _figures("count mean std min max p50 p90 p95 p99")
    kinds = _figures("decode mixed prefill")
    return _object(
        scenario=_object(trace=TEXT, model=TEXT, gpu=TEXT, scheduler=_object(name=TEXT), engine=_object(), seed=NUMBER),
        duration_s=FIGURE,
        requests=_figures("arrived completed rejected aborted unsent input_tokens output_tokens"),
        latency_ms=_object(**{name: _or_null(distribution) for name in LATENCIES}),
        throughput=_figures("request_throughput output_throughput total_token_throughput"),
        goodput=_or_null(
            _object(slo_ms=_map(NUMBER), slo_attainment=FIGURE, good_requests=COUNT, request_goodput=FIGURE)
        ),
        engine=_object(
            steps=COUNT,
            preemptions=COUNT,
            batch_size=_or_null(distribution),
            steps_by_kind=kinds,
            time_by_kind_s=kinds,
            gpu_busy_share=FIGURE,
            mfu=FIGURE,
            mbu=FIGURE,
        ),
        kv=_object(num_blocks=COUNT, block_size=COUNT, capacity_tokens=COUNT, used_share=FIGURE, peak_share=FIGURE),
        prefix_cache=_or_null(_figures("hit_rate hit_tokens queried_tokens")),
        speculation=_or_null(_figures("acceptance_rate acceptance_length draft_tokens accepted_tokens")),
        price=_figures("usd usd_per_gpu_hour gpu_hours usd_per_million_tokens"),
        cost_shares=_or_null(_map(SHARE)),
        stability=_or_null(_object(unstable=FLAG, decided=FLAG)),
        provenance=_object(versions=_map(ANY)),
        notes=_list(TEXT),
    )


def _experiment(**fields: Schema) -> Schema:
    """A document of compare, sweep or capacity."""
    workload = _object(trace=ANY, model=ANY, gpu=ANY, requests=ANY)
    return _object(schema=TEXT, workload=workload, replicates=_object(count=COUNT, kind=TEXT), notes=_list(TEXT)) | {
        "allOf": [_object(**fields)]
    }


def _metrics() -> Schema:
    return _list(_object(name=TEXT, unit=TEXT, better=TEXT, scale=TEXT, latency=FLAG))


def _compare() -> Schema:
    row = _object(
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
    variant = _object(label=TEXT, axes=_map(ANY), error={"type": ["string", "null"]})
    return _experiment(
        baseline={"type": ["string", "null"]},
        headline=_list(TEXT),
        rows=_list(row),
        variants=_list(variant),
        metrics=_metrics(),
        ranking=_object(metric=TEXT, order=_list(TEXT)),
    )


def _sweep() -> Schema:
    variant = _object(label=TEXT, axes=_map(ANY), error={"type": ["string", "null"]}, values=_or_null(_map(FIGURE)))
    entry = _object(label=TEXT, on=FLAG, told=_or_null(FLAG), sure=FIGURE, low=FIGURE, high=FIGURE, says=TEXT)
    error = _or_null(_object(level=SHARE, says=TEXT, front=_list(entry)))
    return _experiment(variants=_list(variant), metrics=_metrics(), axes=_map(_list(ANY)), best=ANY, model_error=error)


def _capacity(**more: Schema) -> Schema:
    row = _object(
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
        error={"type": ["string", "null"]},
        model_error=_or_null(_object(low=FIGURE, high=FIGURE, says=TEXT)),
    )
    decision = _object(cheapest=TEXT, against=TEXT, holds={"type": ["boolean", "null"]}, factor=FIGURE, says=TEXT)
    error = _object(level=SHARE, says=TEXT, runs=COUNT, decisions=_list(decision))
    points = _list(_object(label=TEXT, rate=FIGURE))
    return _experiment(question=TEXT, model_error=_or_null(error), rows=_list(row), points=points, **more)


def _worth() -> Schema:
    bars = _or_null(_object(low=FIGURE, high=FIGURE, level=SHARE, says=TEXT))
    both = _list(FIGURE)
    one = _object(
        of=TEXT, price_ratio=FIGURE, gain=FIGURE, low=FIGURE, high=FIGURE, says=TEXT, model_error=bars, rate=both
    )
    return _capacity(answer=TEXT, worth=_list(one))


def _roofline() -> Schema:
    step = _object(label=TEXT, kind=TEXT, flops=FIGURE, bytes=FIGURE, intensity=FIGURE, operators=_list(ANY))
    numbers = dict.fromkeys(("peak_flops", "bandwidth", "ridge"), NUMBER)
    return _object(model=TEXT, gpu=TEXT, tp=COUNT, dtype=TEXT, steps=_list(step), notes=_list(TEXT), **numbers)


def _size() -> Schema:
    fit = _object(gpu=TEXT)
    model = _object(model=TEXT, params=COUNT, num_layers=COUNT, kv=_object(), weights=_list(_object()), fits=_list(fit))
    return _object(models=_list(model))


def _inspect() -> Schema:
    lengths = _figures("mean p50 p90 p95 p99 max total")
    return _object(
        name=TEXT,
        requests=COUNT,
        span_s=NUMBER,
        mean_rate=FIGURE,
        peak_rate=_map(FIGURE),
        prompt=lengths,
        output=lengths,
        prefix=_or_null(_object(token_hit_rate=FIGURE)),
        notes=_list(TEXT),
    )


def _trace_list() -> Schema:
    public = _object(name=TEXT, about=TEXT, licence=TEXT, url=TEXT, bytes={"type": ["integer", "null"]})
    formats = _object(name=TEXT, about=TEXT, writes=FLAG)
    return _object(presets=_list(TEXT), public=_list(public), formats=_list(formats))


def _policies() -> Schema:
    default = {"type": ["string", "null"]}
    parameter = _object(name=TEXT, type=TEXT, required=FLAG, default=default, doc=TEXT)
    policy = _object(
        kind=TEXT,
        name=TEXT,
        idea=TEXT,
        needs=_list(TEXT),
        supports=_list(TEXT),
        cannot=_map(TEXT),
        paper={"type": ["string", "null"]},
        parameters=_list(parameter),
    )
    checked = _object(policy=TEXT, runs=COUNT, failures=_list(TEXT), notes=_list(TEXT))
    return {"anyOf": [_object(policies=_list(policy)), checked]}


def _reproduce() -> Schema:
    row = _object(what=TEXT, published=TEXT, simulated=TEXT, verdict=TEXT, note=TEXT)
    document = _object(name=TEXT, claim=TEXT, rows=_list(row), notes=_list(TEXT), figures=_list(_object(kind=TEXT)))
    known = _object(name=TEXT, about=TEXT, claim=TEXT, source=TEXT)
    return {"anyOf": [_object(experiments=_list(known)), _object(documents=_list(document))]}


def _settings() -> Schema:
    one = _object(
        key=TEXT,
        option=TEXT,
        section=TEXT,
        type=TEXT,
        default={"type": ["string", "null"]},
        doc=TEXT,
        policies=_list(TEXT),
    )
    return _object(settings=_list(one))


def _models() -> Schema:
    counts = "weight_bytes layers experts kv_bytes_per_token max_position"
    listed = _object(models=_list(_object(name=TEXT, dtype=TEXT, **dict.fromkeys(counts.split(), COUNT))))
    texts = dict.fromkeys(("model", "gpu", "engine", "dtype", "state", "reason"), TEXT)
    return {"anyOf": [listed, _object(matrix=_list(_object(tp=COUNT, known=SHARE, **texts)))]}


def _gpus() -> Schema:
    numbers = "memory_bytes bandwidth nvlink_bandwidth pcie_bandwidth usd_per_hour"
    one = _object(
        name=TEXT,
        description=TEXT,
        flops=_map(NUMBER),
        tables={"type": ["string", "null"]},
        **dict.fromkeys(numbers.split(), NUMBER),
    )
    return _object(gpus=_list(one))


def _doctor() -> Schema:
    version = {"type": ["string", "null"]}
    return _object(
        servesim=TEXT,
        compiled=FLAG,
        folder=TEXT,
        python=TEXT,
        platform=TEXT,
        cores=COUNT,
        packages=_map(_object(installed=version, needed=TEXT, ok=FLAG)),
        optional=_map(version),
        tables=_map(FLAG),
        self_test=_object(seconds=NUMBER, requests_per_second=NUMBER, error=version),
        problems=_list(TEXT),
        sound=FLAG,
    )


def _accuracy() -> Schema:
    score = _object(by=TEXT, what=TEXT, cells=COUNT, answered=COUNT)
    return _object(scores=_list(score), decisions=ANY, screen=ANY)


def _validate() -> Schema:
    figures = _or_null(_object(ttft=_map(FIGURE), tpot=_map(FIGURE), e2el=_map(FIGURE), output_throughput=FIGURE))
    run = _object(name=TEXT, requests=COUNT, measured=figures, simulated=figures, error=ANY, notes=_list(TEXT))
    return _object(runs=_list(run))


def _left_out() -> Schema:
    error = _object(operator=TEXT, dtype=TEXT, split=TEXT, held_out=COUNT, median=NUMBER, mean=NUMBER, p95=NUMBER)
    return _object(table=TEXT, gpu=TEXT, errors=_list(error), warnings=_list(TEXT))


_OUTPUTS: dict[str, Callable[[], Schema]] = {
    "run": _run,
    "compare": _compare,
    "sweep": _sweep,
    "capacity": _capacity,
    "worth": _worth,
    "roofline": _roofline,
    "size": _size,
    "trace inspect": _inspect,
    "trace list": _trace_list,
    "policies": _policies,
    "reproduce": _reproduce,
    "settings": _settings,
    "models": _models,
    "gpus": _gpus,
    "doctor": _doctor,
    "accuracy": _accuracy,
    "validate": _validate,
    "calibrate left-out": _left_out,
}
"""What each command prints with `--json`, or writes to the file named there."""
