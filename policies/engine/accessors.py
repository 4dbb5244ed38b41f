"""Ways to look at properties and the small checks that many rules are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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

WORLD = {"0.0.0.0/0", "::/0"}


def at(value: Json, path: str) -> Json:
    """What is at a dotted path of objects; None where any of them is absent."""
    for part in path.split("."):
        if value is UNKNOWN:
            raise StillUnknown
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def listed(value: Json) -> list[Json]:
    """A property that may be absent, one value or a list, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) or value is UNKNOWN else [value]


def is_true(value: Json) -> bool:
    """Booleans travel as booleans or as the words `true` and `false`."""
    return value is True or (value is not None and str(value).lower() == "true")


def is_false(value: Json) -> bool:
    """Whether it is reported to be false; an absent value is not."""
    return value is False or (value is not None and str(value).lower() == "false")


def number(value: Json) -> float | None:
    """A number, also one that travels as text or as seconds (`86400s`); None where it is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(str(value).removesuffix("s"))
    except ValueError:
        return None


def document(text: Json) -> Json:
    """A JSON document given as text or as an object; None where it is neither."""
    if text is UNKNOWN:
        raise StillUnknown
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


def statements(policy: Json) -> list[dict[str, Json]]:
    """The statements of an AWS policy document; none where it is no such document."""
    found = document(policy)
    if not isinstance(found, dict):
        return []
    return [statement for statement in listed(found.get("Statement")) if isinstance(statement, dict)]


def numbered(where: str, items: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """The objects of a list, each with its place. An unknown item is passed over: it is checked when it is
    known.
    """
    for index, item in enumerate(listed(items)):
        if isinstance(item, Mapping):
            yield f"{where}[{index}]", dict(item)


def all_of(*checks: Check) -> Check:
    """Each check to its own end: what one does not know yet does not hide what another finds."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        for check in checks:
            yield from until_unknown(check(resource))

    return evaluate


def true(path: str, otherwise: str = "") -> Check:
    """The flag must be set: absent is off."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if not is_true(at(resource.props, path)):
            yield Violation(_because(f"{path} is not true", otherwise))

    return evaluate


def not_true(path: str, otherwise: str = "") -> Check:
    """The flag must not be set: absent is off."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if is_true(at(resource.props, path)):
            yield Violation(_because(f"{path} is true", otherwise))

    return evaluate


def not_false(path: str, otherwise: str = "") -> Check:
    """The flag must not be cleared: absent is on."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if is_false(at(resource.props, path)):
            yield Violation(_because(f"{path} is false", otherwise))

    return evaluate


def false(path: str, otherwise: str = "") -> Check:
    """The flag must be cleared: absent is on."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        if not is_false(at(resource.props, path)):
            yield Violation(_because(f"{path} is not false", otherwise))

    return evaluate


def present(path: str, otherwise: str = "") -> Check:
    """The property must be there, with any value."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is None or (value is not UNKNOWN and value in ("", [], {})):
            yield Violation(_because(f"{path} is missing", otherwise))

    return evaluate


def absent(path: str, otherwise: str = "") -> Check:
    """The property must not be there."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is not None and value is not UNKNOWN:
            yield Violation(_because(f"{path} is set", otherwise))

    return evaluate


def one_of(path: str, allowed: Sequence[str], otherwise: str = "") -> Check:
    """The property must have one of these values."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is None or str(value) not in allowed:
            yield Violation(
                _because(
                    f"{path} is {_shown(value)} and not {' or '.join(f'`{each}`' for each in allowed)}",
                    otherwise,
                )
            )

    return evaluate


def none_of(path: str, refused: Sequence[str], otherwise: str = "") -> Check:
    """The property may be absent, and must not have one of these values."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        if value is not None and str(value) in refused:
            yield Violation(_because(f"{path} is {_shown(value)}", otherwise))

    return evaluate


def at_least(path: str, least: float, otherwise: str = "", *, absent: float | None = None) -> Check:
    """The number must not be below `least`; `absent` is what the cloud takes where nothing is reported."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        value = at(resource.props, path)
        known = absent if value is None else number(value)
        if known is None or known < least:
            yield Violation(_because(f"{path} is {_shown(value)} and not {least:g} or more", otherwise))

    return evaluate


def forbidden(what: str) -> Check:
    """Nothing of the type may be there at all."""

    def evaluate(_: Resource) -> Iterable[Violation]:
        yield Violation(what)

    evaluate.__dict__["forbidden"] = True
    return evaluate


def missing_companion(  # noqa: PLR0917 - the last two are given by name
    subjects: Sequence[str],
    companions: Sequence[str],
    by: str,
    lack: str,
    counts: Callable[[Resource], bool] = lambda _: True,
    spared: Callable[[Resource, Sequence[Resource]], bool] = lambda _one, _all: False,
) -> StackCheck:
    """Finds each subject that no companion belongs to. `by`: the companion's property that names the subject."""

    def evaluate(resources: Sequence[Resource]) -> Iterable[Violation]:
        near = [one for one in resources if one.kind in companions and _known(counts, one)]
        for subject in resources:
            if (
                subject.kind in subjects
                and not any(belongs(one, subject, by) for one in near)
                and not spared(subject, resources)
            ):
                yield Violation(lack, subject.urn, subject.name)

    return evaluate


def _known(counts: Callable[[Resource], bool], resource: Resource) -> bool:
    """What cannot be determined yet counts: the same question is asked again when the stack is applied."""
    try:
        return counts(resource)
    except StillUnknown:
        return True


NAMES = ("bucket", "accountName", "name", "resourceName", "id", "clusterName")


def belongs(companion: Resource, subject: Resource, by: str) -> bool:
    """By the reference, which a preview knows; else by the name, which may be unknown on either side."""
    if subject.urn and subject.urn in companion.depends.get(by, ()):
        return True
    reference = companion.props.get(by)
    if reference is None or reference is UNKNOWN or isinstance(reference, dict | list):
        return False
    names = [subject.props.get(each) for each in NAMES]
    return reference in [name for name in names if isinstance(name, str)]


def takes_records(store: Resource, resources: Sequence[Resource]) -> bool:
    """Whether a store only holds what the cloud writes down: access logs (S3) or flow logs (Azure). Nobody
    else writes there.
    """
    ways = {"aws:s3/bucketLogging:BucketLogging": "targetBucket", "azure-native:network:FlowLog": "storageId"}
    return any(belongs(one, store, ways[one.kind]) for one in resources if one.kind in ways)


def _shown(value: Json) -> str:
    return "missing" if value is None else f"`{value}`"


def _because(what: str, otherwise: str) -> str:
    return f"{what}: {otherwise}" if otherwise else what
