"""The newest diff and drift of each stack, from files of `trainfleet diff --json` and `drift --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trainfleet.ui.refreshed import Refreshed

LARGEST_FILE = 16 * 2**20
MOST_FILES = 500
READ_EVERY_S = 3.0


class _Read(BaseModel):
    """Fields that are not shown are ignored, so that a file of a later version can be read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class LostDocument(_Read):
    """What a change loses."""

    kinds: list[str] = []
    why: str = ""


class ChangeDocument(_Read):
    """A resource of a diff."""

    verb: str
    type: str
    name: str
    destructive: bool = False
    forced_by: list[str] = []
    may_replace: list[str] = []
    loss: LostDocument | None = None


class RevisionDocument(_Read):
    """A side of a diff."""

    ref: str
    commit: str | None = None
    subject: str = ""


class FailingDocument(_Read):
    """A policy violation."""

    policy: str
    resource: str
    message: str
    level: str = ""


class PoliciesDocument(_Read):
    """The policies of a diff."""

    ran: bool = True
    newly_failing: list[FailingDocument] = []
    weakened: list[dict[str, Any]] = []


class StepDocument(_Read):
    """A step of the procedure of a change."""

    when: str
    what: str
    why: str = ""


class AccessDocument(_Read):
    """A gain or loss of access."""

    text: str


class DiffDocument(_Read):
    """The diff of one stack."""

    stack: str
    verdict: str
    blast_radius: str
    base: RevisionDocument
    head: RevisionDocument
    counts: dict[str, int] = {}
    changes: list[ChangeDocument] = []
    policies: PoliciesDocument = Field(default_factory=PoliciesDocument)
    procedure: list[StepDocument] = []
    access: list[AccessDocument] = []
    incomplete: list[str] = []
    notes: list[str] = []


class DriftPropertyDocument(_Read):
    """A property with its value in the state and in the cloud."""

    path: str
    state: Any = None
    cloud: Any = None


class DriftedDocument(_Read):
    """A resource that was changed or deleted without Pulumi."""

    type: str
    name: str
    what: str
    severity: str = ""
    repair: str = ""
    properties: list[DriftPropertyDocument] = []


class DriftDocument(_Read):
    """The drift of one stack."""

    stack: str
    resources: list[DriftedDocument]
    severity: str | None = None
    source: str = ""
    checked: int = 0
    incomplete: list[str] = []
    notes: list[str] = []


@dataclass(frozen=True)
class Stored:
    """A document, the file that has it, and when that was written."""

    document: DiffDocument | DriftDocument
    file: str
    at: datetime

    @property
    def when(self) -> str:
        """The time in words."""
        return f"{self.at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Reviews:
    """The newest documents by stack, and the files that could not be read, each with its reason."""

    diffs: Mapping[str, Stored] = field(default_factory=dict)
    drifts: Mapping[str, Stored] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


class ReviewFiles:
    """The files of a folder, which is read again when a page needs it."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._reviews = Refreshed(lambda: read_reviews(folder), Reviews(), READ_EVERY_S)

    def newest(self, wait_s: float) -> Reviews:
        """The newest diff and drift of each stack."""
        return self._reviews.get(wait_s)


def read_reviews(folder: Path | None) -> Reviews:
    """Read the JSON files of a folder; those of its folders are not read, and links out of it neither."""
    diffs, drifts, unread = dict[str, Stored](), dict[str, Stored](), list[str]()
    files = [] if folder is None else sorted(folder.glob("*.json"))
    if len(files) > MOST_FILES:
        unread.append(f"{folder} has {len(files)} files: only {MOST_FILES} are read")
    for file in files[:MOST_FILES]:
        try:
            documents = list(_documents(file))
            at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        except (OSError, ValueError) as error:
            unread.append(f"{file.name}: {_reason(error)}")
            continue
        for document in documents:
            found = diffs if isinstance(document, DiffDocument) else drifts
            if document.stack not in found or found[document.stack].at <= at:
                found[document.stack] = Stored(document, file.name, at)
    return Reviews(diffs, drifts, tuple(unread))


def _documents(file: Path) -> Iterator[DiffDocument | DriftDocument]:
    """The documents of a file: one, or those of `--all`."""
    if file.resolve().parent != file.parent.resolve():
        raise ValueError("is a link out of the folder")
    if file.stat().st_size > LARGEST_FILE:
        raise ValueError(f"is larger than {LARGEST_FILE // 2**20} MiB")
    found = _ANY.validate_json(file.read_bytes())
    documents = found.get("stacks") if "stacks" in found else [found]
    if not isinstance(documents, list):
        raise ValueError(_NEITHER)
    for each in documents:
        if isinstance(each, dict) and "blast_radius" in each:
            yield DiffDocument.model_validate(each)
        elif isinstance(each, dict) and "fingerprint" in each:
            yield DriftDocument.model_validate(each)
        else:
            raise ValueError(_NEITHER)


_ANY = TypeAdapter(dict[str, Any])
_NEITHER = "is neither of `trainfleet diff --json` nor of `trainfleet drift --json`"


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return str(error.strerror if isinstance(error, OSError) else error)
