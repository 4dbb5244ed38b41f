"""`trainfleet predict`: batch inference over files of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.launch_job import (
    LaunchArguments,
    detached_lines,
    launch_job,
    require_no_launch_options,
)
from trainfleet.training.cli.launch_options import OF_JOBS, Code, LaunchedOn, Stacks, with_launcher_options
from trainfleet.training.cli.options import (
    InferencePrecision,
    JsonAtEnd,
    ModelSource,
    Storage,
    Which,
    key_values,
    one_of,
)

if TYPE_CHECKING:
    from trainfleet.training.inference.predict import Request

predict = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

HELP = """Run batch inference on every row of the input, once and in order. Rerun to resume.

A line of text is a row of its own, `{"text": ...}`. OUT appears when all of it is complete; until then
OUT.partial holds what is finished. KEY=VALUE is a setting of the workload's predictions, such as top=3.

With --on, the workers run where [dim]trainfleet launch[/] would train, as a run of their own, with its
options. OUT may be a URL then, where [dim]_manifest.json[/] comes last.

[bold]Examples[/]

trainfleet predict runs/lm-small prompts.txt --output out/continued

trainfleet predict runs/lm-small prompts.txt max_tokens=200 temperature=0 --precision bf16 --output out/greedy

trainfleet predict runs/vision-small pictures/ top=3 --output out/labels --workers 2 --on-bad quarantine

trainfleet predict models/lm-small rows.parquet --output out/rows --format parquet --json

trainfleet predict s3://my-bucket/runs/lm-1b s3://my-bucket/rows --output s3://my-bucket/out --on kuberay
--stack outputs.json --workers 8
"""

Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Parquet, JSON lines, text, audio or images: a file, a folder or a URL.",
        show_default=False,
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="OUT", help="A new folder.", show_default=False)
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the predictions.", show_default=False),
]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows per forward pass.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        max=512,
        help="Processes under Ray; 0: this process, without Ray. By default by the input's size.",
    ),
]
OnBad = Annotated[
    str,
    typer.Option(
        "--on-bad",
        metavar="ACTION",
        help="For unreadable rows: refuse, or quarantine (write the reason as their result).",
    ),
]
Format = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="Of the output files: jsonl or parquet.")
]
Glob = Annotated[str, typer.Option("--glob", metavar="PATTERN", help="Which files of a folder to read.")]
BlockKib = Annotated[
    int,
    typer.Option(
        "--block-kib", metavar="N", min=1, help="Approximate input per block; finished blocks are kept."
    ),
]
MoreSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The same as KEY=VALUE.")
]
Shard = Annotated[
    bool,
    typer.Option(
        "--shard",
        help="Divide the model between the workers, for one that does not fit one device. All of them "
        "compute the same rows.",
    ),
]
OWN = (
    *("source", "rows", "output", "settings", "which", "batch", "workers", "on_bad", "form", "glob"),
    *("block_kib", "precision", "shard", "on", "stack", "storage", "code", "more_settings", "as_json"),
)
"""The parameters of the command itself; the others are options of launchers."""


@predict.command(help=HELP, epilog=EXIT_CODES)
@with_launcher_options(OF_JOBS)
def predict_command(  # noqa: PLR0917 - Typer passes options by name
    ctx: typer.Context,
    source: ModelSource,
    rows: Input,
    output: Output,
    settings: Settings = None,
    which: Which = "best",
    batch: Batch = 16,
    workers: Workers = None,
    on_bad: OnBad = "refuse",
    form: Format = "jsonl",
    glob: Glob = "**/*",
    block_kib: BlockKib = 256,
    precision: InferencePrecision = None,
    shard: Shard = False,
    on: LaunchedOn = None,
    stack: Stacks = None,
    storage: Storage = None,
    code: Code = None,
    more_settings: MoreSettings = None,
    as_json: JsonAtEnd = False,
) -> None:
    from trainfleet.console import print_json
    from trainfleet.training.inference.predict import Request
    from trainfleet.training.inference.predict import predict as run
    from trainfleet.training.runtime.counted_progress import CountedProgress

    request = Request(
        source=source,
        input=rows,
        output=output,
        which=which,
        batch=batch,
        workers=workers,
        on_bad=cast("Literal['refuse', 'quarantine']", one_of("--on-bad", on_bad, ("refuse", "quarantine"))),
        form=cast("Literal['jsonl', 'parquet']", one_of("--format", form, ("jsonl", "parquet"))),
        settings=key_values("--set", [*(settings or ()), *(more_settings or ())]),
        block_kib=block_kib,
        glob=glob,
        precision=precision,
        shard=shard,
    )
    if on is not None:
        where = LaunchArguments(on, workers or 1, tuple(stack or ()), storage, code, json=as_json)
        _launch(ctx, where, request)
        return
    require_no_launch_options(ctx, [each for each in OWN if each not in ("stack", "storage", "code")])
    with CountedProgress("predicting, blocks", quiet=as_json) as progress:
        manifest = run(request, progress)
    if as_json:
        print_json(manifest)
    else:
        _show(manifest)


def _launch(ctx: typer.Context, where: LaunchArguments, request: Request) -> None:
    from dataclasses import asdict
    from pathlib import Path

    from trainfleet.console import out, print_json

    job = asdict(request) | {"workers": None}
    for name in ("input", "output"):  # the ranks have another current folder
        if "://" not in job[name] and not job[name].startswith("hf:"):
            job[name] = str(Path(job[name]).absolute())
    urls = {"MODEL": request.source, "INPUT": request.input, "--output": request.output}
    outcome, result = launch_job(ctx, where, "predict", job, own=OWN, urls=urls)
    if (lines := detached_lines(outcome)) is not None:
        if where.json:
            print_json(outcome.document)
        for line in lines if not where.json else ():
            out().print(line, soft_wrap=True, markup=False)
    elif where.json:
        print_json(result["predictions"])
    else:
        _show(result["predictions"])


def _show(manifest: Mapping[str, Any]) -> None:
    from trainfleet.console import out

    if manifest.get("already"):
        out().print("already finished; nothing to do")
    bad = manifest["bad"]["count"]
    unreadable = f", {bad:,} of them unreadable" if bad else ""
    files = len(manifest["files"])
    out().print(f"{manifest['rows']:,} rows{unreadable}, in {files} {'file' if files == 1 else 'files'}")
    out().print(manifest["output"], soft_wrap=True, markup=False)
