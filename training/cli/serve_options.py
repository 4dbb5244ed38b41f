"""The options of `trainfleet serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainfleet import completion

LIMITS, CLUSTER, VLLM = "Limits", "Kubernetes (--on kuberay)", "vLLM (--engine vllm)"
LOCAL_ONLY, KUBERAY_ONLY = (
    {"host": "--host", "port": "--port"},
    {
        "name": "--name",
        "stack": "--stack",
        "context": "--context",
        "namespace": "--namespace",
        "image": "--image",
        "pool": "--pool",
        "from_secret": "--from-secret",
        "gcs_fault_tolerance": "--gcs-fault-tolerance",
        "redis": "--redis",
        "redis_secret": "--redis-secret",
        "show": "--print",
    },
)
"""The options that only one place has, by parameter."""
OWN_ENGINE_ONLY = {
    "which": "--which",
    "batch": "--batch",
    "wait_ms": "--wait-ms",
    "queue": "--queue",
    "rows": "--rows",
    "body_kib": "--body-kib",
    "timeout": "--timeout",
    "max_tokens": "--max-tokens",
    "on": "--on",
    **KUBERAY_ONLY,
}
VLLM_ONLY = {
    "write": "--write",
    "model_source": "--model-source",
    "max_replicas": "--max-replicas",
    "tensor_parallel": "--tensor-parallel",
    "accelerator_type": "--accelerator-type",
}
"""The options that only one engine has, by parameter."""
Host = Annotated[
    str,
    typer.Option("--host", metavar="HOST", help="Where to listen; 0.0.0.0 for all networks (no password)."),
]
Port = Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535)]
Replicas = Annotated[
    int, typer.Option("--replicas", metavar="N", min=1, max=256, help="Processes that each hold the model.")
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch", metavar="N", min=1, help="Maximum rows per forward pass.", rich_help_panel=LIMITS
    ),
]
WaitMs = Annotated[
    float,
    typer.Option(
        "--wait-ms",
        metavar="MS",
        min=0,
        help="How long an incomplete batch waits for more rows.",
        rich_help_panel=LIMITS,
    ),
]
Queue = Annotated[
    int,
    typer.Option(
        "--queue",
        metavar="N",
        min=1,
        help="Maximum rows that wait at a replica; more are rejected with 503.",
        rich_help_panel=LIMITS,
    ),
]
Rows = Annotated[
    int,
    typer.Option("--rows", metavar="N", min=1, help="Maximum rows per request.", rich_help_panel=LIMITS),
]
BodyKib = Annotated[
    int,
    typer.Option("--body-kib", metavar="N", min=1, help="Maximum request size.", rich_help_panel=LIMITS),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="S",
        min=0.01,
        help="Maximum seconds per request; then 504.",
        rich_help_panel=LIMITS,
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        metavar="N",
        min=1,
        help="Maximum `max_tokens` of a request to a language model.",
        rich_help_panel=LIMITS,
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="PLACE", help="local: this machine. kuberay: a Kubernetes cluster with KubeRay."
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The RayService; by default named after the model's run.",
        rich_help_panel=CLUSTER,
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="OUTPUTS.json|STACK",
        help="The platform (also --platform, --outputs).",
        rich_help_panel=CLUSTER,
        autocompletion=completion.stacks,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A context of your kubeconfig, instead of --stack.",
        rich_help_panel=CLUSTER,
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NS", help="With --context.", rich_help_panel=CLUSTER)
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="REF",
        help="With --context, or instead of the stack's.",
        rich_help_panel=CLUSTER,
    ),
]
Pool = Annotated[
    str | None,
    typer.Option(
        "--pool", metavar="NAME", help="Replicas with one GPU each, on this pool.", rich_help_panel=CLUSTER
    ),
]
FromSecret = Annotated[
    list[str] | None,
    typer.Option(
        "--from-secret",
        metavar="SECRET",
        help="A Secret whose keys become variables of the pods.",
        rich_help_panel=CLUSTER,
    ),
]
GcsFaultTolerance = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--gcs-fault-tolerance",
        help="Keep Ray's control store in Redis, so that requests are served while a lost head is replaced. "
        "auto: if there is a Redis. always: or create nothing. never.",
        rich_help_panel=CLUSTER,
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="ADDRESS",
        help="A Redis for Ray's control store, instead of the stack's: redis://HOST:PORT.",
        rich_help_panel=CLUSTER,
    ),
]
RedisSecret = Annotated[
    str | None,
    typer.Option(
        "--redis-secret",
        metavar="SECRET",
        help="The Secret with the password of --redis, under the key `password`.",
        rich_help_panel=CLUSTER,
    ),
]
Print = Annotated[
    bool,
    typer.Option(
        "--print", help="Print the RayService as YAML, and create nothing.", rich_help_panel=CLUSTER
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="trainfleet: serve here or on a cluster. vllm: write a Ray Serve config that serves a published "
        "language model with vLLM on GPUs, and start nothing.",
    ),
]
Write = Annotated[
    Path | None,
    typer.Option("--write", metavar="FILE", help="Where to write the config, as YAML.", rich_help_panel=VLLM),
]
ModelUrl = Annotated[
    str | None,
    typer.Option(
        "--model-source",
        metavar="PATH|URL",
        help="Where the replicas read the published folder: an absolute path, s3://, gs://, abfss:// or "
        "azure://; by default the folder's path on this machine.",
        rich_help_panel=VLLM,
    ),
]
MaxReplicas = Annotated[
    int | None,
    typer.Option(
        "--max-replicas",
        metavar="N",
        min=1,
        max=256,
        help="Ray Serve adds replicas up to this number; by default as --replicas.",
        rich_help_panel=VLLM,
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        metavar="N",
        min=1,
        help="GPUs that share the weights of one replica.",
        rich_help_panel=VLLM,
    ),
]
AcceleratorType = Annotated[
    str | None,
    typer.Option(
        "--accelerator-type",
        metavar="TYPE",
        help="Only GPUs of this type, as Ray names it, such as H100; by default any.",
        rich_help_panel=VLLM,
    ),
]
