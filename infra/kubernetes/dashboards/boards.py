"""The dashboards: GPUs, Ray, trainings and their queue, cost by pool.

The DCGM exporter names the pod that holds a GPU in `exported_pod` and `exported_namespace`, because its own
pod uses `pod` and `namespace`. Prices are list prices with their date.
"""

from __future__ import annotations

from trainfleet.infra.kubernetes.dashboards.panels import Dashboard, Panel, Query
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.values.monitoring import CAPACITY_METRIC_LABEL, POOL_METRIC_LABEL
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform, Pool

BY_GPU = "sum by (Hostname, gpu)"
TRAINING = f'exported_namespace="{TRAINING_NAMESPACE}"'
IN_TRAINING = f'namespace="{TRAINING_NAMESPACE}"'
LEGEND_GPU = "{{Hostname}} GPU {{gpu}}"
LEGEND_RUN = "{{ray_train_run_name}}"
SINK = "Told by runs with log.prometheus=ray."


def boards(platform: Platform, features: LayerFeatures) -> tuple[Dashboard, ...]:
    """The dashboards of this platform, by its features."""
    found = [ray(), training(queue=features.queue)]
    if platform.pools:
        found += [gpu(), cost(platform)]
    return tuple(found)


def gpu() -> Dashboard:
    used, free = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
    return Dashboard(
        "trainfleet-gpu",
        "GPUs",
        (
            figure("GPUs seen", "count(DCGM_FI_DEV_GPU_UTIL)", width=6),
            figure("GPUs held by trainings", f"count(DCGM_FI_DEV_GPU_UTIL{{{TRAINING}}})", width=6),
            figure("Mean use", "avg(DCGM_FI_DEV_GPU_UTIL)", "percent", width=6),
            figure("Power of all GPUs", "sum(DCGM_FI_DEV_POWER_USAGE)", "watt", width=6),
            Panel("Use", (Query(f"{BY_GPU} (DCGM_FI_DEV_GPU_UTIL)", LEGEND_GPU),), "percent", maximum=100),
            Panel(
                "Tensor cores at work",
                (Query(f"{BY_GPU} (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)", LEGEND_GPU),),
                "percentunit",
                maximum=1,
                description=(
                    "Share of cycles: what a training gets out of the GPU, "
                    "where use only says that it is not idle."
                ),
            ),
            Panel(
                "Memory used",
                (Query(f"{BY_GPU} ({used}) / ({BY_GPU} ({used}) + {BY_GPU} ({free}))", LEGEND_GPU),),
                "percentunit",
                maximum=1,
            ),
            Panel(
                "Memory bandwidth at work",
                (Query(f"{BY_GPU} (DCGM_FI_PROF_DRAM_ACTIVE)", LEGEND_GPU),),
                "percentunit",
                maximum=1,
            ),
            Panel(
                "NVLink",
                (Query(f"{BY_GPU} (rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[5m]))", LEGEND_GPU),),
                "MBs",
            ),
            Panel(
                "Temperature",
                (Query("max by (Hostname, gpu) (DCGM_FI_DEV_GPU_TEMP)", LEGEND_GPU),),
                "celsius",
            ),
            Panel(
                "Last Xid error",
                (Query("max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS) > 0", LEGEND_GPU),),
                description="NVIDIA's error number; none is best.",
            ),
            Panel(
                "Memory rows remapped",
                (Query(f"{BY_GPU} (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS)", LEGEND_GPU),),
            ),
        ),
    )


def ray() -> Dashboard:
    return Dashboard(
        "trainfleet-ray",
        "Ray",
        (
            figure("Heads that answer", 'sum(up{ray_io_node_type="head"})', width=8),
            figure("Workers that answer", 'sum(up{ray_io_node_type="worker"})', width=8),
            figure(
                "Restarts in the last hour",
                f"sum(increase(kube_pod_container_status_restarts_total{{{IN_TRAINING}}}[1h]))",
                width=8,
            ),
            *_use_by_cluster(),
            Panel(
                "Tasks by state",
                (Query("sum by (ray_io_cluster, State) (ray_tasks)", "{{ray_io_cluster}} {{State}}"),),
            ),
            Panel(
                "Actors by state",
                (Query("sum by (ray_io_cluster, State) (ray_actors)", "{{ray_io_cluster}} {{State}}"),),
            ),
        ),
    )


