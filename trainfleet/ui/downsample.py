"""Fewer points of a curve for a page that is some hundred pixels wide, without losing a spike."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]
BUCKETS = 300


def downsample(points: Sequence[Point], buckets: int = BUCKETS) -> list[Point]:
    """At most `2 * buckets + 2` of the points, in order: the first, the last, and the lowest and the highest
    of each bucket of equal width in x. Points that are not finite are left out.
    """
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(finite) <= 2 * buckets + 2:
        return finite
    first, last = finite[0], finite[-1]
    least, most = min(x for x, _ in finite), max(x for x, _ in finite)
    width = (most - least) / buckets or 1.0
    kept: dict[int, tuple[int, int]] = {}
    for index, (x, y) in enumerate(finite):
        bucket = min(buckets - 1, int((x - least) / width))
        low, high = kept.get(bucket, (index, index))
        kept[bucket] = (index if y < finite[low][1] else low, index if y > finite[high][1] else high)
    chosen = sorted({index for pair in kept.values() for index in pair})
    middle = [finite[index] for index in chosen if 0 < index < len(finite) - 1]
    return [first, *middle, last]
