"""The Python language host: the part of Pulumi that starts a program, which no Python package ships.

A rehearsal attaches it to the engine (PULUMI_DEBUG_LANGUAGES). It is also the executable
`pulumi-language-python` next to an engine built from the pins, so that plain `pulumi preview` works. An
official Pulumi has its own host.
"""

# ruff: noqa: N802, ARG002 - the protocol defines the names and arguments of the methods

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import language_pb2 as pb
from pulumi.runtime.proto import language_pb2_grpc as rpc
from pulumi.runtime.proto import plugin_pb2

from trainfleet.rehearsal.engine import process_pool
from trainfleet.rehearsal.engine.process_pool import PROGRAM, PooledProcess
from trainfleet.rehearsal.engine.program import SHOWN

REFERENCES = "stack-references.txt"
"""The file of a rehearsal in which programs write the stacks that they refer to."""


@dataclass
class Programs:
    """How to run programs, and the ones that are running. A rehearsal edits `changes` between steps."""

    python: str = ""
    """Interpreter; empty: the project's `virtualenv` option, else this interpreter."""
    environment: dict[str, str] | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)
    secret_keys: list[str] = field(default_factory=list)
    failure_file: Path | None = None
    waits: Path | None = None
    """Where programs write how long they wait, instead of waiting; None: they wait."""
    references: Path | None = None
    """Where programs write the stacks that they refer to, one a line; None: nothing is simulated."""
    output: Path | None = None
    network: bool = False
    """Whether the programs of a rehearsal may connect to anything but the engine."""
    root: Path | None = None
    """The project's real folder; the engine sees a copy."""
    entry: Path | None = None
    """What is run instead of the program that the engine names, which decides where relative assets are."""
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    pooled: PooledProcess | None = None

    def run(self, python: str, described: dict[str, Any]) -> int:
        """Run a program and return its exit code. The programs of a rehearsal share one pooled process."""
        if self.environment is not None:
            if self.pooled is None or not self.pooled.usable:
                self.end()
                self.pooled = process_pool.take(python, self.environment)
            output = self.output or Path(os.devnull)
            kept = {
                "environment": self.environment,
                "output": str(output),
                "isolated": not self.network,
                "seen": str(output.with_suffix(".modules")) if self.output else "",
            }
            return self.pooled.run(described | kept)
        environment = {**os.environ, "TRAINFLEET_RUN": json.dumps(described)}
        child = subprocess.Popen(
            [python, "-u", str(PROGRAM)], cwd=described["folder"], env=environment, stdin=subprocess.DEVNULL
        )
        self.running.add(child)
        try:
            return child.wait()
        finally:
            self.running.discard(child)

    def kill(self) -> None:
        """Terminate all running programs and the pooled process with its forks."""
        if self.pooled is not None:
            self.pooled.kill()
            self.pooled = None
        for child in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            child.wait()
            self.running.discard(child)

    def end(self) -> None:
        """Terminate what is still running; return an idle pooled process to the pool."""
        if self.pooled is not None:
            process_pool.give_back(self.pooled)
            self.pooled = None
        self.kill()


