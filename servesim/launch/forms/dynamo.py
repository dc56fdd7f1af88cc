"""Form `dynamo`: NVIDIA Dynamo's DynamoGraphDeployment (nvidia.com/v1beta1; v1alpha1 is read, too)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.form import Deployment, Form, forms
from servesim.contracts.router import routers
from servesim.contracts.section import Settings
from servesim.launch.flags import Flag
from servesim.launch.manifests import GPU, TOKEN, dumped, limit_of, main_of
from servesim.launch.planner import planner_arguments, read_planner
from servesim.launch.routers import typed
from servesim.launch.workers import Read, Worker, assembled, model_name, read_worker, workers_of

KIND = "DynamoGraphDeployment"
RUNTIME = "1.6.1"
"""Version of Dynamo, the one whose router servesim models."""
PLANNER = f"nvcr.io/nvidia/ai-dynamo/dynamo-planner:{RUNTIME}"
MODULES = {"dynamo.vllm": "vllm.entrypoints.openai.api_server", "dynamo.sglang": "sglang.launch_server"}
"""Commands of engines by the modules of Dynamo that take their flags."""
MODES = {
    "round-robin": "round-robin",
    "random": "random",
    "power-of-two": "power-of-two",
    "least-requests": "least-loaded",
    "dynamo-kv": "kv",
    "dynamo-kv-approximate": "kv",
}
"""Values of DYN_ROUTER_MODE by router."""
EVENTS = "DYN_ROUTER_USE_KV_EVENTS"
PARAMETERS = {
    "overlap_score_credit": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
    "overlap_score_credit_decay": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
    "prefill_load_scale": "DYN_ROUTER_PREFILL_LOAD_SCALE",
    "router_temperature": "DYN_ROUTER_TEMPERATURE",
    "router_queue_threshold": "DYN_ROUTER_QUEUE_THRESHOLD",
    "router_queue_policy": "DYN_ROUTER_QUEUE_POLICY",
    "router_track_output_blocks": "DYN_ROUTER_TRACK_OUTPUT_BLOCKS",
    "ttl_s": "DYN_ROUTER_TTL_SECS",
    "active_decode_blocks_threshold": "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
    "active_prefill_tokens_threshold": "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
    "active_prefill_tokens_threshold_frac": "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
}
"""Variables of the frontend by parameter of the KV routers."""
_OWN_FLAGS = (
    "--disaggregation-mode",
    "--disaggregation-transfer-backend",
    "--kv-transfer-config",
    "--kv-events-config",
)
"""Flags, each with a value, that connect servers and say nothing else."""
_OWN_SWITCHES = {"--is-prefill-worker": "prefill", "--is-decode-worker": "decode"}
_TRANSFER = Flag("kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
_EVENTS_ON = '{"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:20080","enable_kv_cache_events":true}'


@forms.register("dynamo")
class DynamoForm(Form):
    """A graph of a frontend, which routes, and the servers of each pool; prefill and decode may be apart."""

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        engines = {worker.command.engine for worker in workers_of(scenario)}
        if not engines <= {"vllm", "sglang"} or len(engines) > 1:
            return f"vLLM or SGLang, in all pools: Dynamo's flags for {', '.join(sorted(engines))} are not known here"
        return ""

    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        workers = workers_of(scenario)
        engine = workers[0].command.engine
        image = f"nvcr.io/nvidia/ai-dynamo/{engine}-runtime:{RUNTIME}"
        apart = any(worker.role != "both" for worker in workers)
        frontend = _component("frontend", "frontend", 1, {"image": image, "env": _router(scenario["router"])})
        components = [frontend, *(_worker(worker, image, apart, scenario["router"]) for worker in workers)]
        if (planner := planner_arguments(workers)) is not None:
            container = {"image": PLANNER, "command": ["python3"], "args": planner}
            components.append(_component("planner", "planner", 1, container))
        spec = {"backendFramework": engine, "components": components}
        meta = {"metadata": {"name": model_name(scenario)}}
        return {"dynamo.yaml": dumped([{"apiVersion": "nvidia.com/v1beta1", "kind": KIND, **meta, "spec": spec}])}

    def recognizes(self, documents: Sequence[Any]) -> bool:
        return any(isinstance(one, Mapping) and one.get("kind") == KIND for one in documents)

    def deployment(self, documents: Sequence[Any]) -> Deployment:
        reads, unread, router, planners = [], [], None, []
        for document in documents:
            if not isinstance(document, Mapping) or document.get("kind") != KIND:
                unread.append(f"kind {document.get('kind') if isinstance(document, Mapping) else document}")
                continue
            for name, component in _components(document.get("spec") or {}):
                kind = component.get("type") or component.get("componentType")
                if kind == "frontend":
                    router = _read_router(_container(component)) or router
                elif kind == "planner":
                    planners.append(_container(component))
                elif (read := _read_worker(name, component)) is not None:
                    reads.append(read)
                else:
                    unread.append(f"component {name}")
        unread += [text for container in planners for text in read_planner(container, reads)]
        return assembled(reads, unread, router)


def _component(name: str, kind: str, replicas: int, container: Mapping[str, Any]) -> Settings:
    template = {"spec": {"containers": [{"name": "main", **container}]}}
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": template}


def _worker(worker: Worker, image: str, apart: bool, router: Mapping[str, Any]) -> Settings:
    """Return the component of a pool; KV is handed over by NIXL, and KV events go to the router that reads them."""
    engine = worker.command.engine
    flags = [Flag("disaggregation-mode", worker.role)] if worker.role != "both" else []
    if apart and engine == "vllm":
        flags.append(_TRANSFER)
    elif apart:
        flags.append(Flag("disaggregation-transfer-backend", "nixl"))
    if router["name"] == "dynamo-kv" and engine == "vllm" and worker.role != "decode":
        flags.append(Flag("kv-events-config", _EVENTS_ON))
    model = "--model" if engine == "vllm" else "--model-path"
    words = worker.command.words()
    arguments = words[words.index(worker.command.model) :]
    container = {
        "image": image,
        "command": ["python3", "-m", f"dynamo.{engine}"],
        "args": [model, *arguments, *(part for flag in flags for part in (f"--{flag.name}", flag.value))],
        "env": [*({"name": name, "value": value} for name, value in worker.environment().items()), TOKEN],
        "resources": {"limits": {GPU: str(worker.gpus)}},
    }
    kind = worker.role if worker.role != "both" else "worker"
    return _component(worker.name, kind, worker.replicas, container)


def _router(router: Mapping[str, Any]) -> list[Settings]:
    """Return the variables of the frontend that choose a router; none for a router that Dynamo does not have."""
    mode = MODES.get(router["name"])
    if mode is None:
        return []
    values = {"DYN_ROUTER_MODE": mode}
    if router["name"] == "dynamo-kv-approximate":
        values[EVENTS] = "false"
    if mode == "kv":
        values |= {name: str(router[key]) for key, name in PARAMETERS.items() if router.get(key) is not None}
    return [{"name": name, "value": value} for name, value in values.items()]


def _read_router(container: Mapping[str, Any]) -> Settings | None:
    env = {one["name"]: str(one.get("value", "")) for one in container.get("env") or ()}
    mode = env.get("DYN_ROUTER_MODE", "round-robin")
    approximate = mode == "kv" and env.get(EVENTS, "true").lower() in ("false", "0")
    name = (
        "dynamo-kv-approximate" if approximate else next((name for name, known in MODES.items() if known == mode), None)
    )
    if name is None:
        return None
    given = {key: env[variable] for key, variable in PARAMETERS.items() if variable in env and mode == "kv"}
    return {"name": name, **typed(routers.resolve(name)[0].Params, given)}


def _components(spec: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the components of a graph by name, in either version of the API."""
    services = (spec.get("services") or {}).items()
    return [*((str(one.get("name")), one) for one in spec.get("components") or ()), *services]


def _container(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the main container of a component."""
    if "podTemplate" in component:
        return main_of({"template": component["podTemplate"]})
    inner: Mapping[str, Any] = (component.get("extraPodSpec") or {}).get("mainContainer") or {}
    return {**inner, "env": [*(component.get("envs") or ()), *(inner.get("env") or ())]}


def _read_worker(name: str, component: Mapping[str, Any]) -> Read | None:
    container = _container(component)
    words, role = [], str(component.get("subComponentType") or component.get("type") or "both")
    given = [str(word) for word in container.get("args") or ()]
    while given:
        word = given.pop(0)
        if word in _OWN_FLAGS and given:
            value = given.pop(0)
            role = value if word == "--disaggregation-mode" else role
        elif word in _OWN_SWITCHES:
            role = _OWN_SWITCHES[word]
        else:
            words.append(word)
    old = ((component.get("resources") or {}).get("limits") or {}).get("gpu")
    gpus = limit_of(container) or old
    read = read_worker(name, {**container, "args": words}, component.get("replicas", 1), gpus, MODULES)
    if read is not None:
        read.role = role if role in ("prefill", "decode") else "both"
    return read
