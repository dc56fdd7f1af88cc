"""Time that a serving engine adds to its kernels: host time, CUDA-graph padding, sustained clocks, front end.

Kernel tables time one kernel at a time on a cool GPU. A served step differs in a few ways that are the same for an
engine version whatever the model or the load; each is one term here, fitted to recorded steps by `servesim calibrate
host` and stored with its provenance under `calibrate/tables/host`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from servesim.contracts.cost import Batch, Host
from servesim.errors import UserError, shown, suggest
from servesim.untrusted import parse_yaml, read_text
from servesim.workload.front_end import FrontTerms

GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts for which vLLM captures CUDA graphs (vllm/config/compilation.py); smaller batches are padded."""
OF_CHIP = (
    "sampling_per_logit",
    "sustained_after",
    "sustained_flops_share",
    "sustained_fp8_share",
    "kv_bandwidth_share",
)
"""Terms that belong to the chip; the others belong to the engine."""


@dataclass(frozen=True, slots=True)
class HostTerms:
    """Terms of one engine version, in nanoseconds unless a name indicates otherwise. All default to zero."""

    name: str = "none"
    engine: str = ""
    """Engine and version on which the terms were fitted, such as "vllm 0.23.0"."""
    gpus: tuple[str, ...] = ()
    """GPUs with the chip on which the terms were fitted, the GPU used for fitting first. On other GPUs the chip's terms
    are those of `calibrate/tables/host/chips`, or left out."""
    overlapped: float = 0.0
    """Time to schedule a step and prepare its inputs, hidden behind the GPU's work if scheduling is asynchronous."""
    overlapped_per_sequence: float = 0.0
    exposed: float = 0.0
    """Time for which the GPU waits in every step: launch, return of sampled tokens."""
    exposed_per_sampled: float = 0.0
    sampling_per_logit: float = 0.0
    """GPU time of sampling beyond the sampler's formula, for each sampled row and vocabulary entry."""
    launch_per_kernel: float = 0.0
    """CPU time per kernel, for engines without CUDA graphs: a step takes at least as long as its launches."""
    eager_per_layer: float = 0.0
    """CPU time per layer in a step with prompts, for engines that replay graphs only in decode-only steps: such a step
    takes at least as long as the sum over its layers."""
    eager_per_mixture: float = 0.0
    """CPU time per layer with experts in such a step."""
    eager_per_mixture_by_experts: dict[str, float] = field(default_factory=dict)
    """CPU time per layer with experts by expert format, for formats that are launched differently (mxfp4 by Triton,
    which does not run mxfp4 experts with mxfp8 activations)."""
    mixed_filling: float = 0.0
    """GPU time per layer added by decodes that occupy every multiprocessor and are batched with
    `servesim.cost.streamed.LONG_PROMPT` or more prompt tokens; proportionally less if there are fewer of either. Used
    only if no table has such steps."""
    mixed_kv_excess: float = 0.0
    """Extra time for the KV of those decodes compared with decodes alone, in units of the time to read it at the data
    sheet's rate; also proportional to the prompt."""
    pads_to_graphs: bool = False
    """Whether the linear layers of batches of up to 512 tokens take as long as at the next CUDA-graph size."""
    monotone_gemms: bool = False
    """Whether an interpolated GEMM takes at most the time of the same GEMM over more tokens (see `GemmTables`)."""
    sustained_after: float = 0.0
    """Compute time of a step before the power limit lowers the clock."""
    sustained_flops_share: float = 0.0
    """Fraction of the data sheet's arithmetic rate to which 16-bit dense layers are limited once the clock is lowered;
    0 for no limit. Table rows that are already slower, measured on a hot GPU, or memory-bound are unchanged."""
    sustained_fp8_share: float = 0.0
    """The same for 8-bit layers, whose arithmetic draws a different amount of power."""
    kv_bandwidth_share: float = 0.0
    """Fraction of the data-sheet bandwidth at which decode reads its KV; 0 means the attention table's rate. Tables
    measure a layer's attention repeatedly, with a cache state that does not occur in serving."""
    front_in: float = 0.0
    """Time from the client to the queue, beyond the work of an API process. For this term and the following ones, see
    `servesim.workload.front_end`."""
    front_per_request: float = 0.0
    """Work of an API process per request (HTTP)."""
    front_in_per_token: float = 0.0
    """Work of an API process per prompt token (tokenizing)."""
    front_in_per_token_by_model: dict[str, float] = field(default_factory=dict)
    """The same for model families whose tokenizer is faster or slower, by model-name prefix."""
    front_per_chunk: float = 0.0
    """Work of an API process per chunk of the answer (detokenizing, streaming)."""
    front_out: float = 0.0
    """Time from the engine to the client."""
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, source: str | Path) -> HostTerms:
        """Load shipped terms by name (`vllm-0.23-h100`) or from a YAML file. A file with `base` inherits the terms it
        omits from its base, except the engine: terms without an engine are chosen only by name."""
        shipped = {path.name.removesuffix(".yaml"): path for path in _shipped()}
        path = Path(source)
        if str(source) in shipped:
            text = shipped[str(source)].read_text()
        elif path.is_file():
            text = read_text(path, "yaml")
        else:
            raise UserError(f"no host terms {str(source)!r}: neither shipped nor a file{suggest(str(source), shipped)}")
        loaded = parse_yaml(text, f"host terms {source}")
        name = path.name.removesuffix(".yaml")
        if isinstance(loaded, dict) and "base" in loaded:
            base = cls.load(str(loaded.pop("base")))
            loaded = {**base.to_dict(), "engine": "", **loaded}
        return cls.of(loaded, name)

    @classmethod
    def of(cls, values: Mapping[str, Any], name: str) -> HostTerms:
        """Build terms from a mapping, checking its keys and values."""
        known = {f.name for f in fields(cls)} - {"name"}
        if not isinstance(values, Mapping):
            raise UserError(f"host terms {name}: must be a mapping of terms")
        for key, value in values.items():
            if key not in known:
                raise UserError(f"host terms {name}: unknown term {key!r}{suggest(key, known)}")
            kind = _KINDS.get(key, (int, float))
            if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
                raise UserError(f"host terms {name}: {key} is {shown(value)} but must be {_WORDS[kind[0]]}")
            for part in value.values() if isinstance(value, Mapping) and key != "provenance" else [value]:
                if isinstance(part, int | float) and not 0 <= part < 1e12:
                    raise UserError(f"host terms {name}: {key} is {shown(part)} but must be at least 0 (nanoseconds)")
        if not all(isinstance(gpu, str) for gpu in values.get("gpus") or ()):
            raise UserError(f"host terms {name}: gpus are {shown(values['gpus'])} but must be a list of names")
        kept = dict(values)
        kept["gpus"] = tuple(kept.get("gpus") or ())
        return cls(name=name, **kept)

    def to_dict(self) -> dict[str, Any]:
        """Return every term except the name, for YAML."""
        values = asdict(self)
        del values["name"]
        return {**values, "gpus": list(self.gpus)}

    def on(self, gpu: str) -> HostTerms:
        """Return the terms for a GPU. The chip's terms are kept only if they were fitted on that chip."""
        if not self.gpus or gpu in self.gpus:
            return self
        chip = _chip(gpu)
        values = {name: getattr(chip, name) for name in OF_CHIP}
        kept = {name: told for name, told in self.provenance.items() if name not in OF_CHIP}
        return replace(self, **values, provenance=kept | chip.provenance)

    def without_graphs(self) -> HostTerms:
        """Return the terms of the same engine in eager mode: no padding, and each kernel takes at least the launch that
        `pytorch-eager` has."""
        eager = HostTerms.load("pytorch-eager")
        launch = max(self.launch_per_kernel, eager.launch_per_kernel)
        told = {"launch_per_kernel": eager.provenance["launch_per_kernel"]}
        return replace(self, launch_per_kernel=launch, pads_to_graphs=False, provenance=self.provenance | told)

    def with_experts(self, weights: str, backend: str) -> HostTerms:
        """Return the terms for experts in a weight format, run by one of `servesim.cost.moe.MOE_BACKENDS`."""
        found = self.eager_per_mixture_by_experts.get(weights) if backend != "mxfp8" else None
        return self if found is None else replace(self, eager_per_mixture=found)

    def sustained_share(self, arithmetic: str) -> float:
        """Return the share of the data sheet's `arithmetic` to which dense layers are limited; 0 for no limit."""
        if arithmetic == "fp8":
            return self.sustained_fp8_share
        return self.sustained_flops_share if arithmetic in ("bf16", "fp16") else 0.0

    def host(self, batch: Batch) -> Host:
        """Return the host time of a step in whole nanoseconds, computed from counts alone."""
        exposed = self.exposed + self.exposed_per_sampled * batch.sampled
        sequences = batch.decode_count + len(batch.prefill)
        return Host(int(self.overlapped + self.overlapped_per_sequence * sequences + 0.5), int(exposed + 0.5))

    def eager_ns(self, layers: int, mixtures: int) -> float:
        """Return the CPU time of a step with prompts over `layers` layers, of which `mixtures` have experts."""
        return self.eager_per_layer * (layers - mixtures) + self.eager_per_mixture * mixtures

    def front(self, model: str, processes: int = 1, stream_interval: int = 1) -> FrontTerms:
        """Return the front end of `processes` API processes for a model, with its family's tokenizer time if the terms
        include it."""
        families = [family for family in self.front_in_per_token_by_model if model.startswith(family)]
        family = max(families, key=len, default=None)
        return FrontTerms(
            in_ns=round(self.front_in),
            out_ns=round(self.front_out),
            request_ns=self.front_per_request,
            token_ns=self.front_in_per_token if family is None else self.front_in_per_token_by_model[family],
            chunk_ns=self.front_per_chunk,
            processes=processes,
            stream_interval=stream_interval,
        )

    def padding(self) -> list[int]:
        """Return the number of tokens that go through the linear layers, indexed by the number of tokens scheduled;
        empty without padding."""
        if not self.pads_to_graphs:
            return []
        return [GRAPH_SIZES[bisect_left(GRAPH_SIZES, n)] if n else 0 for n in range(GRAPH_SIZES[-1] + 1)]