class LanguageHost(rpc.LanguageRuntimeServicer):
    """Implements the engine's language runtime protocol."""

    def __init__(self, programs: Programs, engine: str = "") -> None:
        self.programs, self.engine = programs, engine

    def Handshake(self, request: Any, context: Any) -> Any:
        self.engine = request.engine_address
        return pb.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        from trainfleet import __version__

        return plugin_pb2.PluginInfo(version=__version__)

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:
        return pb.GetRequiredPackagesResponse()

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:
        return pb.GetRequiredPluginsResponse()

    def GetProgramDependencies(self, request: Any, context: Any) -> Any:
        return pb.GetProgramDependenciesResponse()

    def RuntimeOptionsPrompts(self, request: Any, context: Any) -> Any:
        return pb.RuntimeOptionsResponse()

    def About(self, request: Any, context: Any) -> Any:
        return pb.AboutResponse(executable=sys.executable, version=sys.version.split()[0])

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:
        yield pb.InstallDependenciesResponse(
            stdout=b"nothing to install: the environment is the project's own\n"
        )

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:
        """Run a policy pack, as newer engines request it (3.274 does, 3.200 starts the analyzer itself)."""
        if request.kind != "analyzer":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"cannot run a plugin of kind `{request.kind}`")
        info = request.info
        folder = info.program_directory or request.pwd
        python = self.programs.python or _virtualenv(
            Path(info.root_directory), Path(folder), json_format.MessageToDict(info.options)
        )
        command = [python, "-u", "-m", "trainfleet.rehearsal.engine.analyzer", *request.args, "."]
        environment = dict(entry.partition("=")[::2] for entry in request.env) or None
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        context.add_callback(child.terminate)  # the engine ends a plugin by ending the call
        try:
            yield from _outputs(child)
            yield pb.RunPluginResponse(exitcode=child.wait())
        finally:
            child.terminate()
            child.wait()

    def Cancel(self, request: Any, context: Any) -> Any:
        self.programs.kill()
        return empty_pb2.Empty()

    def Run(self, request: Any, context: Any) -> Any:
        """Run the program and return how it ended."""
        info = request.info
        program = os.path.join(info.program_directory or request.pwd, info.entry_point or ".")  # noqa: PTH118 - the entry may be "."
        described: dict[str, Any] = {
            "program": str(self.programs.entry or program),
            "config": dict(request.config),
            "secret_keys": [*request.configSecretKeys, *self.programs.secret_keys],
            "changes": self.programs.changes,
            "failure_file": str(self.programs.failure_file or ""),
            "waits": str(self.programs.waits or ""),
            "references": str(self.programs.references or ""),
            "settings": {
                "monitor": request.monitor_address,
                "engine": self.engine,
                "project": request.project,
                "stack": request.stack,
                "parallel": request.parallel,
                "dry_run": request.dryRun,
                "organization": request.organization,
                "root_directory": str(self.programs.root or info.root_directory),
            },
        }
        python = self.programs.python or _virtualenv(
            Path(info.root_directory), Path(info.program_directory), json_format.MessageToDict(info.options)
        )
        described |= {"folder": request.pwd, "quiet": self.programs.environment is not None}
        code = self.programs.run(python, described)
        output = self.programs.pooled.last_output() if code < 0 and self.programs.pooled is not None else ""
        why = f"{python} did not run it: {output}" if output else f"the program ended with exit code {code}"
        return pb.RunResponse(bail=code == SHOWN, error="" if code in (0, SHOWN) else why)


def _outputs(child: subprocess.Popen[bytes]) -> Iterator[Any]:
    """Yield what a plugin writes, as it writes it, until it ends."""
    lines: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()

    def read(name: str, stream: Any) -> None:
        with stream:
            for line in stream:
                lines.put((name, line))
        lines.put(None)

    streams = (("stdout", child.stdout), ("stderr", child.stderr))
    readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
    for reader in readers:
        reader.start()
    open_streams = len(readers)
    while open_streams:
        if (found := lines.get()) is None:
            open_streams -= 1
        else:
            name, text = found
            yield pb.RunPluginResponse(stdout=text) if name == "stdout" else pb.RunPluginResponse(stderr=text)


def _virtualenv(root: Path, program: Path, options: dict[str, Any]) -> str:
    """Return the interpreter of the `virtualenv` option, relative to Pulumi.yaml or to the program."""
    if name := options.get("virtualenv"):
        for base in (root, program):
            python = base / str(name) / "bin" / "python"
            if python.exists():
                return str(python)
    return sys.executable


def _server(host: LanguageHost) -> tuple[Any, int]:
    server = grpc.server(
        futures.ThreadPoolExecutor(8, thread_name_prefix="language"),
        options=[("grpc.max_receive_message_length", 400 << 20)],
    )
    rpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


@contextlib.contextmanager
def serve(programs: Programs) -> Iterator[str]:
    """Serve the host inside this process; yield the value for PULUMI_DEBUG_LANGUAGES."""
    server, port = _server(LanguageHost(programs))
    try:
        yield f"python:{port}"
    finally:
        programs.end()
        server.stop(None)


def main() -> None:
    """Entry point of the executable: print the port, then serve until the engine stops it."""
    programs = Programs()
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    engine = next((argument for argument in reversed(sys.argv[1:]) if not argument.startswith("-")), "")
    server, port = _server(LanguageHost(programs, engine))
    print(port, flush=True)  # noqa: T201 - part of the protocol: the engine reads the port from stdout
    while not done.wait(1):  # without a limit, a signal that arrives just before the wait would be lost
        pass
    programs.kill()
    server.stop(None)
    os._exit(0)


if __name__ == "__main__":
    main()
