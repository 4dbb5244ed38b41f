"""A row and a section of the page of environment variables."""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """A row of the page: the variable, what it is for, who reads it, and what holds without it."""

    name: str
    purpose: str
    read_by: str
    default: str = "unset"


class Group(NamedTuple):
    """A section of the page."""

    title: str
    text: str
    variables: tuple[Variable, ...]
