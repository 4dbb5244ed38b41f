"""The registry of clouds. To add one: a member here, and a folder infra/<value>/ with a support.py."""

from __future__ import annotations

from enum import StrEnum


class Cloud(StrEnum):
    """Where a platform is built."""

    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    LOCAL = "local"
