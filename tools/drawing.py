"""Draws text, boxes and arrows as SVG, for `tools.diagrams`.

Text is measured with a table of letter widths that is an upper bound for common fonts, because an SVG is
rendered with the fonts of its reader. Colors follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH = 640
"""Of both drawings, in units. On a screen of 390 points the smallest letters (15) are still 9 points high."""
EDGE, PAD, GAP, ARROW = 20, 14, 10, 30

# Letter widths in thousandths of the font size: the larger of DejaVu Sans and Arial, rounded up.
REGULAR = {
    280: "'ijl", 320: " ,.I·", 360: "/:;\\f|", 400: "()-[]t", 440: "!r", 480: '"', 520: "`",
    560: "?_csz", 600: "*JLkvxy", 640: "$0123456789FTabdeghnopqu{}", 680: "EKPSY", 720: "ABVXZ",
    760: "CHNRU", 800: "&DGOQ", 840: "#+<=>^w~", 880: "M", 960: "%", 1000: "Wm→", 1040: "@",
}  # fmt: skip
BOLD = {
    320: "'", 360: " ijl", 400: ",./:;I\\|·", 440: "-f", 480: "!()[]t", 520: "`r", 560: '"*J_',
    600: "csz", 640: "?L", 680: "aekvxy", 720: "$0123456789EFSTbdghnopqu{}", 760: "CPYZ", 800: "ABKRVX",
    840: "#+<=>DGHNU^~", 880: "&OQ", 960: "w", 1000: "@M→", 1040: "%", 1080: "m", 1120: "W",
}  # fmt: skip
MONOSPACE = 620
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"


@dataclass(frozen=True)
class Font:
    """A kind of text: its size, the height of a line, its weight, and the name of its color."""

    size: int
    line: int
    bold: bool = False
    color: str = "text"


FONTS = {
    "title": Font(19, 26, bold=True),
    "name": Font(16, 22, bold=True),
    "body": Font(16, 21, color="soft"),
    "label": Font(16, 20, color="soft"),
    "badge": Font(15, 20, bold=True),
}
CODE_SIZE = 15

# Every color in light and in dark mode.
COLORS = {
    "page": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "soft": ("#4b535d", "#a5aeb9"),
    "line": ("#6e7781", "#8b949e"),
    "card": ("#f6f8fa", "#161b22"),
    "card-edge": ("#d0d7de", "#3d444d"),
    "inner": ("#ffffff", "#0d1117"),
    "inner-edge": ("#d0d7de", "#3d444d"),
    "train": ("#eaf6ec", "#10231a"),
    "train-edge": ("#2da44e", "#2ea043"),
    "event": ("#fff5e8", "#281d0e"),
    "event-edge": ("#d4882a", "#bb8009"),
    "platform": ("#ddf4ff", "#10294a"),
    "platform-edge": ("#54aeff", "#388bfd"),
    "ci": ("#f3e8ff", "#2b1d45"),
    "ci-edge": ("#b083f0", "#8957e5"),
    "ml": ("#dafbe1", "#12311d"),
    "ml-edge": ("#4ac26b", "#2ea043"),
}
ROLES = {"platform": "Platform engineer", "ci": "CI", "ml": "ML engineer"}


def width_of(text: str, font: Font, code: bool = False) -> float:
    """The width of a text in units; an upper bound for common fonts."""
    if code:
        return len(text) * MONOSPACE * CODE_SIZE / 1000
    return sum(_letters(font.bold)[letter] for letter in text) * font.size / 1000


def _letters(bold: bool) -> dict[str, int]:
    return {letter: width for width, letters in (BOLD if bold else REGULAR).items() for letter in letters}


Word = tuple[tuple[str, bool], ...]
"""The pieces of a word, and whether each is code."""


def words_of(text: str) -> Iterator[Word]:
    """Split a text at its spaces; backticks enclose code."""
    code = False
    for word in text.split():
        pieces = []
        for number, piece in enumerate(word.split("`")):
            code ^= number > 0
            if piece:
                pieces.append((piece, code))
        yield tuple(pieces)


def lines_of(text: str, font: Font, width: float) -> list[list[Word]]:
    """Break a text into lines of at most `width` units; a line feed always breaks."""
    lines: list[list[Word]] = []
    for part in text.split("\n"):
        lines.append([])
        for word in words_of(part):
            if lines[-1] and _line_width([*lines[-1], word], font) > width:
                lines.append([])
            lines[-1].append(word)
    return lines


def _line_width(line: Sequence[Word], font: Font) -> float:
    return sum(width_of(piece, font, code) for piece, code in _pieces(line))


def _pieces(line: Sequence[Word]) -> list[tuple[str, bool]]:
    """A line's pieces; the space between two words is code only where both are."""
    found: list[tuple[str, bool]] = []
    for word in line:
        if found:
            found.append((" ", found[-1][1] and word[0][1]))
        found.extend(word)
    return found


