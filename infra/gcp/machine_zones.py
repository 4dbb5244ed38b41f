"""GKE's names of GPUs, and the zones of scarce machines. GKE rejects a pool in another zone during the apply.

G2 and N1 are not listed, because they are sold almost everywhere. Source: skypilot-org/skypilot-catalog
catalogs/v8/gcp/vms.csv (006059e, read in November 2026), from Google's price list.
"""

from __future__ import annotations

_A2 = {
    "asia-northeast1": "ac",
    "asia-northeast3": "ab",
    "asia-southeast1": "abc",
    "europe-west4": "ab",
    "me-west1": "ac",
    "us-central1": "abcf",
    "us-east1": "b",
    "us-west1": "b",
    "us-west3": "b",
    "us-west4": "b",
}
_A2_ULTRA = {
    "asia-southeast1": "c",
    "europe-west4": "a",
    "us-central1": "ac",
    "us-east4": "c",
    "us-east5": "ab",
}
_A3_HIGH = {
    "asia-east1": "c",
    "asia-northeast1": "b",
    "asia-south1": "c",
    "asia-south2": "b",
    "asia-southeast1": "bc",
    "australia-southeast1": "c",
    "europe-north1": "c",
    "europe-west1": "bc",
    "europe-west3": "c",
    "europe-west4": "bc",
    "europe-west9": "c",
    "us-central1": "abc",
    "us-east4": "abc",
    "us-east5": "a",
    "us-west1": "ab",
    "us-west4": "a",
}
_A3_MEGA = {
    "asia-east1": "c",
    "asia-northeast1": "b",
    "asia-southeast1": "bc",
    "australia-southeast1": "c",
    "europe-north1": "c",
    "europe-west1": "bc",
    "europe-west3": "c",
    "europe-west4": "bc",
    "us-central1": "abc",
    "us-east4": "abc",
    "us-east5": "a",
    "us-west1": "ab",
    "us-west4": "a",
}
_A3_ULTRA = {
    "asia-south1": "b",
    "asia-south2": "c",
    "europe-west1": "b",
    "europe-west4": "a",
    "us-central1": "b",
    "us-east4": "b",
    "us-east5": "a",
    "us-south1": "b",
    "us-west1": "c",
}
_A4 = {
    "asia-northeast1": "b",
    "asia-southeast1": "b",
    "europe-north1": "b",
    "europe-west4": "b",
    "us-central1": "b",
    "us-east1": "b",
    "us-east4": "b",
    "us-south1": "b",
    "us-west2": "c",
    "us-west3": "bc",
}
ACCELERATORS = {
    "T4": "nvidia-tesla-t4",
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H100-MEGA": "nvidia-h100-mega-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
    "RTXPRO6000": "nvidia-rtx-pro-6000",
}
"""GKE's names of accelerators, also values of its node label (Compute Engine guide, GPU platforms)."""
ZONES: dict[str, dict[str, str]] = {
    "a2-highgpu-": _A2,
    "a2-ultragpu-": _A2_ULTRA,
    "a3-highgpu-8g": _A3_HIGH,
    "a3-highgpu-": {**_A3_HIGH, "europe-west8": "c"},
    "a3-megagpu-": _A3_MEGA,
    "a3-ultragpu-": _A3_ULTRA,
    "a4-highgpu-": _A4,
}
"""By prefix of a machine's name, longer ones first: region to the letters of its zones."""


def sold_in(instance_type: str, region: str) -> tuple[str, ...] | None:
    """The zones of a region that sell a machine; None if unknown."""
    for beginning, regions in ZONES.items():
        if instance_type.startswith(beginning):
            return tuple(f"{region}-{letter}" for letter in regions.get(region, ""))
    return None


def regions_of(instance_type: str) -> tuple[str, ...]:
    """The regions that sell a machine; empty if unknown."""
    for beginning, regions in ZONES.items():
        if instance_type.startswith(beginning):
            return tuple(regions)
    return ()
