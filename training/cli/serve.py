"""`trainfleet serve`: a trained model behind HTTP, on this machine or on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem
from trainfleet.training.cli.options import (
    AliasedCommand,
    InferencePrecision,
    JsonAtEnd,
    ModelSource,
    Which,
    one_of,
)
from trainfleet.training.cli.serve_options import (
    KUBERAY_ONLY,
    LOCAL_ONLY,
    OWN_ENGINE_ONLY,
    VLLM_ONLY,
    AcceleratorType,
    Batch,
    BodyKib,
    Context,
    Engine,
    FromSecret,
    GcsFaultTolerance,
    Host,
    Image,
    MaxReplicas,
    MaxTokens,
    ModelUrl,
    Name,
    Namespace,
    On,
    Pool,
    Port,
    Print,
    Queue,
    Redis,
    RedisSecret,
    Replicas,
    Rows,
    Stack,
    TensorParallel,
    Timeout,
    WaitMs,
    Write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trainfleet.training.inference.serve.request_handler import Limits

serve = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

HELP = """Serve a trained model over HTTP with Ray Serve, until Ctrl-C: then accepted requests are completed.

POST /predict takes [dim]{"rows": [{...}]}[/] and returns [dim]{"predictions": [...]}[/]; GET /healthz and
/metrics (Prometheus). Settings of the predictions stand next to rows, as in
[dim]{"rows": [...], "max_tokens": 100, "temperature": 0.5, "seed": 1}[/]; with [dim]"stream": true[/] text
arrives as it is made, as server-sent events. With --json the address is printed as JSON once the server is
ready.

[bold]Examples[/]

trainfleet serve runs/lm-small

trainfleet serve models/digits --port 9000 --replicas 2 --queue 128

trainfleet serve models/lm-small --precision bf16 --max-tokens 256

trainfleet serve s3://my-bucket/runs/lm-small --on kuberay --stack outputs.json --replicas 2

trainfleet serve models/llama-ft --engine vllm --write serve.yaml --tensor-parallel 2 --max-replicas 4

curl -s http://127.0.0.1:8000/predict -d '{"rows": [{"text": "def main("}]}'

curl -sN http://127.0.0.1:8000/predict -d '{"rows": [{"text": "def main("}], "max_tokens": 9, "stream": true}'
"""


@serve.command(cls=AliasedCommand, help=HELP, epilog=EXIT_CODES)
def serve_command(  # noqa: PLR0917 - Typer passes options by name
    ctx: typer.Context,
    source: ModelSource,
    which: Which = "best",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    replicas: Replicas = 1,
    batch: Batch = 16,
    wait_ms: WaitMs = 5.0,
    queue: Queue = 256,
    rows: Rows = 64,
    body_kib: BodyKib = 1024,
    timeout: Timeout = 30.0,
    max_tokens: MaxTokens = 1024,
    precision: InferencePrecision = None,
    on: On = "local",
    name: Name = None,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    image: Image = None,
    pool: Pool = None,
    from_secret: FromSecret = None,
    gcs_fault_tolerance: GcsFaultTolerance = "auto",
    redis: Redis = None,
    redis_secret: RedisSecret = None,
    show: Print = False,
    engine: Engine = "trainfleet",
    write: Write = None,
    model_source: ModelUrl = None,
    max_replicas: MaxReplicas = None,
    tensor_parallel: TensorParallel = 1,
    accelerator_type: AcceleratorType = None,
    as_json: JsonAtEnd = False,
) -> None:
    _reject_other_engine(ctx, one_of("--engine", engine, ("trainfleet", "vllm")))
    if engine == "vllm":
        options: dict[str, Any] = {"source": model_source, "host": host, "port": port, "precision": precision}
        options |= {"replicas": replicas, "max_replicas": max_replicas, "accelerator": accelerator_type}
        _write_vllm_config(source, options | {"tensor_parallel": tensor_parallel}, write, as_json=as_json)
        return
    from trainfleet.training.inference.serve.request_handler import Limits

    waiting: dict[str, Any] = {"queue": queue, "batch": batch, "wait_ms": wait_ms, "timeout_s": timeout}
    limits = Limits(body_kib=body_kib, rows=rows, max_tokens=max_tokens, **waiting)
    _reject_unsupported(ctx, one_of("--on", on, ("local", "kuberay")))
    if on == "local":
        here = {"host": host, "port": port, "replicas": replicas, "precision": precision}
        _serve_here(source, which, limits, here, as_json=as_json)
        return
    from trainfleet.training.launch.kuberay.options import KubeRayOptions
    from trainfleet.training.launch.kuberay.service import ServiceOptions, serve_on_kuberay

    pods: dict[str, Any] = {"context": context, "namespace": namespace, "image": image, "pool": pool}
    pods |= {"from_secrets": tuple(from_secret or ()), "redis": redis, "redis_secret": redis_secret}
    cluster = KubeRayOptions(gcs_fault_tolerance=gcs_fault_tolerance, **pods)
    service = ServiceOptions(source, which, replicas, limits.model_dump(), precision, name, stack, cluster)
    serve_on_kuberay(service, show=show, as_json=as_json)


def _serve_here(
    source: str, which: str, limits: Limits, options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Serve on this machine, until it is stopped. `options`: those of `serve` besides the limits."""
    from trainfleet.console import err
    from trainfleet.training.inference.serve.app import serve as start

    if not as_json:
        err().print("starting Ray Serve ...")
    start(source, which, limits=limits, hear=lambda event: _report(event, as_json=as_json), **options)


