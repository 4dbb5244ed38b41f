"""The pictures of the documentation: diagrams are up to date and readable, no label leaves its box."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tools import screenshots
from tools.diagrams import DIAGRAMS
from tools.drawing import COLORS
from trainfleet.errors import MissingToolError

SVG = "{http://www.w3.org/2000/svg}"
PHONE, SMALLEST = 390, 9.0
FONTS = Path("/usr/share/fonts/truetype")
FACES = {
    "DejaVu Sans": ("dejavu/DejaVuSans.ttf", "dejavu/DejaVuSans-Bold.ttf", "dejavu/DejaVuSansMono.ttf"),
    "Liberation Sans": (
        "liberation/LiberationSans-Regular.ttf",
        "liberation/LiberationSans-Bold.ttf",
        "liberation/LiberationMono-Regular.ttf",
    ),
}
"""Fonts of Linux desktops for text, bold text and code; Liberation Sans has the widths of Arial and
Helvetica.
"""
PILLOWS = "the font in Pillow"


@dataclass(frozen=True)
class Area:
    """A rectangle of the drawing, and what is written in it."""

    left: float
    top: float
    right: float
    bottom: float
    text: str = ""

    def holds(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )

    def meets(self, other: Area) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def widths(face: str) -> dict[str, dict[str, float]]:
    """Letter widths of a real font by kind of text, per unit of size."""
    image_font = pytest.importorskip("PIL.ImageFont")
    letters = "".join(chr(code) for code in range(32, 127)) + "·→"
    if face == PILLOWS:
        fonts = dict.fromkeys(("regular", "bold"), image_font.load_default(1000))
    else:
        files = [FONTS / name for name in FACES[face]]
        if not all(file.exists() for file in files):
            pytest.skip(f"{face} is not installed")
        fonts = {
            kind: image_font.truetype(str(file), 1000)
            for kind, file in zip(("regular", "bold", "code"), files, strict=True)
        }
    return {
        kind: {letter: font.getlength(letter) / 1000 for letter in letters} for kind, font in fonts.items()
    }


def table() -> dict[str, dict[str, float]]:
    """The widths that the layout is computed with."""
    from tools.drawing import BOLD, MONOSPACE, REGULAR

    kinds = {"regular": REGULAR, "bold": BOLD}
    found = {
        kind: {letter: width / 1000 for width, letters in rows.items() for letter in letters}
        for kind, rows in kinds.items()
    }
    return found | {"code": dict.fromkeys(found["regular"], MONOSPACE / 1000)}


@cache
def drawing(name: str) -> ET.Element:
    return ET.fromstring(DIAGRAMS[name]())


@cache
def styles(name: str) -> dict[str, tuple[float, bool]]:
    """Each class of text: its size, and whether it is bold."""
    sheet = drawing(name).findtext(f"{SVG}style") or ""
    found = re.findall(r"\.([\w-]+)\{[^}]*font-size:(\d+)px(?:;font-weight:(\d+))?", sheet)
    return {kind: (float(size), weight == "700") for kind, size, weight in found}


def rectangles(name: str) -> list[Area]:
    found = []
    for rect in drawing(name).iter(f"{SVG}rect"):
        x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        found.append(Area(x, y, x + width, y + height, rect.attrib["class"]))
    return found


def runs(name: str, text: ET.Element) -> Iterator[tuple[str, float, str]]:
    """A label's parts: what is written, how large, and in which kind of font."""
    size, bold = styles(name)[text.attrib["class"]]
    kind = "bold" if bold else "regular"
    yield text.text or "", size, kind
    for span in text:
        yield span.text or "", styles(name)["code"][0], "code"
        yield span.tail or "", size, kind


def labels(name: str, measured: dict[str, dict[str, float]]) -> list[Area]:
    found = []
    for text in drawing(name).iter(f"{SVG}text"):
        parts = list(runs(name, text))
        width = sum(
            measured.get(kind, table()["code"])[letter] * size
            for part, size, kind in parts
            for letter in part
        )
        size = max(size for _, size, _ in parts)
        x, baseline = float(text.attrib["x"]), float(text.attrib["y"])
        left = x - width / 2 if text.get("text-anchor") == "middle" else x
        words = "".join(text.itertext())
        found.append(Area(left, baseline - 0.76 * size, left + width, baseline + 0.24 * size, words))
    return found


