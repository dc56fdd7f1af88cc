"""Validated description of a run. Every default of servesim is defined and documented here, once.

A scenario comes from YAML, from the command line, or from Python keywords. Fields and their docstrings are also the
options of `servesim run`, `compare`, `sweep` and `capacity` and their help (servesim.cli.options). Unknown keys are
refused with a suggestion. In YAML 1.1 `1e-3` is a string; it is read as a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from servesim.contracts.feature import Feature, by_rank, installed, of_user
from servesim.contracts.section import Section, Settings, policy_settings
from servesim.errors import UserError, shown, suggest
from servesim.hardware import model_named
from servesim.metrics.slo import check_slo
from servesim.parsing import listed, spelt
from servesim.run.part_names import sections_of, worded
from servesim.run.pools import pool_scenarios, with_pools
from servesim.run.presets import under
from servesim.run.prices import GpuPrice, prices_of
from servesim.run.sections import (
    ClientSettings,
    EngineSettings,
    check_percentiles,
    extended,
    parse_rate,
    renamed,
    with_percentiles,
    yaml_value,
)
from servesim.sentinels import COMMON
from servesim.workload.client_tools import under_tool

SELDOM = ("pools", "features", "slo_class_percentiles")
"""Settings that are written only if they are not empty."""
FOR_FEATURE: dict[str, Any] = {"for_feature": True}
"""Marker of a setting that may not be used unless a feature claims it."""
_EXAMPLES = {
    "trace": ": a file, preset:NAME or synth:key=value,...",
    "model": ": a bundled one such as llama-3.1-8b, or a config.json",
    "gpu": ": such as h200",
}


class _Scenario(Section):
    """A run: a trace, served by a model on GPUs under policies.

    Policies are `name`, `name:key=value,...` or a mapping with `name` and the parameters; a user's policy is named
    `path/to/file.py:Class`.
    """

    trace: Annotated[str, COMMON]
    """Trace: a file, `preset:NAME` or `synth:key=value,...`. The format of a file is detected from its content; `-`
    is standard input."""
    model: Annotated[str, COMMON]
    """Model: a bundled name, a Hugging Face id or a config.json. Suffixes of an id such as -FP8 and -AWQ set the dtype.
    Keys of the config may be changed: `model.num_hidden_layers`, or `NAME:num_hidden_layers=4`."""
    gpu: Annotated[str, COMMON]
    """GPU: a name or a YAML data sheet. The names, and whether measured kernels or formulas price each, are
    listed by `servesim gpus`. Parts of the sheet may be changed, such as
    `gpu.memory_bytes` and `gpu.flops.bf16`."""
    requests: Annotated[int | None, COMMON] = Field(default=None, ge=1, le=100_000_000)
    """Number of requests to replay. None means the whole trace, or the default number of a preset or synthetic
    trace."""
    skip: int = Field(default=0, ge=0, le=100_000_000)
    """Number of requests to skip at the start. `skip` and `requests` together select a window of the trace."""
    rate: Annotated[float | str | None, COMMON] = None
    """Mean arrivals per second, or `3x` for a multiple of the recorded rate. All gaps are scaled equally. `inf` sends
    all requests at once. None keeps the recorded rate."""
    clients: ClientSettings = ClientSettings()
    sort: bool = False
    """Sort the rows of a file by arrival time. Otherwise, arrival times that go backwards are an error."""
    timing: Literal["auto", "think", "original", "open"] = "auto"
    """Arrival of later turns in recorded conversations. `think`: after a pause that follows the previous answer.
    `original`: the same, but not before the recorded time. `open`: at the recorded time, even if earlier turns have not
    ended. `auto`: depends on the format."""
    shape: list[str] = Field(default=[])
    """Steps that shape the trace, in order, such as `window:start=60,end=600` or `thin:keep=0.5`. A single step may be
    a string."""
    columns: str | None = None
    """Column names of a log, if they are not detected correctly, such as arrival='Request Time',prompt=in,output=out.
    unit=us sets the time unit. decimal=comma and dates=mdy set the format of numbers and dates. prompt=2000 sets a
    constant instead of a column."""
    spread_ticks: Literal["none", "uniform"] = "none"
    """Spread requests that have the same timestamp over one clock tick. The clock of Mooncake's published traces ticks
    every 3 s."""
    seed: int = 0
    """Seed of all random draws: synthetic traces, presets, predictors."""
    predictor: str = "max_tokens"
    """Output lengths that policies see, if they use them. `max_tokens`: the cap of the request. `random:error=0.3`: the
    true length with this mean relative error. `exact`: the true length."""
    dtype: str = "bf16"
    """Format of linear weights: fp32, bf16, fp16, fp8 or int8. Weight-only formats: int8_wo, int4, nf4, int3,
    ternary."""
    kv_dtype: str = "bf16"
    """Format of the KV cache: bf16, fp16, fp8 or fp32. If this is not set, or `auto`, engines that default to fp8
    for the given weight format (servesim/versions) use fp8."""
    tp: Annotated[int, COMMON] = Field(default=1, ge=1, le=1024)
    """Tensor parallelism: GPUs per pipeline stage."""
    dp: int = Field(default=1, ge=1, le=1024, json_schema_extra=FOR_FEATURE)
    """Number of data-parallel ranks per replica. Each rank has its own scheduler and KV memory on tp GPUs. Experts
    are spread over the GPUs of all ranks, so every step takes as long as the step of the slowest rank."""
    ep: int | None = Field(default=None, ge=1, le=4096)
    """Number of GPUs, out of tp x dp, over which whole experts are distributed. Each expert is split by width over
    tp x dp / ep GPUs. None means all GPUs with engine.enable_expert_parallel, and 1 otherwise."""
    pp: int = Field(default=1, ge=1, le=1024)
    """Pipeline parallelism: number of stages per replica. One step per stage is in flight, and steps are planned
    synchronously."""
    replicas: int = Field(default=1, ge=1, le=4096)
    """Number of replicas behind the router (replicas are servers; replicates are runs)."""
    preset: Annotated[str | None, COMMON] = None
    """Serving system that sets the defaults of policies and settings. One of vllm, vllm-v0, sglang, orca,
    fastertransformer, tgi, tensorrt-llm, llama.cpp, exllamav2, mlx, hf-generate."""
    scheduler: Annotated[Settings, COMMON] = Field(default={"name": "vllm"})
    """Scheduler: `name`, `name:key=value,...` or `file.py:Class`."""
    kv: Settings = Field(default={"name": "prefix-hash"})
    """KV allocator, in the same syntax as the scheduler. The default has prefix caching, as in vLLM; `paged` is the
    same allocator without it. For models with sliding windows, `hybrid` and `hybrid-paged` replace these two, as in
    vLLM."""
    router: Settings = Field(default={"name": "round-robin"})
    """Router, in the same syntax as the scheduler."""
    pools: list[Settings] = Field(default=[])
    """Pools of replicas behind the router. Each has a name, a role (both, prefill or decode) and its own settings, such
    as `fast:gpu=h200,replicas=2` or a mapping of model, gpu, tp, engine, policies and replicas."""
    features: list[str] = Field(default=[])
    """Your own features, each as `path/to/file.py:Class`. Their settings have their own keys."""
    speculation: Settings = Field(default={"name": "none"})
    """Speculative decoding method, such as `eagle3:k=3`, `ngram` or `draft-model:model=...`."""
    acceptance: Settings | None = None
    """Acceptance of draft tokens, such as `positions:marginal=0.73/0.52/0.36`. Acceptance is part of the workload.
    Without a value, the rates that the method assumes are used, and a note lists them."""
    engine: EngineSettings = EngineSettings()
    slo: Annotated[dict[str, float], COMMON] = Field(default={})
    """Latency limits in ms or with a unit, such as `ttft:500,tpot:50` or `e2el<30s`. A request is good if it meets
    all limits. With percentiles (`ttft:p99<1s,tpot:p99<50ms`), each limit applies independently of the others."""
    slo_percentiles: dict[str, float] = Field(default={})
    """Percentiles of the limits in `slo`, as set by `ttft:p99<1s`. Each applies independently of the others."""
    slo_classes: dict[str, dict[str, float]] = Field(default={}, json_schema_extra=FOR_FEATURE)
    """Limits for individual classes (the `class` labels of the trace), such as `gold: ttft:300` in YAML. Other
    classes use the limits of `slo`. With a percentile (`gold: ttft:p99<300ms`), each limit applies to the requests
    of the class independently of the others."""
    slo_class_percentiles: dict[str, dict[str, float]] = Field(default={}, json_schema_extra=FOR_FEATURE)
    """Percentiles of the limits in `slo_classes`, as set by `gold: ttft:p99<300ms`. Each applies independently of the
    others."""
    mode: Literal["fast", "reference"] = "fast"
    """Simulation mode. `reference` simulates every step individually. This mode is slow and gives the same result as
    `fast`, to the nanosecond."""
    stream: bool = False
    """Process the trace in chunks, for traces larger than memory. Request records go only to the result directory,
    there is no report, and latency percentiles are accurate to 0.1 %."""
    check: bool = False
    """Check invariants of the scheduler and memory after every step. Also compare the first 300 requests with reference
    mode."""
    host: str = "auto"
    """Host terms: the CPU time that the engine adds on top of its GPU kernels. The value is a shipped set or a YAML
    file. `auto` selects the latest shipped terms of vLLM. `none` adds no time to the kernels."""
    kernel_tables: str | None = None
    """Kernel tables to use instead of the default ones: a folder of tables measured on this GPU, or the name of other
    shipped tables (`h100-trtllm`: GEMMs and attention of TensorRT-LLM). `roofline` uses only formulas and no
    tables. `ideal` uses formulas at the full rates of the data sheet, and ignores kernel launches and activations,
    as in hand calculations."""
    usd_per_gpu_hour: float | None = Field(default=None, ge=0, le=1e6)
    """Price per GPU-hour, for any GPU. None means the price in `price`, or the assumed price in the data sheet of the
    GPU."""
    price: dict[str, GpuPrice] = Field(default={})
    """Prices by GPU in dollars per hour, such as `h100=2.2,h200=3.1`, or a YAML or CSV file of prices.
    `h100=8@1.9+2.99` stands for 8 reserved GPUs at $1.9, paid for whether used or not, and $2.99 for each GPU above.
    Such a price goes before `usd_per_gpu_hour`."""

    @field_validator("scheduler", "kv", "router", "speculation", "acceptance", mode="before")
    @classmethod
    def _policy(cls, value: Any) -> Settings | None:
        return policy_settings(value) if value is not None else None

    @field_validator("model", "gpu", mode="before")
    @classmethod
    def _changed(cls, value: Any) -> Any:
        return renamed(value)

    @field_validator("rate", mode="before")
    @classmethod
    def _rate(cls, value: Any) -> Any:
        value = spelt(value)
        return parse_rate(value) if isinstance(value, int | float | str) else value

    @field_serializer("rate", when_used="json")
    def _finite(self, rate: float | str | None) -> float | str | None:
        return "inf" if rate == float("inf") else rate

    @model_serializer(mode="wrap")
    def _short(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out rarely used settings; the settings of active features are written in full."""
        found: dict[str, Any] = dumped(self)
        seldom = {*SELDOM}
        for feature in scenario_features(tuple(self.features)):
            place, names = feature.place(), [*feature.Settings.model_fields]
            seldom |= {place} if place else {*names}
            inside = found.get(place, {}) if place else found
            if place and feature.settings(self) == feature.Settings():
                for name in names:
                    inside.pop(name, None)
        return {key: value for key, value in found.items() if value or key not in seldom}

    @field_validator("features", mode="before")
    @classmethod
    def _features(cls, value: Any) -> list[str]:
        return [*own_features(value)]

    @model_validator(mode="before")
    @classmethod
    def _slo_each(cls, value: Any) -> Any:
        """Move percentiles out of the limits' keys."""
        if not isinstance(value, Mapping):
            return value
        classes = value.get("slo_classes")
        parsed = {"slo_classes": yaml_value("slo_classes", classes)} if isinstance(classes, str) else {}
        return with_percentiles({**value, **parsed})

    @field_validator("shape", mode="before")
    @classmethod
    def _steps(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("price", mode="before")
    @classmethod
    def _prices(cls, value: Any) -> Any:
        return prices_of(value)

    @field_validator("slo_percentiles")
    @classmethod
    def _slo_percentiles(cls, value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        return check_percentiles(info.data.get("slo", {}), value)

    @field_validator("slo_class_percentiles")
    @classmethod
    def _class_percentiles(
        cls, value: dict[str, dict[str, float]], info: ValidationInfo
    ) -> dict[str, dict[str, float]]:
        limits = info.data.get("slo_classes", {})
        return {name: check_percentiles(limits.get(name, {}), each) for name, each in value.items()}

    @field_validator("slo")
    @classmethod
    def _slo_limits(cls, value: dict[str, float]) -> dict[str, float]:
        return check_slo(value)

    @field_validator("slo_classes")
    @classmethod
    def _class_limits(cls, value: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        return {name: check_slo(limits) for name, limits in value.items()}

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: str = "") -> Scenario:
        """Build a scenario from plain settings; `source` names their file, if any, in errors."""
        own = own_features(settings.get("features"))
        kind, found = scenario_class(own), spelled_out(settings)
        if found.get("pools"):
            found = with_pools(found, cls.of, Scenario)
        found = under(found, policy_settings)
        for feature in scenario_features(own):
            found = feature.complete(found)
        try:
            scenario: Scenario = kind.model_validate(under_name(under_tool(found)))
        except ValidationError as error:
            raise UserError(f"{source}: {_first_error(error, kind)}".removeprefix(": ")) from None
        check_claims(scenario)
        return scenario

    def to_yaml(self) -> str:
        """Return the scenario as YAML, with every key written out."""
        import yaml

        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        return text


def own_features(value: Any) -> tuple[str, ...]:
    """Return the names of a user's features, given as a comma-separated string or a list of strings. Raise UserError if
    one does not name a class in a file, or two have the same name."""
    given = listed("features", value) if isinstance(value, str) and value else value or []
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise UserError(f"features is {shown(value)} but must be a list of path/to/file.py:Class")
    for name in given:
        if ".py:" not in name:
            raise UserError(f"features: {shown(name)} must have the form path/to/file.py:Class{_installed(name)}")
        if sum(name.rpartition(":")[2] == other.rpartition(":")[2] for other in given) > 1:
            raise UserError(f"features: {name.rpartition(':')[2]} appears twice")
    return tuple(given)


def _installed(name: str) -> str:
    known = any(feature.name == name for feature in installed())
    return f" ({name} is part of every run, and is turned on by its settings)" if known else ""


def scenario_features(own: Sequence[str] = ()) -> tuple[Feature, ...]:
    """Return the features that a scenario may have, by rank: installed ones, and the user's own, from the current
    files."""
    return by_rank([*installed(), *of_user(own)]) if own else installed()


def spelled_out(settings: Mapping[str, Any]) -> Settings:
    """Return settings with the shorthands of all features written out, such as `pd` as two pools."""
    own = own_features(settings.get("features"))
    found = worded(settings, scenario_class(own))
    for feature in scenario_features(own):
        found = feature.spell_out(found)
    return found


def features_of(scenario: Scenario) -> tuple[Feature, ...]:
    """Return the features that a scenario may have, by rank."""
    return scenario_features(tuple(scenario.features))


def fleet_varies(scenario: Scenario) -> bool:
    """Return whether replicas may come and go in a run."""
    each = [pool.scenario for pool in pool_scenarios(scenario)]
    return any(feature.fleet_varies(one) for feature in features_of(scenario) for one in each)


def scenario_class(own: Sequence[str] = ()) -> type[Any]:
    """Return the class of scenarios with the settings of these user-defined features, in addition to all others."""
    mine = [feature for feature in of_user(own) if feature.Settings.model_fields]
    known = {*Scenario.model_fields}
    for feature in mine:
        if not (place := feature.place()):
            raise UserError(f"feature {feature.name}: its settings must have their own section")
        for name, field in feature.Settings.model_fields.items():
            if field.is_required():
                raise UserError(f"feature {feature.name}: setting {name} has no default")
        if place in known:
            raise UserError(f"feature {feature.name}: settings named {place} already exist")
        known.add(place)
    return _class_with(tuple((feature.place(), feature.Settings) for feature in mine)) if mine else Scenario


@cache
def _class_with(parts: tuple[tuple[str, type[Section]], ...]) -> type[Any]:
    return extended(Scenario, parts)


def check_claims(scenario: Scenario) -> None:
    """Raise UserError for a setting without effect because its feature is not installed."""
    claimed = {key for feature in features_of(scenario) for key in feature.claims}
    plain = {name: field.default for name, field in Scenario.model_fields.items() if _for_feature(field)}
    wanted = {name: getattr(scenario, name) for name in plain if getattr(scenario, name) != plain[name]}
    roles = {pool["role"] for pool in scenario.pools} - {"both"}
    wanted |= {"pools.role": next(iter(roles))} if roles else {}
    for key in [key for key in wanted if key not in claimed]:
        raise UserError(f"{key} is {shown(wanted[key])}, but no installed feature uses it")


def _for_feature(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("for_feature"))


if TYPE_CHECKING:
    Scenario = _Scenario
else:
    Scenario = extended(_Scenario, [(feature.place(), feature.Settings) for feature in installed()])


def under_name(settings: Settings) -> Settings:
    """Complete settings with the weight format in the model's name, if they do not specify one."""
    found = model_named(str(settings.get("model", ""))) if settings.get("dtype") is None else None
    return settings | {"dtype": found.dtype} if found is not None and found.dtype is not None else settings


def _first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line: the key, its error, and the valid values."""
    # A misspelled key also leaves a required one missing: report the misspelling, which is more helpful.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    *outer, last = [str(part) for part in first["loc"] if part not in ("int", "literal['auto']")]
    key = ".".join([*outer, last])
    if first["type"] == "extra_forbidden":
        known = sections_of(model).get(".".join(outer), model).model_fields
        return f"unknown key {shown(key)}{suggest(last, known)}"
    if first["type"] == "missing":
        return f"{key} is missing{_EXAMPLES.get(key, '')}"
    if key in sections_of(model):
        return f"{key} is {shown(first['input'])} but must be a mapping of settings"
    if key == "engine.max_model_len":
        return f'{key} is {shown(first["input"])} but must be a whole number of tokens or "auto"'
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{key} is {shown(first['input'])}: {message}"
