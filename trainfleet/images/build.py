"""Builds images of a checkout, each under a tag that its content decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.images import dockerfile
from trainfleet.images.dockerfile import Source
from trainfleet.images.processes import run_quietly, run_visibly
from trainfleet.images.requirements import check_requirements
from trainfleet.images.tools import Build, Session, Tool
from trainfleet.suggestions import did_you_mean

Progress = Callable[[str], None]
LOCAL = "localhost/trainfleet"
"""The repository of built images in the tool's own store."""


@dataclass(frozen=True)
class Image:
    """One target with the content that it has now."""

    target: str
    tag: str

    @property
    def local(self) -> str:
        """Its name in the tool's own store."""
        return f"{LOCAL}:{self.tag}"


@dataclass(frozen=True)
class Content:
    """What images are built from.

    Attributes:
        source: the checkout.
        requirements: locked packages to add, or None.
        build_args: values of the Dockerfile's arguments.
    """

    source: Source
    requirements: Path | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)

    def image(self, target: str) -> Image:
        """The image of a target."""
        digest = self.source.content_digest(target, self.requirements, self.build_args)
        return Image(target, f"{target}-{digest}")

    def build(self, image: Image, options: Sequence[str]) -> Build:
        """How to build it."""
        arguments, contexts, stage = dict(self.build_args), {}, image.target
        if self.requirements:
            stage, file = dockerfile.REQUIREMENTS_STAGE, self.requirements.resolve()
            contexts[dockerfile.CONTEXT] = file.parent
            arguments[dockerfile.BASE_TARGET] = image.target
            arguments[dockerfile.REQUIREMENTS] = file.name
        source = self.source
        return Build(
            folder=source.folder,
            dockerfile=source.dockerfile,
            ignore_file=source.ignore_file,
            target=stage,
            image=image.local,
            contexts=contexts,
            build_args=arguments,
            options=options,
        )


def content_of(checkout: Path | None, requirements: Path | None, build_args: Sequence[str]) -> Content:
    """The content that the options of a command describe.

    Raises:
        InputError: no checkout, a build argument that the Dockerfile does not have, or packages that are not
            locked.
    """
    source = dockerfile.find_source(checkout)
    declared = dockerfile.declared_arguments(source.dockerfile.read_text(encoding="utf-8"))
    values, problems = {}, []
    for each in build_args:
        name, equals, value = each.partition("=")
        if not equals:
            problems.append(Problem(f"--build-arg {each}", "is not NAME=VALUE"))
        elif name not in declared:
            fix = f"{did_you_mean(name, declared)}; a proxy is an option of the tool, after --"
            problems.append(Problem(f"--build-arg {name}", "images/Dockerfile does not declare it", fix))
        values[name] = value
    if problems:
        raise InputError("cannot use a build argument", problems)
    if requirements:
        check_requirements(requirements, source.locked_packages)
    return Content(source, requirements, values)


def check_tool_options(options: Sequence[str]) -> None:
    """Reject options of the tool that change the content, and arguments that it does not have.

    Raises:
        InputError: there is one.
    """
    own = {"--build-arg": "--build-arg NAME=VALUE", "--target": "--target NAME"}
    untagged = ("--build-arg-file", "--env", "--unsetenv")
    taken = {"-t", "--tag", "-f", "--file", "--platform", "--output", "-o", "--build-context", "--from"}
    problems = []
    if options and not options[0].startswith("-"):
        problems.append(Problem(options[0], "is not an option of the tool", f"--target {options[0]}"))
    for each in options:
        flag = re.split("=", each)[0]
        if flag in own:
            problems.append(Problem(flag, "decides the tag", f"write {own[flag]} before --"))
        elif flag in untagged:
            problems.append(Problem(flag, "changes the image, but not its tag"))
        elif flag in taken:
            problems.append(Problem(flag, "is set by this command"))
    if problems:
        raise InputError("cannot pass these options to the tool", problems)


def is_built(tool: Tool, image: Image) -> bool:
    """Whether the image is in the tool's own store."""
    code, _, _ = run_quietly(tool.exists(image.local), tool.environment(Session()))
    return code == 0


def build_image(
    tool: Tool, content: Content, image: Image, options: Sequence[str], progress: Progress
) -> bool:
    """Build an image unless it exists; returns whether it was built. The tool's messages go to stderr.

    Raises:
        TrainfleetError: the build failed.
    """
    if is_built(tool, image):
        progress(f"{image.tag}: already built")
        return False
    progress(f"{image.tag}: building with {tool.program}")
    run_visibly(tool.build(content.build(image, options)), tool.environment(Session()))
    return True