def segments(name: str) -> Iterator[Area]:
    """The straight parts of every line."""
    for path in drawing(name).iter(f"{SVG}path"):
        points = [tuple(map(float, point.split())) for point in path.attrib["d"].removeprefix("M").split("L")]
        for (x0, y0), (x1, y1) in pairwise(points):
            yield Area(min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_file_is_what_the_script_draws(name: str, root: Path) -> None:
    written = (root / "docs" / "images" / name).read_text(encoding="utf-8")
    assert written == DIAGRAMS[name](), "out of date: python -m tools.diagrams"


@pytest.mark.parametrize("face", [*FACES, PILLOWS])
def test_the_table_of_widths_bounds_a_real_font(face: str) -> None:
    bounds, real = table(), widths(face)
    narrow = {
        kind: [letter for letter in real[kind] if real[kind][letter] > bounds[kind][letter] + 1e-3]
        for kind in real
    }
    assert narrow == {kind: [] for kind in real}


@pytest.mark.parametrize("face", ["", *FACES])
@pytest.mark.parametrize("name", DIAGRAMS)
def test_every_label_is_inside_its_box(name: str, face: str) -> None:
    boxes = rectangles(name)
    for label in labels(name, widths(face) if face else table()):
        around = [box for box in boxes if box.holds(label)]
        crossed = [box for box in boxes if box.meets(label) and box not in around]
        assert around, f"{label.text!r} leaves the drawing"
        assert not crossed, f"{label.text!r} leaves its box, or covers the edge of one"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_labels_neither_overlap_nor_are_crossed_by_lines(name: str) -> None:
    found = labels(name, table())
    pairs = [
        (one.text, other.text) for at, one in enumerate(found) for other in found[:at] if one.meets(other)
    ]
    assert pairs == []
    assert [label.text for label in found if any(line.meets(label) for line in segments(name))] == []


@pytest.mark.parametrize("name", DIAGRAMS)
def test_boxes_are_nested_or_apart(name: str) -> None:
    boxes = rectangles(name)
    pairs = [(one, other) for at, one in enumerate(boxes) for other in boxes[:at] if one.meets(other)]
    assert [(one, other) for one, other in pairs if not (one.holds(other) or other.holds(one))] == []


@pytest.mark.parametrize("name", DIAGRAMS)
def test_it_is_readable_on_a_phone(name: str) -> None:
    width = float(drawing(name).attrib["width"])
    sizes = {size for text in drawing(name).iter(f"{SVG}text") for part, size, _ in runs(name, text) if part}
    assert min(sizes) * PHONE / width >= SMALLEST


@pytest.mark.parametrize("name", DIAGRAMS)
def test_it_has_a_title_and_a_description(name: str) -> None:
    svg = drawing(name)
    named = {part.attrib["id"]: part.text for tag in ("title", "desc") for part in svg.iter(f"{SVG}{tag}")}
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-labelledby"].split() == [*named]
    assert len(named) == 2
    assert all(named.values())


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_contrasts_with_every_background(mode: str) -> None:
    color = {name: modes[mode == "dark"] for name, modes in COLORS.items()}
    grounds = {"page", *(name for name in COLORS if f"{name}-edge" in COLORS)}
    weak = [
        (text, ground)
        for text in ("text", "soft")
        for ground in grounds
        if contrast(color[text], color[ground]) < 4.5
    ]
    assert weak == []


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors (WCAG 2.2)."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_screenshots_name_the_missing_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="screenshots need Chromium"):
        screenshots.browser()


def test_the_change_in_the_screenshot_still_applies(root: Path) -> None:
    text = (root / "stacks" / f"Pulumi.{screenshots.STACK}.yaml").read_text(encoding="utf-8")
    assert text.count(screenshots.BEFORE) == 1


@pytest.mark.parametrize("name", screenshots.PICTURES)
def test_a_screenshot_has_the_size_that_the_script_takes(name: str) -> None:
    data = (screenshots.FOLDER / name).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (screenshots.WIDTH, screenshots.PICTURES[name][1])
    assert len(data) <= screenshots.LARGEST
