"""`trainfleet image`: build the training image, push it to the platforms' registries, list what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.images.cli.options import (
    BuildArgs,
    CaFile,
    Checkout,
    OwnLogin,
    Print,
    Registries,
    Requirements,
    Targets,
    ToolOptions,
    With,
)
from trainfleet.training.cli.options import AliasedCommand, Json, Stacks

if TYPE_CHECKING:
    from trainfleet.images.listing import Listed
    from trainfleet.training.launch.platform_outputs import NamedPlatform

image = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=f"""Build the training image from a checkout, push it to the platforms' registries, and list them.

The tag of an image is a digest of what it is built from, so the same content is built and pushed once.
Launch an image by the digest that `push` prints.

[bold]Examples[/]

    trainfleet image build --stack aws-prod.json --stack gcp-prod.json

    trainfleet image push --stack aws-prod.json --stack gcp-prod.json

    trainfleet image list --stack aws-prod.json

{EXIT_CODES}""",
)


@image.command(cls=AliasedCommand, epilog=EXIT_CODES)
def build(  # noqa: PLR0917 - Typer passes options by name
    tool_options: ToolOptions = None,
    target: Targets = None,
    stack: Stacks = None,
    requirements: Requirements = None,
    build_arg: BuildArgs = None,
    checkout: Checkout = None,
    tool: With = "",
    show: Print = False,
    as_json: Json = False,
) -> None:
    """Build images of a checkout, into the store of buildah, podman or docker.

    [bold]Examples[/]

      trainfleet image build --target cpu

      trainfleet image build --stack aws-prod.json --requirements requirements.lock

      trainfleet image build --target cuda --with docker -- --secret id=netrc,src=$HOME/.netrc
    """
    from trainfleet.console import out, print_json
    from trainfleet.images.build import build_image, check_tool_options, content_of
    from trainfleet.images.destinations import targets_for
    from trainfleet.images.processes import interruptible
    from trainfleet.images.tools import find_tool

    options = tool_options or []
    check_tool_options(options)
    targets = targets_for(target or [], _platforms(stack))
    content = content_of(checkout, requirements, build_arg or [])
    program = find_tool(tool, called=not show)
    images = [content.image(name) for name in targets]
    if show:
        _print_commands([program.build(content.build(each, options)) for each in images], as_json)
        return
    rows: list[dict[str, Any]] = []
    with interruptible():
        for each in images:
            new = build_image(program, content, each, options, _progress)
            rows.append({"target": each.target, "tag": each.tag, "image": each.local, "new": new})
    if as_json:
        print_json({"tool": program.program, "images": rows})
        return
    for row in rows:
        out().print(row["image"], soft_wrap=True)


@image.command(cls=AliasedCommand, epilog=EXIT_CODES)
def push(  # noqa: PLR0917 - Typer passes options by name
    target: Targets = None,
    stack: Stacks = None,
    registry: Registries = None,
    requirements: Requirements = None,
    build_arg: BuildArgs = None,
    checkout: Checkout = None,
    ca: CaFile = None,
    own_login: OwnLogin = False,
    tool: With = "",
    show: Print = False,
    as_json: Json = False,
) -> None:
    """Push built images to every platform's registry, and print each by its digest, for `launch --image`.

    Give the options of the build that decide the content again: --target, --requirements, --build-arg.

    [bold]Examples[/]

      trainfleet image push --stack aws-prod.json --stack gcp-prod.json

      trainfleet image push --target cuda --registry registry.example/training --ca ca.crt

      trainfleet launch lm-small --on kuberay --stack aws-prod.json --image REPOSITORY@sha256:DIGEST
    """
    from trainfleet.console import out, print_json
    from trainfleet.images.build import content_of
    from trainfleet.images.destinations import destinations
    from trainfleet.images.login import Access
    from trainfleet.images.processes import interruptible
    from trainfleet.images.push import push_commands, push_images
    from trainfleet.images.tools import find_tool

    places = destinations(_platforms(stack), registry or [])
    targets = [place.targets(target or []) for place in places]
    content = content_of(checkout, requirements, build_arg or [])
    images = [[content.image(name) for name in names] for names in targets]
    rows = list(zip(places, images, strict=True))
    program, access = find_tool(tool, called=not show), Access(ca, own_login)
    if show:
        _print_commands(push_commands(program, rows, access), as_json)
        return
    with interruptible():
        pushed = push_images(program, rows, access, _progress)
    if as_json:
        print_json({"tool": program.program, "images": [each.document() for each in pushed]})
        return
    for each in pushed:
        out().print(each.reference, soft_wrap=True)


@image.command("list", cls=AliasedCommand, epilog=EXIT_CODES)
def list_(
    stack: Stacks = None,
    registry: Registries = None,
    ca: CaFile = None,
    own_login: OwnLogin = False,
    as_json: Json = False,
) -> None:
    """List the images in every platform's registry: target, digest, size, age, and which the platform uses.

    [bold]Examples[/]

      trainfleet image list --stack aws-prod.json --stack azure-prod.json

      trainfleet image list --registry registry.example/training --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.images.destinations import destinations
    from trainfleet.images.listing import list_images
    from trainfleet.images.login import Access
    from trainfleet.images.processes import interruptible

    places = destinations(_platforms(stack), registry or [])
    with interruptible():
        listed = list_images(places, Access(ca, own_login))
    if as_json:
        print_json({"images": [row for each in listed for row in each.as_json()]})
        return
    for each in listed:
        out().print(_table(each))


def _platforms(stacks: list[str] | None) -> list[NamedPlatform]:
    from trainfleet.training.launch.platform_outputs import load_platforms

    return load_platforms(stacks) if stacks else []


def _print_commands(commands: list[list[str]] | list[str], as_json: bool) -> None:
    import shlex

    from trainfleet.console import print_json

    lines = [each if isinstance(each, str) else shlex.join(each) for each in commands]
    if as_json:
        print_json({"commands": lines})
    else:
        typer.echo("\n".join(lines))


def _table(listed: Listed) -> Any:
    from rich.table import Table

    title = ", ".join([listed.destination.repository, *listed.destination.names])
    table = Table("tag", "target", "digest", "size", "age", "used", title=title, title_justify="left")
    for row in listed.as_json():
        size, used = f"{row['bytes'] / 1e9:.2f} GB", "yes" if row["used"] else ""
        short = row["digest"].removeprefix("sha256:")[:12]
        table.add_row(row["tag"], row["target"], short, size, listed.age(row["created"]), used)
    return table


def _progress(text: str) -> None:
    from trainfleet.console import err

    err().print(text, markup=False, soft_wrap=True)