def _write_vllm_config(
    source: str, options: Mapping[str, Any], target: Path | None, *, as_json: bool
) -> None:
    """Write the Ray Serve config, and report how to deploy it. `options`: those of vLLM."""
    from trainfleet.console import out, print_json
    from trainfleet.training.inference.serve.vllm_config import VllmOptions, write_config

    if target is None:
        problem = Problem("--write", "is required with --engine vllm", "--write serve.yaml")
        raise InputError("no file to write", [problem])
    document = write_config(source, VllmOptions(**options), target)
    if as_json:
        print_json({"written": str(target), "config": document})
        return
    text = f"wrote {target}; deploy it where Ray has vLLM (pip install 'ray[llm]'): serve run {target}"
    out().print(text, markup=False, soft_wrap=True)


def _reject_other_engine(ctx: typer.Context, engine: str) -> None:
    """Reject the options that only the other engine has.

    Raises:
        InputError: all of them.
    """
    if engine == "vllm":
        _reject(ctx, OWN_ENGINE_ONLY, "--engine vllm", "--engine trainfleet")
    else:
        _reject(ctx, VLLM_ONLY, "--engine trainfleet", "--engine vllm")


def _reject_unsupported(ctx: typer.Context, on: str) -> None:
    """Reject the options that only the other place has.

    Raises:
        InputError: all of them.
    """
    if on == "local":
        _reject(ctx, KUBERAY_ONLY, "--on local", "--on kuberay")
    else:
        _reject(ctx, LOCAL_ONLY, "--on kuberay", "--on local")


def _reject(ctx: typer.Context, options: Mapping[str, str], this: str, other: str) -> None:
    given = []
    for parameter, flag in options.items():
        source = ctx.get_parameter_source(parameter)
        if source is not None and not source.name.startswith("DEFAULT"):
            given.append(flag)
    if given:
        what = f"does nothing with {this}; it is an option of: {other.rpartition(' ')[2]}"
        fix = f"leave it out, or use {other}"
        raise InputError(
            f"options that {this} does not have", [Problem("", f"`{flag}` {what}", fix) for flag in given]
        )


def _report(event: Mapping[str, Any], *, as_json: bool) -> None:
    from trainfleet.console import err, print_json

    if event["kind"] == "ready" and as_json:
        print_json({key: value for key, value in event.items() if key != "kind"})
    elif event["kind"] == "ready":
        replicas = "1 replica" if event["replicas"] == 1 else f"{event['replicas']} replicas"
        text = f"serving step {event['step']} at {event['address']} ({replicas})"
        err().print(f"{text}; Ctrl-C ends it", soft_wrap=True)
    elif event["kind"] == "draining" and not as_json:
        err().print("completing accepted requests (Ctrl-C again ends at once)")
