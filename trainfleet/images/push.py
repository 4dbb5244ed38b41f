"""Pushes built images to the platforms' repositories, and finds the digests by which they are launched."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.images.build import Image, is_built
from trainfleet.images.destinations import Destination
from trainfleet.images.login import Access, session
from trainfleet.images.processes import run_visibly
from trainfleet.images.registry import Repository, split_repository
from trainfleet.images.tools import Session, Tool

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pushed:
    """An image in a repository. `new`: this push created it."""

    destination: Destination
    image: Image
    digest: str
    new: bool

    @property
    def reference(self) -> str:
        """What to launch: the image by its digest, which no later push changes."""
        return f"{self.destination.repository}@{self.digest}"

    def document(self) -> dict[str, Any]:
        """One element of `push --json`."""
        return {
            "target": self.image.target,
            "tag": self.image.tag,
            "repository": self.destination.repository,
            "platforms": self.destination.names,
            "digest": self.digest,
            "image": self.reference,
            "new": self.new,
        }


@dataclass(frozen=True)
class _Target:
    """A repository with a login."""

    destination: Destination
    session: Session
    repository: Repository


def push_commands(
    tool: Tool, places: Sequence[tuple[Destination, Sequence[Image]]], access: Access
) -> list[str]:
    """The commands of `push` as lines of a shell. LOGIN_FOLDER is removed at the end: it has the
    login, and the CA certificate."""
    rows = []
    for place, images in places:
        host, _ = split_repository(place.repository)
        helper = access.helper(host)
        ca = Path("LOGIN_FOLDER", "certificates", "ca.crt") if access.ca else None
        here = Session(Path("LOGIN_FOLDER") if helper else None, ca)
        prefix = "".join(f"{name}={value} " for name, value in tool.environment(here).items())
        if helper:
            login = shlex.join(tool.login(host, helper.user, here))
            rows.append(f"{shlex.join(helper.command)} | {prefix}{login}")
        for image in images:
            reference = f"{place.repository}:{image.tag}"
            rows += [prefix + shlex.join(each) for each in tool.push(image.local, reference, here)]
    return rows


def push_images(
    tool: Tool,
    places: Sequence[tuple[Destination, Sequence[Image]]],
    access: Access,
    progress: Progress,
) -> list[Pushed]:
    """Log in everywhere, then push what the repositories lack.

    Args:
        tool: has built the images.
        places: the repositories, each with its images.
        access: how the registries are reached.
        progress: told what happens.

    Raises:
        TrainfleetError: a login or a push failed, or images are neither built nor in the repository.
    """
    with contextlib.ExitStack() as stack:
        rows = []
        for place, images in places:
            host, _ = split_repository(place.repository)
            here, credentials = stack.enter_context(session(tool, host, access))
            repository = Repository(place.repository, credentials, access.ca)
            rows += [(_Target(place, here, repository), image) for image in images]
        found = [(each, image, each.repository.digest(image.tag)) for each, image in rows]
        _check_built(tool, [image for _, image, digest in found if not digest])
        return [_push(tool, each, image, digest, progress) for each, image, digest in found]


def _check_built(tool: Tool, images: Sequence[Image]) -> None:
    missing = [image for image in dict.fromkeys(images) if not is_built(tool, image)]
    if missing:
        problems = [
            Problem(
                image.tag,
                f"{tool.program} has no such image",
                f"trainfleet image build --target {image.target} with the same options",
            )
            for image in missing
        ]
        raise TrainfleetError("not built", problems)


def _push(tool: Tool, target: _Target, image: Image, digest: str, progress: Progress) -> Pushed:
    name = f"{target.destination.repository}:{image.tag}"
    if digest:
        progress(f"{name}: already pushed")
        return Pushed(target.destination, image, digest, new=False)
    progress(f"{name}: pushing with {tool.program}")
    for command in tool.push(image.local, name, target.session):
        run_visibly(command, tool.environment(target.session))
    if not (digest := target.repository.digest(image.tag)):
        raise TrainfleetError("the push left no image", [Problem(name, "the registry has no such tag")])
    return Pushed(target.destination, image, digest, new=True)
