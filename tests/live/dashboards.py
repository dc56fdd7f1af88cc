"""Expressions of vLLM's published Grafana dashboards (examples/observability of vllm-project/vllm, read in 2026), those
that apply to a server without speculation, LoRA and KV connectors, in the order of the boards."""

from __future__ import annotations

LATENCIES = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
QUANTILES = (0.99, 0.95, 0.9, 0.5)
OF_MODEL = '{model_name="$model_name"}'
OF_JOB = '{job=~"$job", model_name=~"$model_name", instance=~"$instance"}'
OF_ENGINE = '{job=~"$job", model_name=~"$model_name", instance=~"$instance", engine=~"$engine"}'
RATE = "[$__rate_interval]"

PROMETHEUS_GRAFANA = (
    *(
        f"histogram_quantile({q}, sum by(le) (rate(vllm:{name}_seconds_bucket{OF_MODEL}{RATE})))"
        for name in LATENCIES
        for q in QUANTILES
    ),
    *(
        f"rate(vllm:{name}_seconds_sum{OF_MODEL}{RATE})\n/\nrate(vllm:{name}_seconds_count{OF_MODEL}{RATE})"
        for name in LATENCIES
    ),
    f"rate(vllm:prompt_tokens_total{OF_MODEL}{RATE})",
    f"rate(vllm:generation_tokens_total{OF_MODEL}{RATE})",
    f"vllm:num_requests_running{OF_MODEL}",
    f"vllm:num_requests_waiting{OF_MODEL}",
    f"vllm:kv_cache_usage_perc{OF_MODEL}",
    f"sum by(le) (increase(vllm:request_prompt_tokens_bucket{OF_MODEL}{RATE}))",
    f"sum by(le) (increase(vllm:request_generation_tokens_bucket{OF_MODEL}{RATE}))",
    f"sum by(finished_reason) (increase(vllm:request_success_total{OF_MODEL}{RATE}))",
    f"rate(vllm:request_queue_time_seconds_sum{OF_MODEL}{RATE})",
    f"rate(vllm:request_prefill_time_seconds_sum{OF_MODEL}{RATE})",
    f"rate(vllm:request_decode_time_seconds_sum{OF_MODEL}{RATE})",
    f"rate(vllm:request_max_num_generation_tokens_sum{OF_MODEL}{RATE})",
)
"""prometheus_grafana/grafana.json, whole."""

OVERVIEW = (
    f"sum(rate(vllm:request_success_total{OF_JOB}{RATE}))",
    f"sum(rate(vllm:prompt_tokens_total{OF_JOB}{RATE}))",
    f"sum(rate(vllm:generation_tokens_total{OF_JOB}{RATE}))",
    f"histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{OF_JOB}{RATE})))",
    'count(up{job=~"$job"} == 0) or vector(0)',
    f"count(vllm:num_requests_running{OF_JOB})",
)
"""dashboards/grafana/vllm_overview.json, its first row."""

KV_CACHE = (
    f"max(vllm:kv_cache_usage_perc{OF_ENGINE})",
    f"avg(vllm:kv_cache_usage_perc{OF_ENGINE})",
    f"sum(rate(vllm:prefix_cache_hits_total{OF_ENGINE}{RATE})) / "
    f"(sum(rate(vllm:prefix_cache_queries_total{OF_ENGINE}{RATE})) > 0)",
    f"sum(rate(vllm:prompt_tokens_cached_total{OF_ENGINE}{RATE})) / "
    f"(sum(rate(vllm:prompt_tokens_total{OF_ENGINE}{RATE})) > 0)",
    f"sum(rate(vllm:num_preemptions_total{OF_ENGINE}{RATE}))",
    f'sum(vllm:num_requests_waiting_by_reason{OF_ENGINE[:-1]}, reason="capacity"}})',
    f"max by (instance, engine) (vllm:kv_cache_usage_perc{OF_ENGINE})",
    f'sum(vllm:num_requests_waiting_by_reason{OF_ENGINE[:-1]}, reason="deferred"}})',
)
"""dashboards/grafana/vllm_kv_cache.json, its first rows."""

INSTANCES = (
    f"count by (model_name, instance) (vllm:num_requests_running{OF_ENGINE})",
    f"sum by (model_name, instance) (rate(vllm:generation_tokens_total{OF_ENGINE}[5m]))",
    "histogram_quantile(0.95, sum by (le, model_name, instance) "
    f"(rate(vllm:inter_token_latency_seconds_bucket{OF_ENGINE}[5m])))",
    f"sum by (instance, engine) (vllm:num_requests_waiting{OF_ENGINE})",
)
"""dashboards/grafana/vllm_instances.json, four of its table and first panels."""

SERVICE_STATUS = (
    f'(2 - (max(vllm:engine_sleep_state{OF_JOB[:-1]}, sleep_state="awake"}}) == bool 0)) or vector(0)',
    f"(60 * sum(rate(vllm:request_success_total{OF_JOB}[5m]))) and on () count(vllm:num_requests_running{OF_JOB})",
)
"""dashboards/grafana/vllm_service_status.json, its status and the requests a minute."""

QUERY_STATISTICS = (
    f"histogram_quantile(0.90, sum by(le, model_name) (rate(vllm:request_prompt_tokens_bucket{OF_MODEL}{RATE})))",
    f"sum(rate(vllm:prompt_tokens_total{OF_MODEL}{RATE}))\n/\nsum(rate(vllm:request_success_total{OF_MODEL}{RATE}))",
)
"""dashboards/grafana/query_statistics.json, the kinds that the others lack; its variable is called Deployment_id."""

EXPRESSIONS = (*PROMETHEUS_GRAFANA, *OVERVIEW, *KV_CACHE, *INSTANCES, *SERVICE_STATUS, *QUERY_STATISTICS)
