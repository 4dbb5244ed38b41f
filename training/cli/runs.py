"""`trainfleet train`, `trainfleet launch` and `trainfleet report`: start runs, go on with them, and read
them.

Answers `--help` in half a second: torch and Ray are imported by the processes that train, never here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.training.launch.request import Request
    from trainfleet.training.launch.supervise import Outcome

train = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
launch = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
report = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A YAML file, or the name of a recipe that comes with Trainfleet.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Change the recipe, such as optimizer.lr=3e-4.", show_default=False
    ),
]
Run = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="The run's name; by default the recipe's.")
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URL",
        help="Where runs are kept: a folder, s3://, gs:// or az://; by default the recipe's `storage`, runs/.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew; what the run left before is moved aside, never deleted.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-change",
        metavar="KEY",
        help="Let this key of the recipe differ from the one the run was started with.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="No progress; one JSON document on stdout at the end.")]


@train.command(epilog=EXIT_CODES)
def train_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: RecipeArgument,
    overrides: Overrides = None,
    run: Run = None,
    storage: Storage = None,
    fresh: Fresh = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Train a recipe on this machine, with Ray; the same as `trainfleet launch RECIPE --on local`.

    Typed again it goes on from the newest checkpoint; Ctrl-C saves one first. How the model is spread is one
    word of the
    recipe: strategy=ddp (whole on every worker), fsdp (in shards) or hsdp (shards, held several times); a run
    may change it.
    With a URL as storage the checkpoints are uploaded while the run goes on, and any machine can go on from
    them.

    [bold]Examples[/]

    trainfleet train lm-small

    trainfleet train recipes/lm-small.yaml strategy=fsdp scaling.workers=2

    trainfleet train lm-small steps=400 optimizer.lr=1e-3 --run try-1

    trainfleet train lm-small controllers.rate.kind=plateau --run steered

    trainfleet train lm-small --storage s3://my-bucket/runs

    trainfleet train lm-tiny --fresh --json
    """
    from trainfleet.training.launch.request import Request

    start_and_show(
        Request(recipe, tuple(overrides or ()), "local", run, storage, (), fresh, as_json, tuple(allow or ()))
    )


@launch.command(epilog=EXIT_CODES)
def launch_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: RecipeArgument,
    overrides: Overrides = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="local: Ray on this machine. torchrun: without Ray. kuberay: Ray on a Kubernetes cluster. sky: SkyPilot. ray-up: Ray on machines of its own.",
        ),
    ] = "local",
    run: Run = None,
    stack: Annotated[
        list[str] | None,
        typer.Option(
            "--stack",
            "--platform",
            metavar="OUTPUTS.json|STACK",
            help="A platform's outputs; runs are kept in its storage.",
        ),
    ] = None,
    storage: Storage = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="kuberay: a context of your kubeconfig, instead of --stack."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NS", help="With --context: where the run's pods go.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="The pods' image; by default the stack's.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool", metavar="NAME", help="The node pool that trains; by default the cheapest that fits."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="kuberay, ray-up: train on this long-lived Ray cluster, made if it is not there.",
        ),
    ] = None,
    managed: Annotated[
        bool,
        typer.Option(
            "--managed",
            help="sky: a managed job, which SkyPilot starts again elsewhere when its pods are gone.",
        ),
    ] = False,
    nodes: Annotated[
        int,
        typer.Option("--nodes", min=1, help="sky: pods of a recipe without GPUs, which share its workers."),
    ] = 1,
    spot: Annotated[
        bool,
        typer.Option(
            "--spot/--no-spot", help="sky: spot pools too, which come first where they are cheaper."
        ),
    ] = True,
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price", metavar="STACK/POOL=USD", help="sky: what a node of that pool costs by the hour."
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="sky, ray-up: give pods or machines this variable of yours, such as a key of the storage.",
        ),
    ] = None,
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="MINUTES",
            min=0.1,
            help="How long to wait for machines before giving up; nothing stays behind.",
        ),
    ] = 30.0,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Leave once the run is handed over; `trainfleet runs attach NAME` comes back."
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--print", help="Show what would be handed over, as YAML, and start nothing.")
    ] = False,
    from_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--from-secret",
            metavar="SECRET",
            help="kuberay, sky: a Secret of the namespace whose keys become the pods' variables.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE",
            help="ray-up: write the cluster file and what it names there, and start nothing.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec", metavar="STACK", help="ray-up: a stack's spec, where the stack was never applied."
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="ray-up: a machine that is there; the first becomes the head, which trains nothing.",
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(
            "--identity",
            metavar="NAME",
            help="ray-up: the machines' instance profile, service account or managed identity.",
        ),
    ] = None,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="ZONE", help="ray-up: the cloud's zone for the machines.")
    ] = None,
    machine_image: Annotated[
        str | None,
        typer.Option(
            "--machine-image",
            metavar="ID",
            help="ray-up: what the machines boot; by default the cloud's own with driver and Docker.",
        ),
    ] = None,
    ssh_user: Annotated[
        str | None,
        typer.Option(
            "--ssh-user", metavar="USER", help="ray-up: by default ubuntu, on your own hosts yourself."
        ),
    ] = None,
    ssh_key: Annotated[
        str | None,
        typer.Option(
            "--ssh-key",
            metavar="FILE",
            help="ray-up: a private key; without one Ray makes its own on a cloud.",
        ),
    ] = None,
    fresh: Fresh = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Start a recipe somewhere, or go on with it: the same recipe, the same command, the same report
    everywhere.

    [bold]Examples[/]

    trainfleet launch lm-small --on torchrun

    trainfleet launch lm-small --on local scaling.workers=1 strategy=fsdp

    trainfleet launch lm-small --on torchrun --storage gs://my-bucket/runs --run night-1

    trainfleet launch recipes/lm-small.yaml --stack outputs.json --run night-1

    trainfleet launch lm-small --on kuberay --stack outputs.json --pool l4 scaling.use_gpu=true

    trainfleet launch lm-small --on kuberay --context kind-kind --namespace training --image my/trainfleet:1
    --storage s3://my-bucket/runs --detach

    trainfleet launch lm-small --on kuberay --stack outputs.json --print

    trainfleet launch lm-1b --on sky --stack aws-prod.json --stack gcp-prod.json --managed --detach

    trainfleet launch lm-small --on ray-up --spec gcp-dev --image my/trainfleet:1 --storage
    gs://my-bucket/runs --write cluster.yaml

    trainfleet launch lm-small --on ray-up --host 10.0.0.5 --host 10.0.0.6 --storage s3://my-bucket/runs
    --secret AWS_SECRET_ACCESS_KEY
    """
    from trainfleet.training.cli.sky import prices_of
    from trainfleet.training.launch.request import Request

    request = Request(
        recipe,
        tuple(overrides or ()),
        on,
        run,
        storage,
        tuple(stack or ()),
        fresh,
        as_json,
        tuple(allow or ()),
        context=context,
        namespace=namespace,
        image=image,
        pool=pool,
        cluster=cluster,
        detach=detach,
        within_s=within * 60,
        options={
            "managed": managed,
            "nodes": nodes,
            "spot": spot,
            "prices": prices_of(price),
            "secrets": tuple(secret or ()),
            "from_secrets": tuple(from_secret or ()),
            "write": str(write) if write else None,
            "spec": spec,
            "hosts": tuple(host or ()),
            "identity": identity,
            "zone": zone,
            "machine_image": machine_image,
            "ssh_user": ssh_user,
            "ssh_key": ssh_key,
        },
    )
    if show or write is not None:
        import sys

        from trainfleet.training.launch.supervise import show as rendered

        sys.stdout.write(rendered(request))
    else:
        start_and_show(request)


@report.command(epilog=EXIT_CODES)
def report_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Runs: folders, such as runs/lm-small, or URLs.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it; by default RUN/report.html, of a URL NAME.html, of several runs comparison.html.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON besides.")] = False,
) -> None:
    """Write a run's report, or compare several: one HTML file with the curves, the figures and what happened;
    needs no network.

    Works while a run goes on, and after a kill.

    [bold]Examples[/]

    trainfleet report runs/lm-small

    trainfleet report runs/lm-small --output /tmp/lm-small.html --json

    trainfleet report runs/try-1 runs/try-2 runs/try-3 --output tries.html

    trainfleet report s3://my-bucket/runs/lm-small
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.report import differences, write_comparison, write_report
    from trainfleet.training.stores import is_remote

    if len(runs) == 1:
        place = runs[0].removeprefix("file://")
        target = output or (
            Path(f"{place.rstrip('/').rpartition('/')[2]}.html")
            if is_remote(place)
            else Path(place) / "report.html"
        )
        document = write_report(place, target).figures()
    else:
        target = output or Path("comparison.html")
        stories = write_comparison(runs, target)
        document = {
            "runs": [story.figures() for story in stories],
            "recipe_differences": differences(stories),
        }
    if as_json:
        print_json({"report": str(target), **document})
    else:
        out().print(str(target), soft_wrap=True)


