"""Limits of YAML that somebody else wrote: nesting, and the size to which its aliases grow.

Reads events only, which needs no recursion. NOTE: PyYAML constructs recursively and ends the process
somewhere below 100,000 levels; ten lines of aliases ("billion laughs") describe more values than memory
holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

DEEPEST = 100
"""Levels of nesting. A spec has six, a Kubernetes object about fifteen."""
LARGEST = 200_000
"""Values after every alias is replaced by its value. A large stack file has 5,000."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooLargeError(yaml.MarkedYAMLError):
    """Raised for YAML that exceeds a limit; `problem_mark` is the place."""


def check_limits(text: str) -> None:
    """Check the nesting and the expanded size of YAML, without constructing it.

    Raises:
        TooLargeError: it exceeds a limit, or contains itself.
        yaml.YAMLError: not YAML.
        ValueError: not text that YAML may contain.
    """
    loader = _Loader(text)
    open_: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    total = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == event.anchor for anchor, _ in open_):
                    raise _refused(f"`*{event.anchor}` contains itself", event)
                total += sizes.get(str(event.anchor), 1)
            elif isinstance(event, yaml.ScalarEvent):
                total += 1
                if event.anchor:
                    sizes[str(event.anchor)] = 1
            elif isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, total))
                total += 1
                if len(open_) > DEEPEST:
                    raise _refused(f"is nested more than {DEEPEST} deep", event)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_.pop()
                if anchor:
                    sizes[anchor] = total - before
            if total > LARGEST:
                raise _refused(f"has more than {LARGEST} values once its aliases are replaced", event)
    finally:
        loader.dispose()


def _refused(what: str, event: yaml.Event) -> TooLargeError:
    return TooLargeError(None, None, what, event.start_mark)  # type: ignore[arg-type]  # the C parser's mark is as good


@contextmanager
def only_yaml_errors() -> Iterator[None]:
    """Raise `yaml.YAMLError` for each exception of PyYAML's constructors."""
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(" ".join(str(error).split())) from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # NOTE: the constructors of numbers, times and bytes raise these for a text that is not one.
        raise yaml.YAMLError("a value is not what its tag (`!!int`, `!!timestamp`, ...) says") from error


def load(text: str) -> Any:
    """Return the value of a YAML document within the limits, with plain types only.

    Raises:
        yaml.YAMLError: it is not YAML, exceeds a limit, or has a value that cannot exist, such as a 13th
            month.
    """
    with only_yaml_errors():
        check_limits(text)
        return yaml.safe_load(text)
