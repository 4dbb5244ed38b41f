"""Property access, and the basic checks that rules are built from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainfleet.policies.engine.rule import (
    UNKNOWN,
    Check,
    Json,
    Resource,
    StackCheck,
    StillUnknown,
    Violation,
    until_unknown,
)


def at(value: Json, path: str) -> Json:
    """Return the value at a dotted path; None if any part is missing."""
    for part in path.split("."):
        if value is UNKNOWN:
            raise StillUnknown
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def listed(value: Json) -> list[Json]:
    """Return a property as a list: empty if missing, one element for a single value."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) or value is UNKNOWN else [value]


def is_true(value: Json) -> bool:
    """Whether a value is true, as a boolean or as text."""
    return value is True or (value is not None and str(value).lower() == "true")


def is_false(value: Json) -> bool:
    """Whether a value is false, as a boolean or as text. A missing value is not false."""
    return value is False or (value is not None and str(value).lower() == "false")


def number(value: Json) -> float | None:
    """Convert a number, text or seconds (`86400s`) to a float; None if that is impossible."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(str(value).removesuffix("s"))
    except ValueError:
        return None


def document(text: Json) -> Json:
    """Return a JSON document given as text or as an object; None if the text is invalid."""
    if text is UNKNOWN:
        raise StillUnknown
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


def statements(policy: Json) -> list[dict[str, Json]]:
    """Return the statements of an AWS policy document; empty if it is not one."""
    found = document(policy)
    if not isinstance(found, dict):
        return []
    return [statement for statement in listed(found.get("Statement")) if isinstance(statement, dict)]


def numbered(where: str, items: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield path and value of each object in a list. Unknown items are skipped until they are known."""
    for index, item in enumerate(listed(items)):
        if isinstance(item, Mapping):
            yield f"{where}[{index}]", dict(item)


def all_of(*checks: Check) -> Check:
    """Run every check. An unknown value in one check does not hide violations of another."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        for check in checks:
            yield from until_unknown(check(resource))

    return evaluate


def true(path: str, consequence: str = "") -> Check:
    """The flag must be true; missing counts as false."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if not is_true(at(resource.props, path)):
            yield Violation(_with_consequence(f"{path} is not true", consequence))

    return evaluate


def not_true(path: str, consequence: str = "") -> Check:
    """The flag must not be true; missing counts as false."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if is_true(at(resource.props, path)):
            yield Violation(_with_consequence(f"{path} is true", consequence))

    return evaluate


def not_false(path: str, consequence: str = "") -> Check:
    """The flag must not be false; missing counts as true."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if is_false(at(resource.props, path)):
            yield Violation(_with_consequence(f"{path} is false", consequence))

    return evaluate


def false(path: str, consequence: str = "") -> Check:
    """The flag must be false; missing counts as true."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if not is_false(at(resource.props, path)):
            yield Violation(_with_consequence(f"{path} is not false", consequence))

    return evaluate


def present(path: str, consequence: str = "") -> Check:
    """The property must be set to a non-empty value."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is None or (value is not UNKNOWN and value in ("", [], {})):
            yield Violation(_with_consequence(f"{path} is missing", consequence))

    return evaluate


def absent(path: str, consequence: str = "") -> Check:
    """The property must not be set."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is not None and value is not UNKNOWN:
            yield Violation(_with_consequence(f"{path} is set", consequence))

    return evaluate


def one_of(path: str, allowed: Sequence[str], consequence: str = "") -> Check:
    """The property must have one of these values."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is None or str(value) not in allowed:
            yield Violation(
                _with_consequence(
                    f"{path} is {_quoted(value)}, expected {' or '.join(f'`{each}`' for each in allowed)}",
                    consequence,
                )
            )

    return evaluate


def not_one_of(path: str, refused: Sequence[str], consequence: str = "") -> Check:
    """The property must not have any of these values; it can be missing."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is not None and str(value) in refused:
            yield Violation(_with_consequence(f"{path} is {_quoted(value)}", consequence))

    return evaluate


def at_least(path: str, least: float, consequence: str = "", *, absent: float | None = None) -> Check:
    """The number must be `least` or more. `absent` is the cloud's default for a missing value."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        known = absent if value is None else number(value)
        if known is None or known < least:
            yield Violation(
                _with_consequence(f"{path} is {_quoted(value)}, expected {least:g} or more", consequence)
            )

    return evaluate


def protected(resource: Resource) -> Iterable[Violation]:
    """The engine must refuse to delete the resource, for types that the cloud itself does not protect."""
    if resource.protect is False:
        yield Violation("the resource option `protect` is not set, and the cloud has no deletion protection")


@dataclass(frozen=True)
class Forbidden:
    """A check that reports every resource of its type."""

    message: str

    def __call__(self, _: Resource) -> Iterable[Violation]:
        return (Violation(self.message),)


def missing_companion(  # noqa: PLR0917 - the last two are given by name
    subjects: Sequence[str],
    companions: Sequence[str],
    reference: str,
    message: str,
    counts: Callable[[Resource], bool] = lambda _: True,
    exempt: Callable[[Resource, Sequence[Resource]], bool] = lambda _one, _all: False,
) -> StackCheck:
    """Report each subject without a companion.

    Args:
        subjects: The types that need a companion.
        companions: The types that count as a companion.
        reference: The companion's property that refers to the subject.
        message: The violation's message.
        counts: Whether a resource of a companion type is valid as a companion.
        exempt: Whether a subject needs no companion, given all resources.
    """

    def evaluate(resources: Sequence[Resource]) -> Iterable[Violation]:
        found = [one for one in resources if one.kind in companions and _known(counts, one)]
        for subject in resources:
            if (
                subject.kind in subjects
                and not any(belongs(one, subject, reference) for one in found)
                and not exempt(subject, resources)
            ):
                yield Violation(message, subject.urn, subject.name)

    return evaluate


def _known(counts: Callable[[Resource], bool], resource: Resource) -> bool:
    """Count an undetermined companion: the check runs again when the stack is applied."""
    try:
        return counts(resource)
    except StillUnknown:
        return True


NAMES = ("bucket", "accountName", "name", "resourceName", "id", "clusterName")


def belongs(companion: Resource, subject: Resource, property_name: str) -> bool:
    """Whether a companion refers to a subject: by reference if the preview knows it, otherwise by name."""
    if subject.urn and subject.urn in companion.depends.get(property_name, ()):
        return True
    reference = companion.props.get(property_name)
    if reference is None or reference is UNKNOWN or isinstance(reference, dict | list):
        return False
    names = [subject.props.get(each) for each in NAMES]
    return reference in [name for name in names if isinstance(name, str)]


def stores_only_logs(store: Resource, resources: Sequence[Resource]) -> bool:
    """Whether a store only receives logs that the cloud writes: access logs (S3) or flow logs (Azure)."""
    targets = {
        "aws:s3/bucketLogging:BucketLogging": "targetBucket",
        "azure-native:network:FlowLog": "storageId",
    }
    return any(belongs(one, store, targets[one.kind]) for one in resources if one.kind in targets)


def _quoted(value: Json) -> str:
    return "missing" if value is None else f"`{value}`"


def _with_consequence(what: str, consequence: str) -> str:
    return f"{what}: {consequence}" if consequence else what