def start_and_show(request: Request) -> None:
    """Start a run, or come back to one, and tell how it ended."""
    from trainfleet.console import out, print_json
    from trainfleet.training.launch.supervise import start

    outcome = start(request)
    if request.json:
        print_json(outcome.document)
        return
    console = out()
    for line in closing_lines(outcome):
        console.print(line, soft_wrap=True, markup=False)


def closing_lines(outcome: Outcome) -> list[str]:
    """What a person reads at the end: how well it learned, against the simple model, and where things lie."""
    from trainfleet.training.runtime.progress import duration

    document = outcome.document
    if document.get("status") == "detached":
        return [str(line) for line in document.get("how", [])]
    if outcome.already_finished:
        return [
            f"{outcome.run_dir} is finished ({document['step']} steps); nothing to do. Start anew with --fresh.",
            *_where(document),
        ]
    resumed = f", resumed from step {document['resumed_from']}" if document["resumed_from"] else ""
    return [
        f"finished {document['step']} steps in {duration(document['seconds'])}{resumed}",
        *_scores(document),
        *_where(document),
    ]


def _scores(document: dict[str, Any]) -> list[str]:
    """The validation beside each simple model whose figure it has, and the same figures of the test; else the
    losses.
    """
    from trainfleet.training.report.run_summary import WORDS

    metrics, lines, said = document["metrics"], [], []
    for key, simple in document["baseline"].items():
        figure = next(
            (name for name in sorted(WORDS, key=len, reverse=True) if key.endswith(f"_{name}")), None
        )
        value = metrics.get(f"validation/{figure}")
        if figure is not None and value is not None:
            model = key.removesuffix(f"_{figure}").replace("_", " ")
            side = "below" if value <= simple else "above"
            lines.append(
                f"validation {value:.4f} {WORDS[figure]}, {abs(simple - value):.4f} {side} a {model} model's {simple:.4f}"
            )
            said.append(figure)
    said = list(dict.fromkeys(said)) or ["loss"]
    lines += (
        [f"validation {metrics['validation/loss']:.4f} loss"]
        if said == ["loss"] and "validation/loss" in metrics
        else []
    )
    return lines + [
        f"test       {metrics[f'test/{figure}']:.4f} {WORDS[figure]}"
        for figure in said
        if f"test/{figure}" in metrics
    ]


def _where(document: dict[str, Any]) -> list[str]:
    return [f"{name:<10} {document[name]}" for name in ("checkpoint", "report") if document.get(name)]
