"""`trainfleet predict` and `trainfleet serve`: a trained model at work, on files of rows and behind an
address.

Answers `--help` in half a second: torch and Ray are imported by the processes that compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import typer

from trainfleet.console import EXIT_CODES

predict = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
serve = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT|PUBLISHED",
        help="A run's folder or URL, one checkpoint's, or a published folder.",
        show_default=False,
    ),
]
Which = Annotated[
    str, typer.Option("--which", metavar="WHICH", help="Of a run's checkpoints: best, newest or step-N.")
]
Json = Annotated[bool, typer.Option("--json", help="No progress; one JSON document on stdout at the end.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the workload's predictions, such as top=3."
    ),
]


@predict.command(epilog=EXIT_CODES)
def predict_command(  # noqa: PLR0917 - Typer passes options by name
    source: Source,
    rows: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Parquet, JSON lines, text, audio or images: a file, a folder or a URL.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A folder that is not there yet.", show_default=False
        ),
    ],
    which: Which = "best",
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Rows that go through the model at once.")
    ] = 16,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=0,
            max=512,
            help="Processes under Ray; 0: this one, without Ray. By default as the input is large.",
        ),
    ] = None,
    on_bad: Annotated[
        str,
        typer.Option(
            "--on-bad",
            metavar="HOW",
            help="Rows that cannot be read: refuse, or quarantine (answered with the reason).",
        ),
    ] = "refuse",
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Of the output's files: jsonl or parquet.")
    ] = "jsonl",
    glob: Annotated[str, typer.Option("--glob", metavar="PATTERN", help="Which files of a folder.")] = "**/*",
    block_kib: Annotated[
        int,
        typer.Option(
            "--block-kib", metavar="N", min=1, help="About so much input per block; a finished block is kept."
        ),
    ] = 256,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Answer every row of the input, once and in order, into OUT; typed again after an interruption it goes
    on.

    A line of text is a row of its own, `{"text": ...}`. OUT appears when all of it is there; until then
    OUT.partial holds what is finished.

    [bold]Examples[/]

    trainfleet predict runs/lm-small prompts.txt --output out/continued

    trainfleet predict runs/vision-small pictures/ --output out/labels --workers 2 --on-bad quarantine

    trainfleet predict models/lm-small rows.parquet --output out/rows --format parquet --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.inference.predict import Request
    from trainfleet.training.inference.predict import predict as answer
    from trainfleet.training.runtime.counted_progress import Headway

    request = Request(
        source=source,
        input=rows,
        output=output,
        which=which,
        batch=batch,
        workers=workers,
        on_bad=cast("Literal['refuse', 'quarantine']", _one_of("--on-bad", on_bad, ("refuse", "quarantine"))),
        form=cast("Literal['jsonl', 'parquet']", _one_of("--format", form, ("jsonl", "parquet"))),
        settings=_settings(settings or []),
        block_kib=block_kib,
        glob=glob,
    )
    with Headway("predicting, blocks", quiet=as_json) as headway:
        manifest = answer(request, headway)
    if as_json:
        print_json(manifest)
        return
    if manifest.get("already"):
        out().print("finished before; nothing to do")
    bad = manifest["bad"]["count"]
    out().print(
        f"{manifest['rows']:,} rows{f', {bad:,} of them could not be read' if bad else ''}, in {len(manifest['files'])} files"
    )
    out().print(manifest["output"], soft_wrap=True, markup=False)


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    from trainfleet.errors import InputError, Problem
    from trainfleet.suggestions import did_you_mean

    if value not in known:
        raise InputError(
            "no such choice", [Problem(option, f"`{value}` is not known", did_you_mean(value, known))]
        )
    return value


def _settings(said: Sequence[str]) -> dict[str, Any]:
    """`key=value` as plain values; values are YAML.

    Raises:
        InputError: all that is no setting.
    """
    import yaml

    from trainfleet.errors import InputError, Problem

    settings, problems = {}, []
    for each in said:
        key, equals, text = each.partition("=")
        try:
            settings[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals or not key.strip():
            problems.append(Problem(f"--set {each}", "is no setting", "write key=value"))
    if problems:
        raise InputError("settings that cannot be read", problems)
    return settings


@serve.command(epilog=EXIT_CODES)
def serve_command(  # noqa: PLR0917 - Typer passes options by name
    source: Source,
    which: Which = "best",
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="Where to listen; 0.0.0.0 for all networks (there is no password)."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535)] = 8000,
    replicas: Annotated[
        int,
        typer.Option("--replicas", metavar="N", min=1, max=256, help="Processes that each hold the model."),
    ] = 1,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Most rows that go through the model at once.")
    ] = 16,
    wait_ms: Annotated[
        float,
        typer.Option(
            "--wait-ms", metavar="MS", min=0, help="How long a batch that is not full waits for more."
        ),
    ] = 5.0,
    queue: Annotated[
        int,
        typer.Option(
            "--queue", metavar="N", min=1, help="Most rows that wait at a replica; more are refused with 503."
        ),
    ] = 256,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Most rows of a request.")] = 64,
    body_kib: Annotated[int, typer.Option("--body-kib", metavar="N", min=1, help="Largest request.")] = 1024,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.01, help="Longest a request may take; then 504.")
    ] = 30.0,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="local: this machine. kuberay: a Kubernetes cluster, kept up by KubeRay.",
        ),
    ] = "local",
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="kuberay: the RayService; by default the model's run."),
    ] = None,
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="OUTPUTS.json|STACK", help="kuberay: the platform.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="kuberay: a context of your kubeconfig, instead of --stack."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NS", help="With --context.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="With --context, or instead of the stack's.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="NAME", help="kuberay: replicas with a GPU each, on this pool."),
    ] = None,
    from_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--from-secret", metavar="SECRET", help="kuberay: a Secret whose keys become variables."
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="kuberay: show the RayService as YAML, and make nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve a trained model over HTTP by Ray Serve, until Ctrl-C: then what was taken is finished and nothing
    stays behind.

    POST /predict takes [dim]{"rows": [{...}]}[/] and gives [dim]{"predictions": [...]}[/]; GET /healthz and
    /metrics (Prometheus).
    With --json the address is printed as JSON once it is ready.

    [bold]Examples[/]

    trainfleet serve runs/lm-small

    trainfleet serve models/digits --port 9000 --replicas 2 --queue 128

    trainfleet serve s3://my-bucket/runs/lm-small --on kuberay --stack outputs.json --replicas 2

    curl -s http://127.0.0.1:8000/predict -d '{"rows": [{"text": "def main("}]}'
    """
    from trainfleet.console import err, print_json
    from trainfleet.training.inference.serve.app import serve as start
    from trainfleet.training.inference.serve.request_handler import Limits

    def hear(event: Mapping[str, Any]) -> None:
        if event["kind"] == "ready" and as_json:
            print_json({key: value for key, value in event.items() if key != "kind"})
        elif event["kind"] == "ready":
            err().print(
                f"serving step {event['step']} at {event['address']} ({event['replicas']} replicas); Ctrl-C ends it",
                soft_wrap=True,
            )
        elif event["kind"] == "draining" and not as_json:
            err().print("finishing what was taken (Ctrl-C again ends at once)")

    limits = Limits(
        body_kib=body_kib, rows=rows, queue=queue, batch=batch, wait_ms=wait_ms, timeout_s=timeout
    )
    if _one_of("--on", on, ("local", "kuberay")) == "kuberay":
        from trainfleet.training.launch.kuberay.service import Wish, serve_there

        wish = Wish(
            source,
            which,
            replicas,
            limits.model_dump(),
            name,
            stack,
            context,
            namespace,
            image,
            pool,
            tuple(from_secret or ()),
        )
        serve_there(wish, show=show, as_json=as_json)
        return
    if not as_json:
        err().print("starting Ray Serve ...")
    start(source, which, host=host, port=port, replicas=replicas, limits=limits, hear=hear)