_KINDS: dict[str, tuple[type, ...]] = {
    "engine": (str,),
    "gpus": (list, tuple, type(None)),
    "pads_to_graphs": (bool,),
    "monotone_gemms": (bool,),
    "front_in_per_token_by_model": (dict,),
    "eager_per_mixture_by_experts": (dict,),
    "provenance": (dict,),
}
"""Types of the terms that are not numbers."""
_WORDS = {str: "text", list: "a list of names", bool: "true or false", dict: "a mapping", int: "a number"}


def host_terms(engine: str, gpu: str) -> HostTerms | None:
    """Return the shipped terms nearest to an engine version ("vllm 0.22.1"): the latest version not after it, or else
    the earliest, and the latest of all if no version is given. Among the terms of one version, those fitted on this GPU
    come first. Return None if there are no terms for the engine."""
    name, version = _version(engine)
    found = [(_version(terms.engine)[1], terms) for terms in _all_shipped() if _version(terms.engine)[0] == name]
    if not found:
        return None

    def nearness(one: tuple[tuple[int, ...], HostTerms]) -> tuple[Any, ...]:
        theirs, here = one[0], one[1].gpus[:1] == (gpu,)
        if not version:
            return theirs, here
        return theirs <= version, theirs if theirs <= version else tuple(-v for v in theirs), here

    return max(found, key=nearness)[1].on(gpu)


