"""`trainfleet predict` and `trainfleet serve`: a trained model at work, on files of rows and behind an address.

Answers `--help` in half a second: torch and Ray are imported by the processes that compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import typer

from trainfleet.console import EXIT_CODES

predict = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

Source = Annotated[
    str,
    typer.Argument(metavar="RUN|CHECKPOINT|PUBLISHED", help="A run's folder or URL, one checkpoint's, or a published folder.", show_default=False),
]
Which = Annotated[str, typer.Option("--which", metavar="WHICH", help="Of a run's checkpoints: best, newest or step-N.")]
Json = Annotated[bool, typer.Option("--json", help="No progress; one JSON document on stdout at the end.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the workload's predictions, such as top=3.")]


@predict.command(epilog=EXIT_CODES)
def predict_command(  # noqa: PLR0917 - Typer passes options by name
    source: Source,
    rows: Annotated[
        str, typer.Argument(metavar="INPUT", help="Parquet, JSON lines, text, audio or images: a file, a folder or a URL.", show_default=False)
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="A folder that is not there yet.", show_default=False)],
    which: Which = "best",
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows that go through the model at once.")] = 16,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=0, max=512, help="Processes under Ray; 0: this one, without Ray. By default as the input is large."
        ),
    ] = None,
    on_bad: Annotated[
        str, typer.Option("--on-bad", metavar="HOW", help="Rows that cannot be read: refuse, or quarantine (answered with the reason).")
    ] = "refuse",
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="Of the output's files: jsonl or parquet.")] = "jsonl",
    glob: Annotated[str, typer.Option("--glob", metavar="PATTERN", help="Which files of a folder.")] = "**/*",
    block_kib: Annotated[int, typer.Option("--block-kib", metavar="N", min=1, help="About so much input per block; a finished block is kept.")] = 256,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Answer every row of the input, once and in order, into OUT; typed again after an interruption it goes on.

    A line of text is a row of its own, `{"text": ...}`. OUT appears when all of it is there; until then OUT.partial holds what is finished.

    [bold]Examples[/]

    trainfleet predict runs/lm-small prompts.txt --output out/continued

    trainfleet predict runs/vision-small pictures/ --output out/labels --workers 2 --on-bad quarantine

    trainfleet predict models/lm-small rows.parquet --output out/rows --format parquet --json
    """
    from trainfleet.console import out, print_json
    from training.headway import Headway
    from training.predict import Request
    from training.predict import predict as answer

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
    out().print(f"{manifest['rows']:,} rows{f', {bad:,} of them could not be read' if bad else ''}, in {len(manifest['files'])} files")
    out().print(manifest["output"], soft_wrap=True, markup=False)


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    from trainfleet.errors import InputError, Problem
    from trainfleet.nearest import did_you_mean

    if value not in known:
        raise InputError("no such choice", [Problem(option, f"`{value}` is not known", did_you_mean(value, known))])
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
