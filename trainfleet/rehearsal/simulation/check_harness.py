"""Runs a few lines of Pulumi without an engine and returns the inputs that a provider's Check would be sent.

Used to measure the checks: on the table of mistakes, and on the example programs in the SDKs' own
documentation, which are correct and so have to pass.
"""

# ruff: noqa: ARG002 - the SDK's mocks and stand-ins give the methods their arguments

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

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, from_struct, plain
from trainfleet.rehearsal.simulation.schema import Kind, Package, outputs_of

UNKNOWN_TEXT = "~unknown~"
_ATTEMPTS = 50


@dataclass(frozen=True)
class Sent:
    """One registration: type token, logical name, and plain inputs as they reach a provider."""

    token: str
    name: str
    inputs: dict[str, Any]


def capture(build: Callable[[], None]) -> list[Sent]:
    """Return what `build` registers; whatever it raises is raised, after the loop of tasks is put away."""
    from pulumi.runtime import mocks
    from pulumi.runtime.settings import reset_options

    sent: list[Sent] = []
    with warnings.catch_warnings(), _functions_answered():
        warnings.simplefilter("ignore")
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            mocks.set_mocks(_mocks(), preview=True, monitor=_monitor(sent))
            loop.run_until_complete(_run(build))
        finally:
            reset_options()
            loop.close()
    return sent


async def _run(build: Callable[[], None]) -> None:
    """Run the program and wait until nothing that it started is under way, also when it raises."""
    from pulumi.runtime.stack import wait_for_rpcs

    try:
        build()
    finally:
        await wait_for_rpcs()


class _Called:
    """The class of the answer to the function that is being called."""

    answer: typing.ClassVar[type | None] = None


def _mocks() -> Any:
    """Return answers for the SDK's mocks: every output is unknown, every function's answer too."""
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
                sent.append(Sent(request.type, request.name, _marked(plain(from_struct(request.object)))))
            return resource_pb2.RegisterResourceResponse(urn=urn, id="")

    return Monitor(_mocks())


def _marked(value: Any) -> Any:
    """Return inputs in which text that was made from an unknown answer is unknown itself."""
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return UNKNOWN if isinstance(value, str) and UNKNOWN_TEXT in value else value


@contextlib.contextmanager
def _functions_answered() -> Iterator[None]:
    """Note the result class of each function that is called, from which its unknown answer is made."""
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
    """Return what a program given as text registers.

    What an excerpt takes from elsewhere (a name, an SDK that is not installed) represents something unknown.
    """
    known: dict[str, Any] = {}
    for _ in range(_ATTEMPTS):
        compiled = compile(code, "<program>", "exec")
        try:
            return capture(lambda program=compiled: exec(program, {"__name__": "__main__", **known}))  # type: ignore[misc] # the default is the program
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
    """Something that a program took from elsewhere: whatever is asked of it is unknown text."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return str.__getattribute__(self, name) if name.startswith("__") or name in _TEXT else ABSENT

    def __getitem__(self, key: Any) -> Any:
        return ABSENT

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ABSENT


_TEXT = frozenset({"encode", "startswith", "replace", "split"})
ABSENT = _Absent(UNKNOWN_TEXT)
