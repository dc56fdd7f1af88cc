"""Objects that scale a Deployment, written and read: Kubernetes' horizontal pod autoscaler, KEDA's
ScaledObject and llm-d's VariantAutoscaling."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from servesim.contracts.scaler import scalers
from servesim.contracts.section import Settings
from servesim.launch.routers import typed
from servesim.launch.workers import Worker

METRICS = {
    "vllm": {
        "waiting": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "kv": "vllm:kv_cache_usage_perc",
    },
    "sglang": {"waiting": "sglang:num_queue_reqs", "running": "sglang:num_running_reqs", "kv": "sglang:token_usage"},
}
"""Names of metrics that the engines export, by metric of the autoscaler."""
_KNOWN = {name: metric for names in METRICS.values() for metric, name in names.items()}
PROMETHEUS = "http://prometheus-kube-prometheus-prometheus.monitoring.svc.cluster.local:9090"
"""Address of kube-prometheus-stack's Prometheus in the namespace monitoring; another one must be put in its place."""
VARIANT = "VariantAutoscaling"
WVA_METRIC = "wva_desired_replicas"
"""Metric in which llm-d's controller tells the pod autoscaler how many replicas it wants."""
_QUERY = re.compile(r"sum\(([\w:]+)(?:\{[^}]*\})?\)")
"""The sum of a metric over the pods."""
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6}
_PERIOD_S = 15
_MOST_WINDOW_S = 3600
"""Longest stabilization window that Kubernetes accepts."""


def scaler_objects(worker: Worker, target: str) -> list[Settings]:
    """Return the objects that scale a Deployment: none for an autoscaler that has none here, or an engine whose metrics
    are not known."""
    scaler = worker.scenario.get("scaler")
    if scaler is None or scaler["name"] not in WRITERS or worker.command.engine not in METRICS:
        return []
    return WRITERS[scaler["name"]](scalers.configured(scaler)[1], worker, target)


def _hpa(params: Any, worker: Worker, target: str) -> list[Settings]:
    metric = {"name": METRICS[worker.command.engine][params.metric]}
    average = {"type": "AverageValue", "averageValue": _text(params.target)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "minReplicas": params.min,
        "maxReplicas": params.max,
        "metrics": [{"type": "Pods", "pods": {"metric": metric, "target": average}}],
        "behavior": _behavior(params),
    }
    return [_object("autoscaling/v2", "HorizontalPodAutoscaler", target, spec)]


def _scaled_object(params: Any, worker: Worker, target: str) -> list[Settings]:
    """Return KEDA's object with Prometheus as its trigger; none for scaling to zero: without replicas, the engines
    export no metric that could start one."""
    if params.min == 0:
        return []
    query = f'sum({METRICS[worker.command.engine][params.metric]}{{pod=~"{target}-.*"}})'
    metadata = {"serverAddress": PROMETHEUS, "query": query, "threshold": _text(params.target)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "pollingInterval": max(int(params.polling_s), 1),
        "cooldownPeriod": int(params.cooldown_s),
        "minReplicaCount": params.min,
        "maxReplicaCount": params.max,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(params)}},
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}],
    }
    return [_object("keda.sh/v1alpha1", "ScaledObject", target, spec)]


def _variant(params: Any, worker: Worker, target: str) -> list[Settings]:
    """Return llm-d's object of a variant, and the pod autoscaler that carries out what its controller asks for; none
    for an engine other than vLLM, or for scaling to zero, which is a setting of the controller."""
    if worker.command.engine != "vllm" or params.min == 0:
        return []
    of = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    metric = {"name": WVA_METRIC, "selector": {"matchLabels": {"variant_name": target}}}
    external = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}
    bounds = {"minReplicas": params.min, "maxReplicas": params.max}
    spec = {"scaleTargetRef": of, **bounds, "metrics": [{"type": "External", "external": external}]}
    return [
        _object("llmd.ai/v1alpha1", VARIANT, target, {"scaleTargetRef": of, "modelID": worker.command.model}),
        _object("autoscaling/v2", "HorizontalPodAutoscaler", target, spec),
    ]


def _object(version: str, kind: str, name: str, spec: Settings) -> Settings:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