def _use_by_cluster() -> tuple[Panel, ...]:
    """What each Ray cluster uses: CPU, memory, object store and network."""
    return (
        Panel(
            "CPU",
            (
                Query(
                    "avg by (ray_io_cluster, instance) (ray_node_cpu_utilization)",
                    "{{ray_io_cluster}} {{instance}}",
                ),
            ),
            "percent",
            maximum=100,
        ),
        Panel(
            "Memory",
            (
                Query(
                    "sum by (ray_io_cluster, instance) (ray_node_mem_used) / "
                    "sum by (ray_io_cluster, instance) (ray_node_mem_total)",
                    "{{ray_io_cluster}} {{instance}}",
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Object store",
            (
                Query(
                    "sum by (ray_io_cluster, Location) (ray_object_store_memory)",
                    "{{ray_io_cluster}} {{Location}}",
                ),
            ),
            "bytes",
        ),
        Panel(
            "Network",
            (
                Query(
                    "sum by (ray_io_cluster) (ray_node_network_receive_speed)",
                    "{{ray_io_cluster}} received",
                ),
                Query("sum by (ray_io_cluster) (ray_node_network_send_speed)", "{{ray_io_cluster}} sent"),
            ),
            "Bps",
        ),
    )


def training(*, queue: bool) -> Dashboard:
    of_run = "max by (run) (ray_trainfleet_{})"
    panels = [
        Panel(
            "Loss",
            (Query("max by (run, split) (ray_trainfleet_loss)", "{{run}} {{split}}"),),
            description=SINK,
        ),
        Panel("Step", (Query("max by (run) (ray_trainfleet_step)", "{{run}}"),), description=SINK),
        Panel(
            "Samples per second", (Query(of_run.format("samples_per_second"), "{{run}}"),), description=SINK
        ),
        Panel("Seconds of a step", (Query(of_run.format("step_seconds"), "{{run}}"),), "s", description=SINK),
        Panel(
            "Time spent waiting for data",
            (Query(of_run.format("data_wait"), "{{run}}"),),
            "percentunit",
            description=SINK,
        ),
        Panel(
            "Seconds of the last checkpoint",
            (Query(of_run.format("checkpoint_seconds"), "{{run}}"),),
            "s",
            description=SINK,
        ),
        Panel(
            "State of each run",
            (
                Query(
                    "sum by (ray_train_run_name, ray_train_controller_state) (ray_train_controller_state)",
                    LEGEND_RUN + " {{ray_train_controller_state}}",
                ),
            ),
        ),
        Panel(
            "Time to start workers",
            (Query("sum by (ray_train_run_name) (ray_train_worker_group_start_total_time_s)", LEGEND_RUN),),
            "s",
        ),
        Panel(
            "GPU use by pod",
            (Query(f"avg by (exported_pod) (DCGM_FI_DEV_GPU_UTIL{{{TRAINING}}})", "{{exported_pod}}"),),
            "percent",
            maximum=100,
        ),
        Panel(
            "Pods by phase", (Query(f"sum by (phase) (kube_pod_status_phase{{{IN_TRAINING}}})", "{{phase}}"),)
        ),
    ]
    if queue:
        panels += _queue()
    return Dashboard("trainfleet-training", "Trainings", tuple(panels))


def _queue() -> list[Panel]:
    """The workloads that Kueue admits or holds back."""
    return [
        Panel(
            "Waiting in the queue",
            (
                Query(
                    "sum by (cluster_queue, status) (kueue_pending_workloads)",
                    "{{cluster_queue}} {{status}}",
                ),
            ),
        ),
        Panel(
            "Admitted",
            (Query("sum by (cluster_queue) (kueue_admitted_active_workloads)", "{{cluster_queue}}"),),
        ),
    ]


def cost(platform: Platform) -> Dashboard:
    """The cost of running GPU nodes by pool. A pool without a known price is counted in nodes only."""
    priced = [
        (pool, price, pool.machine.price_date)
        for pool in distinguishable(platform)
        if (price := pool.machine.usd_per_hour(pool.spec.capacity)) is not None
    ]
    spent = tuple(
        Query(f"({nodes(pool)} or vector(0)) * {price:.6g}", legend(pool)) for pool, price, _ in priced
    )
    total = " + ".join(f"({query.expression})" for query in spent)
    days = sorted({day.isoformat() for _, _, day in priced if day})
    note = f"List prices of {', '.join(days)}." if days else "List prices."
    held = f'sum(kube_pod_container_resource_requests{{resource="nvidia_com_gpu", {IN_TRAINING}}})'
    panels = [
        Panel(
            "Nodes", tuple(Query(nodes(pool), legend(pool)) for pool in distinguishable(platform)), width=12
        )
    ]
    if spent:
        panels = [
            figure("Per hour, now", total, "currencyUSD", width=8, description=note),
            figure(
                "Last 24 hours",
                f"sum_over_time(({total})[24h:5m]) / 12",
                "currencyUSD",
                width=8,
                description=note,
            ),
            figure(
                "Last 30 days", f"sum_over_time(({total})[30d:1h])", "currencyUSD", width=8, description=note
            ),
            Panel("Per hour, by pool", spent, "currencyUSD", description=note),
            *panels,
        ]
    paid_idle = f'sum(kube_node_status_allocatable{{resource="nvidia_com_gpu"}}) - ({held} or vector(0))'
    panels.append(
        Panel(
            "GPUs that are paid for and not asked for",
            (Query(paid_idle),),
            description="Nodes that the autoscaler has not taken away yet, and holes.",
        )
    )
    return Dashboard("trainfleet-cost", "Cost of GPU pools", tuple(panels))


def figure(title: str, expression: str, unit: str = "short", *, width: int, description: str = "") -> Panel:
    """One number. A row of them is at the top of a dashboard."""
    return Panel(title, (Query(expression),), unit, "stat", width, height=4, description=description)


def distinguishable(platform: Platform) -> tuple[Pool, ...]:
    """A node group of each pool and capacity: groups that differ by zone have the same labels and price."""
    found: dict[str, Pool] = {}
    for pool in platform.pools:
        found.setdefault(legend(pool), pool)
    return tuple(found.values())


def legend(pool: Pool) -> str:
    """The pool, and the capacity where it has several."""
    return " ".join((pool.spec.pool, *pool.spec.capacity_label.values()))


def nodes(pool: Pool) -> str:
    """The nodes of a pool and capacity, by the labels that our node groups carry."""
    chosen = [f'{POOL_METRIC_LABEL}="{pool.spec.pool}"']
    chosen += [f'{CAPACITY_METRIC_LABEL}="{value}"' for value in pool.spec.capacity_label.values()]
    return f"count(kube_node_labels{{{', '.join(chosen)}}})"
