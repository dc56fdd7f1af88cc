"""Kubernetes' horizontal pod autoscaler, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.scaler import scalers
from servesim.contracts.section import Settings
from servesim.launch.routers import typed

METRICS = {
    "vllm": {
        "waiting": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "kv": "vllm:kv_cache_usage_perc",
    },
    "sglang": {"waiting": "sglang:num_queue_reqs", "running": "sglang:num_running_reqs", "kv": "sglang:token_usage"},
}
"""Names of metrics that the engines export, by metric of the autoscaler."""
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6}
_PERIOD_S = 15
_MOST_WINDOW_S = 3600
"""Longest stabilization window that Kubernetes accepts."""


def hpa(scaler: Mapping[str, Any] | None, engine: str, target: str) -> Settings | None:
    """Return the autoscaler object of a Deployment, or None for another autoscaler or an engine whose metrics are not
    known."""
    if scaler is None or scaler["name"] != "hpa" or engine not in METRICS:
        return None
    params = scalers.configured(scaler)[1]
    metric = {"name": METRICS[engine][params.metric]}
    average = {"type": "AverageValue", "averageValue": repr(params.target).removesuffix(".0")}
    up = {
        "stabilizationWindowSeconds": _window(params.up_window_s),
        "selectPolicy": "Max",
        "policies": [
            {"type": "Pods", "value": params.up_pods, "periodSeconds": _PERIOD_S},
            {"type": "Percent", "value": 100, "periodSeconds": _PERIOD_S},
        ],
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "minReplicas": params.min,
        "maxReplicas": params.max,
        "metrics": [{"type": "Pods", "pods": {"metric": metric, "target": average}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": _window(params.down_window_s)}, "scaleUp": up},
    }
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    return {**kind, "metadata": {"name": target}, "spec": spec}


def read_hpa(spec: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return an autoscaler from the spec of its object, and the parts that are not understood."""
    given: Settings = {"min": spec.get("minReplicas", 1), "max": spec.get("maxReplicas", 8)}
    unread = []
    known = {name: metric for names in METRICS.values() for metric, name in names.items()}
    for one in spec.get("metrics") or ():
        pods = one.get("pods") or {}
        metric = known.get(str((pods.get("metric") or {}).get("name")))
        value = (pods.get("target") or {}).get("averageValue")
        if metric is None or value is None or "target" in given:
            unread.append(f"HorizontalPodAutoscaler metric {one.get('type')}")
        else:
            given |= {"metric": metric, "target": _quantity(str(value))}
    behavior = spec.get("behavior") or {}
    up, down = behavior.get("scaleUp") or {}, behavior.get("scaleDown") or {}
    windows = {"up_window_s": up, "down_window_s": down}
    key = "stabilizationWindowSeconds"
    given |= {name: side[key] for name, side in windows.items() if key in side}
    pods = [policy["value"] for policy in up.get("policies") or () if policy.get("type") == "Pods"]
    given |= {"up_pods": pods[0]} if pods else {}
    return {"name": "hpa", **typed(scalers.resolve("hpa")[0].Params, given)}, unread


def _window(seconds: float) -> int:
    return min(int(seconds), _MOST_WINDOW_S)


def _quantity(text: str) -> float:
    """Return a quantity of Kubernetes, such as 7500m."""
    unit = _UNITS.get(text[-1:])
    return float(text[:-1]) * unit if unit is not None else float(text)
