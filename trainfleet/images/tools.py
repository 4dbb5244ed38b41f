"""The programs that build and push images: buildah, podman and docker. Each is a class with the same methods,
which return command lines.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.images.processes import run_quietly
from trainfleet.suggestions import did_you_mean

PLATFORM = "linux/amd64"
"""Of every machine in the catalogue."""


@dataclass(frozen=True)
class Build:
    """What a tool is to build.

    Attributes:
        folder: the folder that is sent to the builder.
        dockerfile: the Dockerfile.
        ignore_file: the patterns of files that are not sent.
        target: the stage to build.
        image: the name of the result.
        contexts: further folders to copy from, by name.
        build_args: values of the Dockerfile's arguments.
        options: options of the tool itself.
    """

    folder: Path
    dockerfile: Path
    ignore_file: Path
    target: str
    image: str
    contexts: Mapping[str, Path]
    build_args: Mapping[str, str]
    options: Sequence[str] = ()

    def common(self) -> list[str]:
        """The options that all tools have."""
        return [
            *("--platform", PLATFORM, "--file", str(self.dockerfile), "--target", self.target),
            *("--tag", self.image),
            *(f"--build-arg={name}={value}" for name, value in self.build_args.items()),
            *(f"--build-context={name}={folder}" for name, folder in self.contexts.items()),
        ]


@dataclass(frozen=True)
class Session:
    """Where a tool keeps a login, and which certificates it trusts.

    Attributes:
        folder: holds the login and the CA certificate; None = the tool's own login is used.
        ca: a file with the registry's CA certificate; None = those of the system.
        variables: further environment variables of the tool.
    """

    folder: Path | None = None
    ca: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class Tool(ABC):
    """A program that builds and pushes images."""

    program: ClassVar[str]
    install: ClassVar[str]
    """How to get it."""

    @abstractmethod
    def build(self, build: Build) -> list[str]:
        """Build an image and keep it in the tool's own store."""

    @abstractmethod
    def exists(self, image: str) -> list[str]:
        """Exit with 0 if the image is in the tool's own store."""

    @abstractmethod
    def login(self, host: str, user: str, session: Session) -> list[str]:
        """Log in to a registry, with the password on stdin, for this session only."""

    @abstractmethod
    def push(self, image: str, reference: str, session: Session) -> list[list[str]]:
        """Push an image of the tool's own store as `HOST/REPOSITORY:TAG`."""

    def environment(self, session: Session) -> dict[str, str]:
        """Environment variables of every command of a session."""
        return dict(session.variables)

    def connection(self) -> dict[str, str]:
        """Environment variables for what a login of its own would hide from the tool."""
        return {}


class Buildah(Tool):
    """https://github.com/containers/buildah; its options are podman's."""

    program = "buildah"
    install = "apt install buildah, or dnf install buildah"

    def build(self, build: Build) -> list[str]:
        options = ["--layers", "--ignorefile", str(build.ignore_file), *build.common(), *build.options]
        return [self.program, "build", *options, str(build.folder)]

    def exists(self, image: str) -> list[str]:
        return [self.program, "inspect", "--type", "image", "--format", "{{.FromImageID}}", image]

    def login(self, host: str, user: str, session: Session) -> list[str]:
        return [self.program, "login", *self._session(session), "--username", user, "--password-stdin", host]

    def push(self, image: str, reference: str, session: Session) -> list[list[str]]:
        return [[self.program, "push", *self._session(session), image, f"docker://{reference}"]]

    def _session(self, session: Session) -> list[str]:
        login = ["--authfile", str(session.folder / "auth.json")] if session.folder else []
        # The tool reads every .crt file of the folder.
        return [*login, *(["--cert-dir", str(session.ca.parent)] if session.ca else [])]


class Podman(Buildah):
    """https://podman.io"""

    program = "podman"
    install = "apt install podman, dnf install podman, or https://podman.io/docs/installation"

    def exists(self, image: str) -> list[str]:
        return [self.program, "image", "exists", image]


class Docker(Tool):
    """https://docs.docker.com, with BuildKit. It also finds the ignore file, next to the Dockerfile."""

    program = "docker"
    install = "https://docs.docker.com/engine/install"

    def build(self, build: Build) -> list[str]:
        return [self.program, "buildx", "build", "--load", *build.common(), *build.options, str(build.folder)]

    def exists(self, image: str) -> list[str]:
        return [self.program, "image", "inspect", "--format", "{{.Id}}", image]

    def login(self, host: str, user: str, session: Session) -> list[str]:
        del session
        return [self.program, "login", "--username", user, "--password-stdin", host]

    def push(self, image: str, reference: str, session: Session) -> list[list[str]]:
        if session.ca:
            host = reference.partition("/")[0]
            fix = f"copy the file to /etc/docker/certs.d/{host}/ca.crt on the daemon's machine and omit --ca"
            problem = Problem("--ca", "docker's daemon reads certificates from its own folder only", fix)
            raise InputError("cannot push with docker", [problem])
        return [
            [self.program, "tag", image, reference],
            [self.program, "push", reference],
            [self.program, "image", "rm", reference],
        ]

    def environment(self, session: Session) -> dict[str, str]:
        own = {"DOCKER_CONFIG": str(session.folder)} if session.folder else {}
        return {**session.variables, **own}

    def connection(self) -> dict[str, str]:
        # The folder of a login is also that of the contexts, which name the daemon.
        command = [self.program, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        code, out, _ = (1, "", "") if "DOCKER_HOST" in os.environ else run_quietly(command)
        return {"DOCKER_HOST": out.strip()} if code == 0 and out.strip() else {}


TOOLS: Mapping[str, Tool] = {tool.program: tool for tool in (Buildah(), Podman(), Docker())}
"""In order of preference: the first two need no daemon."""


def find_tool(name: str, *, called: bool = True) -> Tool:
    """The tool of this name, or the first that is installed if the name is empty. If it is not going to be
    called, it need not be installed.

    Raises:
        InputError: no tool has this name.
        MissingToolError: it is not installed, or none is.
    """
    if name and name not in TOOLS:
        raise InputError(
            "unknown tool", [Problem(f"--with {name}", "is not valid", did_you_mean(name, list(TOOLS)))]
        )
    for tool in [TOOLS[name]] if name else TOOLS.values():
        if shutil.which(tool.program):
            return tool
    if not called:
        return TOOLS[name] if name else next(iter(TOOLS.values()))
    missing = [TOOLS[name]] if name else list(TOOLS.values())
    raise MissingToolError(
        f"{name} is not installed" if name else "building and pushing images needs buildah, podman or docker",
        [Problem(tool.program, "is not on PATH", tool.install) for tool in missing],
    )