WRITERS: Mapping[str, Callable[[Any, Worker, str], list[Settings]]] = {
    "hpa": _hpa,
    "keda": _scaled_object,
    "llm-d-wva": _variant,
}
"""Writers of objects by autoscaler."""


def _behavior(params: Any) -> Settings:
    up = {
        "stabilizationWindowSeconds": _window(params.up_window_s),
        "selectPolicy": "Max",
        "policies": [
            {"type": "Pods", "value": params.up_pods, "periodSeconds": _PERIOD_S},
            {"type": "Percent", "value": 100, "periodSeconds": _PERIOD_S},
        ],
    }
    return {"scaleDown": {"stabilizationWindowSeconds": _window(params.down_window_s)}, "scaleUp": up}


def read_scaler(kind: str, spec: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return an autoscaler from the spec of its object, one of `READERS`, and the parts that are not understood."""
    return READERS[kind](spec)


def _read_hpa(spec: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    given: Settings = {"min": spec.get("minReplicas", 1), "max": spec.get("maxReplicas", 8)}
    names = [((one.get("external") or {}).get("metric") or {}).get("name") for one in spec.get("metrics") or ()]
    if WVA_METRIC in names:
        return {"name": "llm-d-wva", **typed(scalers.resolve("llm-d-wva")[0].Params, given)}, []
    unread = []
    for one in spec.get("metrics") or ():
        pods = one.get("pods") or {}
        metric = _KNOWN.get(str((pods.get("metric") or {}).get("name")))
        value = (pods.get("target") or {}).get("averageValue")
        if metric is None or value is None or "target" in given:
            unread.append(f"HorizontalPodAutoscaler metric {one.get('type')}")
        else:
            given |= {"metric": metric, "target": _quantity(str(value))}
    given |= _read_behavior(spec.get("behavior") or {})
    return {"name": "hpa", **typed(scalers.resolve("hpa")[0].Params, given)}, unread


def _read_scaled_object(spec: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    keys = {"minReplicaCount": "min", "maxReplicaCount": "max"}
    keys |= {"pollingInterval": "polling_s", "cooldownPeriod": "cooldown_s"}
    defaults = {"min": 0, "max": 100}  # KEDA's own, where they differ from the parameters'
    given: Settings = defaults | {here: spec[there] for there, here in keys.items() if there in spec}
    unread = []
    for one in spec.get("triggers") or ():
        metadata = one.get("metadata") or {}
        metric = _KNOWN.get(_QUERY.sub(r"\1", str(metadata.get("query"))))
        averaged = one.get("type") == "prometheus" and one.get("metricType", "AverageValue") == "AverageValue"
        if metric is None or not averaged or "threshold" not in metadata or "target" in given:
            unread.append(f"ScaledObject trigger {one.get('type')}")
        else:
            given |= {"metric": metric, "target": _quantity(str(metadata["threshold"]))}
    config = (spec.get("advanced") or {}).get("horizontalPodAutoscalerConfig") or {}
    given |= _read_behavior(config.get("behavior") or {})
    return {"name": "keda", **typed(scalers.resolve("keda")[0].Params, given)}, unread


READERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Settings, list[str]]]] = {
    "HorizontalPodAutoscaler": _read_hpa,
    "ScaledObject": _read_scaled_object,
}
"""Readers of specs by kind of object."""


def _read_behavior(behavior: Mapping[str, Any]) -> Settings:
    up, down = behavior.get("scaleUp") or {}, behavior.get("scaleDown") or {}
    windows = {"up_window_s": up, "down_window_s": down}
    key = "stabilizationWindowSeconds"
    given: Settings = {name: side[key] for name, side in windows.items() if key in side}
    pods = [policy["value"] for policy in up.get("policies") or () if policy.get("type") == "Pods"]
    return given | ({"up_pods": pods[0]} if pods else {})


def _text(target: float) -> str:
    return repr(target).removesuffix(".0")


def _window(seconds: float) -> int:
    return min(int(seconds), _MOST_WINDOW_S)


def _quantity(text: str) -> float:
    """Return a quantity of Kubernetes, such as 7500m."""
    unit = _UNITS.get(text[-1:])
    return float(text[:-1]) * unit if unit is not None else float(text)
