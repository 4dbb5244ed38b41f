"""Every value that the documentation of a property lists is accepted for it, in all four packages: a sample
here, all of them in `deep`.

The lists are read with fewer rules than `trainfleet.rehearsal.simulation.docstrings` has, so that a list
which that reads wrongly is found. Each is sent alone, in an object that has nothing else: what is missing
then is not looked at. What the documentation itself gets wrong is named in WRONG by type and property, with why.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rehearsal.test_documented_examples import unexplained
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import Kind, documents_of, inputs_of, packages

_NAMES = "the names of other properties"
_NUMBERS = "the numbers of a user, of another property"
WRONG: dict[tuple[str, str], tuple[int, str]] = {
    ("aws:cleanrooms/membership:Membership", "defaultResultConfiguration.roleArn"): (
        2,
        "the formats of another property",
    ),
    ("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "egress.protocol"): (2, _NAMES),
    ("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "ingress.protocol"): (2, _NAMES),
    ("aws:ec2/securityGroup:SecurityGroup", "egress.protocol"): (3, _NAMES),
    ("aws:ec2/securityGroup:SecurityGroup", "ingress.protocol"): (3, _NAMES),
    (
        "aws:sagemaker/appImageConfig:AppImageConfig",
        "codeEditorAppImageConfig.fileSystemConfig.mountPath",
    ): (1, _NUMBERS),
    (
        "aws:sagemaker/appImageConfig:AppImageConfig",
        "jupyterLabImageConfig.fileSystemConfig.mountPath",
    ): (1, _NUMBERS),
    (
        "aws:sagemaker/appImageConfig:AppImageConfig",
        "kernelGatewayImageConfig.fileSystemConfig.mountPath",
    ): (1, _NUMBERS),
    ("aws:wafv2/webAclLoggingConfiguration:WebAclLoggingConfiguration", "loggingFilter.defaultBehavior"): (
        1,
        "its own name",
    ),
}
"""Type and property to how many of the listed values are refused, and what is wrong with them. Never a text of a
message, which would also excuse a false alarm of another property."""
LEAST = {"aws": 4000, "gcp": 2000, "azure-native": 120, "kubernetes": 100}
SAMPLE = 12
DEEPEST = 6

_WORD = r"[`\"]+([A-Za-z0-9_.:/-][A-Za-z0-9_.:/ -]{0,50}?)[`\"]+"
_LIST = re.compile(
    r"(?:valid|possible|allowed|supported|accepted|available)\s+(?:values?|options?|types?|modes?)\b[^.`\"]{0,60}?"
    rf"((?:(?:,|;|\||and|or|\s|:|\*|-|\d\.)*{_WORD}(?:\s?\([^)]*\))?)+)",
    re.I,
)
_BULLETS = re.compile(
    rf"(?:valid|possible|allowed|supported|accepted|available)\s+(?:values?|options?|types?|modes?)[^.`\"]{{0,60}}:?\s*\n((?:\s*[*-]\s+{_WORD}[^\n]*\n?)+)",
    re.I,
)
_NO_VALUES = re.compile(r"disallowed values", re.I)
"""The list names values that are not allowed."""
_REFUSED = re.compile(r"not one of|not valid|no valid|out of range|characters|is not (?!known)")


def listed(document: str) -> list[str]:
    """Return the values that a documentation lists."""
    found = [word for match in _LIST.finditer(document) for word in re.findall(_WORD, match[1])]
    found += [
        word
        for match in _BULLETS.finditer(document)
        for word in re.findall(rf"(?m)^\s*[*-]\s+{_WORD}", match[1])
    ]
    return [] if _NO_VALUES.search(document) else list(dict.fromkeys(found))


@dataclass(frozen=True)
class Place:
    """A property of an input class, and how the inputs of a resource are made that have a value there."""

    token: str
    path: str
    document: str
    number: bool
    put: Callable[[Any], dict[str, Any]]


def scalar(kind: Kind) -> Kind:
    if kind.name == "list" and kind.item:
        return scalar(kind.item)
    if kind.name == "union":
        return next(
            (
                choice
                for choice in kind.choices
                if choice.name in ("string", "enum", "object", "integer", "number")
            ),
            kind.choices[0],
        )
    return kind


def wrapped(kind: Kind, value: Any) -> Any:
    return [wrapped(kind.item, value)] if kind.name == "list" and kind.item else value


def places(package: str, tokens: list[str]) -> Iterator[Place]:
    """Yield every property with documentation of these types, of each input class once."""
    seen: set[type] = set()

    def walk(
        cls: type, token: str, path: str, put: Callable[[Any], dict[str, Any]], depth: int
    ) -> Iterator[Place]:
        if cls in seen or depth > DEEPEST:
            return
        seen.add(cls)
        documents = documents_of(cls)
        for name, declared in inputs_of(cls).items():
            kind = scalar(declared.kind)

            def deeper(value: Any, name: str = name, whole: Kind = declared.kind) -> dict[str, Any]:
                return put({name: wrapped(whole, value)})

            if kind.cls is not None:
                yield from walk(kind.cls, token, f"{path}.{name}", deeper, depth + 1)
            elif kind.name in ("string", "enum", "integer", "number") and documents.get(name):
                yield Place(
                    token, f"{path}.{name}", documents[name], kind.name in ("integer", "number"), deeper
                )

    for token in tokens:
        resource = packages()[package].resource(token)
        if resource is not None and resource.args is not None:
            yield from walk(resource.args, token, "", lambda value: value, 0)


def about(mistake: Mistake, place: Place, word: str) -> bool:
    return (
        mistake.property == place.path[1:]
        and _REFUSED.search(mistake.what) is not None
        and word in mistake.what
    )


def refused(package: str, tokens: list[str]) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """Return how many values were sent, and the refusals by type and property."""
    count, output = 0, defaultdict[tuple[str, str], list[str]](list)
    for place in places(package, tokens):
        name = place.path.rsplit(".", 1)[-1]
        for word in listed(place.document):
            if word in ("true", "false", name) or (place.number and not re.fullmatch(r"-?\d+", word)):
                continue
            count += 1
            value = int(word) if place.number else word
            for mistake in CLOUD_MODELS[package].check(packages()[package], place.token, place.put(value)):
                if about(mistake, place, word):
                    output[place.token, mistake.property].append(f"{place.token} {mistake}")
    return count, output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("package", LEAST)
def test_a_sample_of_documented_values_passes(package: str) -> None:
    tokens = random.Random(7).sample(sorted(packages()[package].classes), SAMPLE)
    _, output = refused(package, tokens)
    assert unexplained(output, WRONG) == []


@pytest.mark.deep
@pytest.mark.parametrize(("package", "least"), LEAST.items())
def test_every_documented_value_passes(package: str, least: int) -> None:
    count, output = refused(package, sorted(packages()[package].classes))
    assert unexplained(output, WRONG) == []
    known = {key: number for key, (number, _) in WRONG.items() if key[0].startswith(f"{package}:")}
    assert {key: len(messages) for key, messages in output.items()} == known, (
        "an exclusion that nothing needs"
    )
    assert count >= least, "fewer values than were listed when this was written"


def test_each_documentation_that_is_wrong_is_excluded_by_its_type_and_property() -> None:
    """Without the `deep` tests: the types of WRONG alone, each value that is refused there and no other."""
    found: dict[tuple[str, str], list[str]] = {}
    for package in LEAST:
        found |= refused(package, sorted({token for token, _ in WRONG if token.startswith(f"{package}:")}))[1]
    assert {key: len(messages) for key, messages in found.items()} == {
        key: number for key, (number, _) in WRONG.items()
    }
    moved = {("aws:sqs/queue:Queue", path): messages for (_, path), messages in found.items()}
    assert unexplained(found, WRONG) == []
    assert unexplained(moved, WRONG), "the same messages of another type are not excused"
