"""Who administers and launches: people, groups and service accounts."""

from __future__ import annotations

import pytest

from tests.infra.gcp.platforms import platform
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.build import subject
from trainfleet.infra.platform import Subject


@pytest.mark.parametrize(
    ("who", "member", "bound"),
    [
        ("ana@example.com", "user:ana@example.com", Subject("User", "ana@example.com")),
        (
            "ci@project.iam.gserviceaccount.com",
            "serviceAccount:ci@project.iam.gserviceaccount.com",
            Subject("User", "ci@project.iam.gserviceaccount.com"),
        ),
        ("group:ml@example.com", "group:ml@example.com", Subject("Group", "ml@example.com")),
    ],
)
def test_a_launcher_has_the_kind_that_iam_and_the_cluster_know(who: str, member: str, bound: Subject) -> None:
    assert layout.member(who) == member
    assert subject(who) == bound


def test_the_cluster_knows_groups_only_if_a_launcher_is_one() -> None:
    assert layout.security_group(platform(kubernetes={"launchers": ["ana@example.com"]})) == ""
    grouped = platform(kubernetes={"launchers": ["ana@example.org", "group:ml@example.com"]})
    assert layout.security_group(grouped) == "gke-security-groups@example.com"