def fitted_versions(engine: str) -> list[str]:
    """Return the versions of an engine that shipped terms were fitted on."""
    found = (terms.engine.partition(" ") for terms in _all_shipped())
    return sorted({version for name, _, version in found if name == engine and version})


def _version(engine: str) -> tuple[str, tuple[int, ...]]:
    """Parse an engine and its version: ("vllm", (0, 23)) from "vllm 0.23.0"."""
    name, _, text = engine.lower().partition(" ")
    try:
        return name, Version(text).release[:2]
    except InvalidVersion:  # none, or a nightly build
        return name, ()


@cache
def _all_shipped() -> tuple[HostTerms, ...]:
    """Return all shipped terms, sorted by name; they are read only once."""
    return tuple(HostTerms.load(name) for name in sorted(path.name.removesuffix(".yaml") for path in _shipped()))


@cache
def _chip(gpu: str) -> HostTerms:
    """Return the terms of a GPU's chip that are known from elsewhere; all are 0 if there are none."""
    chips = [HostTerms.of(parse_yaml(path.read_text(), path.name), path.name) for path in _shipped("chips")]
    return next((chip for chip in chips if gpu in chip.gpus), HostTerms())


def is_shipped(name: str, provenance: Mapping[str, Any]) -> bool:
    """Return whether host terms of this name, or of this provenance under whatever name, are shipped. Terms of the chip
    do not count."""
    if any(path.name.removesuffix(".yaml") == name for path in _shipped()):
        return True
    told = {name: text for name, text in provenance.items() if name not in OF_CHIP}
    shipped = (HostTerms.load(path.name.removesuffix(".yaml")).provenance for path in _shipped())
    return any(told == {name: text for name, text in one.items() if name not in OF_CHIP} for one in shipped)


def _shipped(*below: str) -> list[Any]:
    """Return the YAML files shipped with the host terms, or in a folder below them."""
    folder = resources.files("servesim.calibrate.tables").joinpath("host", *below)
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if path.name.endswith(".yaml")), key=lambda path: path.name)
