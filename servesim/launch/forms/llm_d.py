"""Form `llm-d`: KServe's LLMInferenceService, with llm-d's endpoint picker as the router."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.form import Deployment, Form, forms
from servesim.contracts.section import Settings
from servesim.launch.endpoint_picker import picker_config, read_picker
from servesim.launch.engine_command import words
from servesim.launch.flags import Flag
from servesim.launch.manifests import GPU, TOKEN, dumped, limit_of, main_of
from servesim.launch.workers import Read, Worker, assembled, model_name, read_worker, workers_of

KIND = "LLMInferenceService"
ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""Variable with further flags of vLLM."""
PARALLELISM = {"tensor-parallel-size": "tensor", "pipeline-parallel-size": "pipeline"}
"""Keys of `parallelism` by flag."""
_TRANSFER = Flag("kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')


@forms.register("llm-d")
class LlmDForm(Form):
    """A service of vLLM, whose prefill may be apart."""

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        workers = workers_of(scenario)
        if any(worker.command.engine != "vllm" for worker in workers):
            return "its servers are vLLM's"
        roles = [worker.role for worker in workers]
        if roles not in (["both"], ["prefill", "decode"]):
            return f"it has one pool, or a prefill and then a decode pool, not {', '.join(roles)}"
        if len({worker.command.model for worker in workers}) > 1:
            return "it has one model"
        return ""

    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        workers = workers_of(scenario)
        model = workers[-1].command.model
        apart = len(workers) > 1
        scheduler = picker_config(scenario["router"], apart)
        routed: Settings = {"route": {}, "gateway": {}} | ({"scheduler": scheduler} if scheduler is not None else {})
        spec = {"model": {"uri": f"hf://{model}", "name": model}, "router": routed, **_workload(workers[-1], apart)}
        spec |= {"prefill": _workload(workers[0], apart)} if apart else {}
        top = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": KIND, "metadata": {"name": model_name(scenario)}}
        return {"llm-d.yaml": dumped([{**top, "spec": spec}])}

    def recognizes(self, documents: Sequence[Any]) -> bool:
        return any(isinstance(one, Mapping) and one.get("kind") == KIND for one in documents)

    def deployment(self, documents: Sequence[Any]) -> Deployment:
        unread = [f"kind {_kind(one)}" for one in documents if _kind(one) != KIND]
        spec = next(one for one in documents if _kind(one) == KIND).get("spec") or {}
        unread += [f"spec.{key}" for key in spec if key not in _UNDERSTOOD]
        uri = str((spec.get("model") or {}).get("uri", ""))
        model = uri.removeprefix("hf://") if "://" not in uri or uri.startswith("hf://") else spec["model"].get("name")
        apart = isinstance(spec.get("prefill"), Mapping)
        parts = [("prefill", spec["prefill"]), ("decode", spec)] if apart else [("both", spec)]
        reads = [_read(role, part, str(model or "")) for role, part in parts]
        scheduler = (spec.get("router") or {}).get("scheduler")
        router, more = read_picker(scheduler) if isinstance(scheduler, Mapping) else (None, [])
        return assembled([read for read in reads if read is not None], [*unread, *more], router)


_UNDERSTOOD = ("model", "replicas", "parallelism", "template", "prefill", "router")


def _kind(document: Any) -> str:
    return str(document.get("kind")) if isinstance(document, Mapping) else type(document).__name__


def _workload(worker: Worker, apart: bool) -> Settings:
    """Return replicas, parallelism and the pod of a pool."""
    sizes = {PARALLELISM[flag.name]: int(flag.value) for flag in worker.command.flags if flag.name in PARALLELISM}
    flags = [flag for flag in worker.command.flags if flag.name not in PARALLELISM] + ([_TRANSFER] if apart else [])
    arguments = [{"name": ARGUMENTS, "value": shlex.join(words("vllm", flags))}] if flags else []
    env = [*({"name": name, "value": value} for name, value in worker.environment().items()), *arguments, TOKEN]
    limits = {"limits": {GPU: str(worker.gpus)}}
    container = {"name": "main", "image": worker.image, "env": env, "resources": limits}
    parallelism = {"parallelism": sizes} if sizes else {}
    return {"replicas": worker.replicas, **parallelism, "template": {"containers": [container]}}


def _read(role: str, workload: Mapping[str, Any], model: str) -> Read | None:
    container = main_of(workload)
    env = [one for one in container.get("env") or () if one.get("name") != ARGUMENTS]
    given = [
        shlex.split(str(one.get("value", ""))) for one in container.get("env") or () if one.get("name") == ARGUMENTS
    ]
    sizes = (workload.get("parallelism") or {}).items()
    flags = [
        part for flag, key in PARALLELISM.items() for name, size in sizes if name == key for part in (f"--{flag}", size)
    ]
    flags += [part for name, size in sizes if name == "data" for part in ("--data-parallel-size", size)]
    flags += ["--enable-expert-parallel"] if ("expert", True) in sizes else []
    more = [word for words in given for word in words] or [str(word) for word in container.get("args") or ()]
    taken = [i for i, word in enumerate(more) if word.replace("_", "-") == f"--{_TRANSFER.name}"]
    more = [word for i, word in enumerate(more) if i not in taken and i - 1 not in taken]
    whole = {"image": container.get("image"), "env": env, "command": ["vllm", "serve"], "args": [model, *flags, *more]}
    read = read_worker(role if role != "both" else "server", whole, workload.get("replicas", 1), limit_of(container))
    if read is not None:
        read.role = role
        read.unread += [
            f"parallelism.{key}" for key, _ in sizes if key not in (*PARALLELISM.values(), "data", "expert")
        ]
    return read
