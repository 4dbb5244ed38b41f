"""What functions of the providers answer: a plan of new resources has the dependencies that its apply has."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import mocks

from trainfleet.infra.component import answer_after

PLAIN = ("spec.", "self.spec.", "resource_id", "group_of(resource_id")
"""How arguments begin that are known before anything exists."""


class Recorder(mocks.Mocks):
    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"{args.name}-id", args.inputs

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(args.token)


def test_an_unknown_answer_depends_on_what_it_needs() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    mocks.set_mocks(Recorder(), project="answers", stack="test", preview=True)
    found: list[str | None] = []

    @pulumi.runtime.test
    def program() -> pulumi.Output[None]:
        async def read() -> None:
            future: asyncio.Future[Any] = asyncio.Future()
            future.set_result(None)
            known: asyncio.Future[bool] = asyncio.Future()
            known.set_result(False)
            unknown = pulumi.Output[str](set(), future, known)  # as `invoke_output` makes it
            needed = pulumi.ComponentResource("test:Needed", "needed")
            answer = answer_after(unknown, needed)
            assert not await answer.is_known()
            for each in await answer.resources():
                found.append(await each.urn.future())  # noqa: PERF401

        return pulumi.Output.from_input(read())

    program()
    assert found == ["urn:pulumi:test::answers::pulumi:pulumi:Stack$test:Needed::needed"]


def asked(file: Path) -> list[tuple[str, bool]]:
    """Each call of a function that needs resources, and whether its answer goes through `answer_after`."""
    tree, found = ast.parse(file.read_text()), []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        if not (isinstance(function, ast.Attribute) and function.attr.startswith(("get_", "list_"))):
            continue
        if not function.attr.endswith("_output"):
            continue
        values = {each.arg: ast.unparse(each.value) for each in call.keywords}
        waits = "depends_on" in values.pop("opts", "")
        if waits or any("." in text and not text.startswith(PLAIN) for text in values.values()):
            (name,) = [
                node.targets[0].id
                for node in ast.walk(tree)
                if isinstance(node, ast.Assign)
                and node.value is call
                and isinstance(node.targets[0], ast.Name)
            ]
            found.append((f"{file.name}: {function.attr}", f"answer_after({name}, " in file.read_text()))
    return found


def test_every_answer_that_needs_resources_says_so(root: Path) -> None:
    found = [each for file in sorted((root / "infra").rglob("*.py")) for each in asked(file)]
    assert len(found) >= 5
    assert [call for call, wrapped in found if not wrapped] == []