@dataclass(frozen=True)
class Box:
    """A rectangle, in units."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def center(self) -> float:
        return self.y + self.height / 2


@dataclass
class Drawing:
    """An SVG under construction: what was drawn, in the order in which it is painted."""

    title: str
    description: str
    items: list[str] = field(default_factory=list)

    def rect(self, box: Box, kind: str, radius: int = 8, at: int | None = None) -> None:
        """A rectangle; `at` puts it below what was drawn since."""
        place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}"'
        self.items.insert(len(self.items) if at is None else at, f'<rect class="{kind}" {place}/>')

    def text(
        self, x: float, y: float, text: str, kind: str, width: float = WIDTH, *, anchor: str = "start"
    ) -> float:
        """Draw a paragraph and return the height at which it ends.

        Args:
            x: left edge, centre or right edge, by `anchor`.
            y: height at which the first line begins.
            text: the text, with code between backticks.
            kind: its font, a key of FONTS.
            width: at which lines wrap.
            anchor: `start`, `middle` or `end`.
        """
        font = FONTS[kind]
        for line in lines_of(text, font, width):
            spans = "".join(
                f'<tspan class="code">{escape(piece)}</tspan>' if code else escape(piece)
                for piece, code in _pieces(line)
            )
            side = "" if anchor == "start" else f' text-anchor="{anchor}"'
            baseline = y + font.line / 2 + font.size * 0.36
            self.items.append(f'<text class="{kind}" x="{x:g}" y="{baseline:g}"{side}>{spans}</text>')
            y += font.line
        return y

    def line(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through `points`."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.items.append(f'<path class="{"dashed" if dashed else "flow"}" d="M{path}"/>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through `points` with a head at its end."""
        (x0, y0), (x1, y1) = points[-2:]
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        base = (x1 - 9 * dx, y1 - 9 * dy)
        self.line(*points[:-1], base, dashed=dashed)
        corners = ((x1, y1), (base[0] + 5 * dy, base[1] + 5 * dx), (base[0] - 5 * dy, base[1] - 5 * dx))
        self.items.append(
            '<polygon class="head" points="{}"/>'.format(" ".join(f"{x:g},{y:g}" for x, y in corners))
        )

    def pills(
        self, x: float, y: float, names: Sequence[str], kind: str = "inner", width: float = WIDTH
    ) -> float:
        """Names in small frames, in rows of at most `width`. Returns where they end."""
        left, height = x, 28
        for name in names:
            length = width_of(name, FONTS["badge"]) + 2 * 9
            if x > left and x + length > left + width:
                x, y = left, y + height + 7
            self.rect(Box(x, y, length, height), kind, 14)
            self.text(x + length / 2, y + 4, name, "badge", anchor="middle")
            x += length + 7
        return y + height

    def card(
        self,
        box: Box,
        title: str,
        body: str = "",
        *,
        kind: str = "card",
        heading: str = "title",
        roles: Sequence[str] = (),
        inside: Callable[[float, float, float], float] | None = None,
    ) -> Box:
        """Draw a frame with a title and return its box, which is as high as its content.

        Args:
            box: place, width and least height.
            title: its title.
            body: the text below the title.
            kind: class of the frame.
            heading: font of the title, a key of FONTS.
            roles: shown as pills next to the title, keys of ROLES.
            inside: draws further content at (x, y, width) and returns where it ends.
        """
        at, x, y, width = len(self.items), box.x + PAD, box.y + 10, box.width - 2 * PAD
        right = box.right - PAD
        for role in reversed(roles):
            length = width_of(ROLES[role], FONTS["badge"]) + 2 * 9
            self.pills(right - length, y - 1, [ROLES[role]], role)
            right -= length + 7
        y = self.text(x, y, title, heading, right - x)
        if body:
            y = self.text(x, y + 2, body, "body", width)
        if inside is not None:
            y = inside(x, y + 8, width)
        done = Box(box.x, box.y, box.width, max(box.height, y + 12 - box.y))
        self.rect(done, kind, at=at)
        return done

    def svg(self, height: float) -> str:
        """The whole document."""
        size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">'
        )
        titles = [f'<title id="title">{escape(self.title)}</title>']
        titles.append(f'<desc id="description">{escape(self.description)}</desc>')
        page = f'<rect class="page" x="0" y="0" width="{WIDTH}" height="{height:g}" rx="12"/>'
        return "\n".join([head, *titles, style(), page, *self.items, "</svg>"]) + "\n"


def style() -> str:
    """The style sheet: fonts, then every color twice."""
    sizes = [
        f".{name}{{font-size:{font.size}px;font-weight:{700 if font.bold else 400}}}"
        for name, font in FONTS.items()
    ]
    fixed = [f"text{{font-family:{SANS}}}", *sizes, f".code{{font-family:{MONO};font-size:{CODE_SIZE}px}}"]
    fixed += [".flow,.dashed{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}"]
    light, dark = ("".join(_rules(mode)) for mode in (0, 1))
    return "\n".join(["<style>", *fixed, light, f"@media (prefers-color-scheme:dark){{{dark}}}", "</style>"])


def _rules(mode: int) -> Iterator[str]:
    color = {name: modes[mode] for name, modes in COLORS.items()}
    for name, font in FONTS.items():
        yield f".{name}{{fill:{color[font.color]}}}"
    yield f".code{{fill:{color['text']}}}.flow,.dashed{{stroke:{color['line']}}}.head{{fill:{color['line']}}}"
    yield f".page{{fill:{color['page']}}}"
    for name in COLORS:
        if f"{name}-edge" in COLORS:
            yield f".{name}{{fill:{color[name]};stroke:{color[f'{name}-edge']};stroke-width:1.3}}"
