"""Every metric that a dashboard or an alert may use, and its source. A test checks each expression.

kube-state-metrics exports only the node labels that its chart lists (values/monitoring.py). Names of Ray's
metrics change between releases; a test looks for them in the installed Ray.
"""

from __future__ import annotations

DCGM = "dcgm-exporter 4.8.1, etc/default-counters.csv"
RAY = "ray 2.60, dashboard/modules/metrics/dashboards"
SINK = "trainfleet, training/trackers/prometheus.py"
STATE = "kube-state-metrics 2.18, docs/metrics"
KUEUE = "kueue 0.17, site docs/reference/metrics.md"
PROMETHEUS = "prometheus, of every target it scrapes"

METRICS: dict[str, str] = {
    "DCGM_FI_DEV_GPU_UTIL": DCGM,
    "DCGM_FI_DEV_FB_USED": DCGM,
    "DCGM_FI_DEV_FB_FREE": DCGM,
    "DCGM_FI_DEV_GPU_TEMP": DCGM,
    "DCGM_FI_DEV_POWER_USAGE": DCGM,
    "DCGM_FI_DEV_XID_ERRORS": DCGM,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": DCGM,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": DCGM,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": DCGM,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": DCGM,
    "DCGM_FI_PROF_DRAM_ACTIVE": DCGM,
    "ray_node_cpu_utilization": RAY,
    "ray_node_mem_used": RAY,
    "ray_node_mem_total": RAY,
    "ray_node_network_receive_speed": RAY,
    "ray_node_network_send_speed": RAY,
    "ray_object_store_memory": RAY,
    "ray_tasks": RAY,
    "ray_actors": RAY,
    "ray_train_controller_state": RAY,
    "ray_train_worker_group_start_total_time_s": RAY,
    "ray_trainfleet_loss": SINK,
    "ray_trainfleet_step": SINK,
    "ray_trainfleet_samples_per_second": SINK,
    "ray_trainfleet_step_seconds": SINK,
    "ray_trainfleet_data_wait": SINK,
    "ray_trainfleet_checkpoint_seconds": SINK,
    "kube_deployment_status_replicas_available": STATE,
    "kube_node_labels": STATE,
    "kube_node_status_condition": STATE,
    "kube_node_status_allocatable": STATE,
    "kube_pod_container_resource_requests": STATE,
    "kube_pod_container_status_restarts_total": STATE,
    "kube_pod_status_phase": STATE,
    "kueue_pending_workloads": KUEUE,
    "kueue_admitted_active_workloads": KUEUE,
    "up": PROMETHEUS,
}
