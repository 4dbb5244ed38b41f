"""Runs a short Pulumi program without an engine and returns the inputs that a provider's Check would receive.

It measures the checks on two sources: a table of known mistakes, and the example programs in the SDKs' own
documentation, which are correct and must pass.
"""

# ruff: noqa: ARG002 - the SDK's mocks define these signatures

from __future__ import annotations

import asyncio
import contextlib
import re
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.functions import in_types
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, from_struct, plain
from trainfleet.rehearsal.simulation.schema import Kind, Package, outputs_of

UNKNOWN_TEXT = "~unknown~"
_ATTEMPTS = 50


@dataclass(frozen=True)
class Sent:
    """One registration: type token, logical name, and the plain inputs that a provider receives."""

    token: str
    name: str
    inputs: dict[str, Any]
    checked: bool = True
    """Whether a provider sees it: not a component that the program's own language builds."""


def capture(build: Callable[[], None]) -> list[Sent]:
    """Return what `build` registers. Its exceptions propagate after the event loop is closed.

    The event loop, and Pulumi's project and stack in this process, are afterwards as they were.
    """
    from pulumi.runtime import mocks
    from pulumi.runtime.settings import SETTINGS, reset_options

    sent: list[Sent] = []
    with warnings.catch_warnings(), _functions_answered():
        warnings.simplefilter("ignore")
        before, project, stack = _event_loop(), SETTINGS.project, SETTINGS.stack
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            mocks.set_mocks(_mocks(), preview=True, monitor=_monitor(sent))
            SETTINGS.outputs.clear()  # those of other programs belong to event loops that do not run
            loop.run_until_complete(_run(build))
        finally:
            reset_options(project, stack)
            loop.close()
            asyncio.set_event_loop(before)
    return sent


def _event_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if it has one that can be used."""
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:
        return None
    return None if loop.is_closed() else loop


async def _run(build: Callable[[], None]) -> None:
    """Run the program and wait for every task that it started, even if it raises."""
    from pulumi.runtime.stack import wait_for_rpcs

    try:
        build()
    finally:
        await wait_for_rpcs()


class _Called:
    """The result class of the function being called."""

    answer: typing.ClassVar[type | None] = None


def _mocks() -> Any:
    """Return the SDK's mocks, with every output and every function result unknown."""
    from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks

    class Unknowns(Mocks):
        def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
            return "", {}

        def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
            return (_unknown_answer(_Called.answer, args.args) if _Called.answer is not None else {}), []

    return Unknowns()


def _monitor(sent: list[Sent]) -> Any:
    from pulumi.runtime.mocks import MockMonitor
    from pulumi.runtime.proto import resource_pb2

    class Monitor(MockMonitor):
        def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
            urn = self.make_urn(request.parent, request.type, request.name)
            if request.type != "pulumi:pulumi:Stack":
                inputs = _marked(plain(from_struct(request.object)))
                sent.append(Sent(request.type, request.name, inputs, request.custom or request.remote))
            return resource_pb2.RegisterResourceResponse(urn=urn, id="")

    return Monitor(_mocks())


def _marked(value: Any) -> Any:
    """Return inputs in which every string that was built from an unknown result is itself unknown."""
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return UNKNOWN if isinstance(value, str) and UNKNOWN_TEXT in value else value


@contextlib.contextmanager
def _functions_answered() -> Iterator[None]:
    """Record the result class of each function call, so that its unknown result has the right class."""
    import pulumi.runtime

    real, real_output = pulumi.runtime.invoke, pulumi.runtime.invoke_output

    def noting(function: Any, *args: Any, typ: type | None = None, **kwargs: Any) -> Any:
        _Called.answer = typ
        return function(*args, typ=typ, **kwargs)

    pulumi.runtime.invoke, pulumi.runtime.invoke_output = partial(noting, real), partial(noting, real_output)
    try:
        yield
    finally:
        pulumi.runtime.invoke, pulumi.runtime.invoke_output = real, real_output


def _unknown_answer(answer: type, args: dict[str, Any]) -> dict[str, Any]:
    args = in_types(answer, args)
    return {
        name: args[name] if name in args else _unknown(item.kind) for name, item in outputs_of(answer).items()
    } | {"id": UNKNOWN_TEXT}


def _unknown(kind: Kind, depth: int = 0) -> Any:
    if kind.name == "list":
        return [_unknown(kind.item or Kind("any"), depth + 1)] * 3 if depth < 6 else []
    if kind.name == "object" and kind.cls is not None:
        return (
            {name: _unknown(item.kind, depth + 1) for name, item in outputs_of(kind.cls).items()}
            if depth < 6
            else {}
        )
    return {"integer": 1, "number": 1, "boolean": True, "map": {}, "list": []}.get(kind.name, UNKNOWN_TEXT)


_EXAMPLE = re.compile(r"^([ \t]*)```python\n(.*?)^[ \t]*```", re.M | re.S)


def documented_examples(package: Package, token: str) -> list[str]:
    """Return the example programs in the documentation of a type's class."""
    fqn, name = package.classes[token]
    cls = getattr(import_module(fqn), name)
    file = Path(str(import_module(cls.__module__).__file__))
    found = dict.fromkeys(textwrap.dedent(match.group(2)) for match in _EXAMPLE.finditer(file.read_text()))
    return [code.replace('\\"', '"').replace("\\\\", "\\") for code in found]


def run_text(code: str) -> list[Sent]:
    """Return what a program, given as text, registers.

    A name that the excerpt does not define, or an SDK that is not installed, becomes an unknown value.
    """
    known: dict[str, Any] = {}
    for _ in range(_ATTEMPTS):
        compiled = compile(code, "<program>", "exec")
        try:
            return capture(lambda program=compiled: exec(program, {"__name__": "__main__", **known}))  # type: ignore[misc] # the default argument binds the compiled program
        except NameError as error:
            if error.name is None or error.name in known:
                raise
            known[error.name] = _Absent(UNKNOWN_TEXT)
        except ModuleNotFoundError as error:
            code, changed = re.subn(
                rf"^import {error.name} as (\w+)$",
                rf"\1 = __import__('{__name__}', fromlist=['ABSENT']).ABSENT",
                code,
                flags=re.M,
            )
            if not changed:
                raise
    raise RuntimeError("the program needs more from elsewhere than it has itself")


class _Absent(str):
    """Something that the program imports from elsewhere. Every attribute of it is an unknown string."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return str.__getattribute__(self, name) if name.startswith("__") or name in _TEXT else ABSENT

    def __getitem__(self, key: Any) -> Any:
        return ABSENT

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ABSENT


_TEXT = frozenset({"encode", "startswith", "replace", "split"})
ABSENT = _Absent(UNKNOWN_TEXT)
