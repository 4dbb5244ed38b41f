"""Lists the images of the platforms' repositories."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainfleet.images.destinations import Destination
from trainfleet.images.dockerfile import TARGETS
from trainfleet.images.login import Access, credentials_for
from trainfleet.images.registry import Repository, TaggedImage, split_repository


@dataclass(frozen=True)
class Listed:
    """The images of a repository, the newest first."""

    destination: Destination
    images: tuple[TaggedImage, ...]
    now: datetime

    def as_json(self) -> list[dict[str, Any]]:
        """A row for each tag. `used`: a platform names it, by its tag or its digest."""
        place = self.destination
        return [
            {
                "repository": place.repository,
                "platforms": place.names,
                "tag": each.tag,
                "target": target if (target := each.tag.rpartition("-")[0]) in TARGETS else "",
                "digest": each.digest,
                "image": f"{place.repository}@{each.digest}",
                "bytes": each.size,
                "created": each.created,
                "used": self._used(each),
            }
            for each in self.images
        ]

    def _used(self, image: TaggedImage) -> bool:
        place = self.destination
        names = (f"{place.repository}:{image.tag}", f"{place.repository}@{image.digest}")
        return any(each.outputs.image in names for each in place.platforms)

    def age(self, created: str) -> str:
        """How long ago that was, in hours or days; empty if it is unknown."""
        with contextlib.suppress(ValueError):
            hours = (self.now - datetime.fromisoformat(created)).total_seconds() / 3600
            return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
        return ""


def list_images(places: Sequence[Destination], access: Access) -> list[Listed]:
    """The images of each repository.

    Raises:
        TrainfleetError: a login failed, or a registry does not answer.
    """
    found = []
    for place in places:
        credentials = credentials_for(split_repository(place.repository)[0], access)
        repository = Repository(place.repository, credentials, access.ca)
        found.append(Listed(place, tuple(repository.images()), datetime.now(UTC)))
    return found
