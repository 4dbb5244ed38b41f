"""A recording as an SVG that plays once and then shows the last screen, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from tools.recording.cast import Cast
from tools.recording.terminal import Style, Terminal

PAUSE_S = 1.2
"""The longest pause that is shown."""
FRAME_S = 0.25
"""The shortest time between two pictures."""
CHARACTER, LINE, MARGIN = 8.43, 18, 14
PALETTE = (
    *("#6b7280", "#f87171", "#4ade80", "#facc15", "#60a5fa", "#e879f9", "#22d3ee", "#e5e7eb"),
    *("#9ca3af", "#fca5a5", "#86efac", "#fde047", "#93c5fd", "#f0abfc", "#67e8f9", "#ffffff"),
)
FONT = "14px DejaVu Sans Mono,Menlo,ui-monospace,Consolas,monospace"
Line = tuple[tuple[str, Style], ...]


@dataclass
class Version:
    """What a line shows from one time to another."""

    row: int
    start: float
    content: Line
    end: float | None = None


@dataclass
class Film:
    """The lines over time, and where the screen starts over time."""

    versions: list[Version] = field(default_factory=list)
    tops: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    seconds: float = 0.0


def shown_times(cast: Cast) -> Iterator[tuple[float, str]]:
    """The events with pauses shortened; events that follow within a frame belong to it."""
    at, last, waiting = 0.0, 0.0, ""
    for index, (seconds, text) in enumerate(cast.events):
        at, last, waiting = at + min(seconds - last, PAUSE_S), seconds, waiting + text
        following = cast.events[index + 1][0] if index + 1 < len(cast.events) else None
        if following is None or following - seconds >= FRAME_S:
            yield at, waiting
            waiting = ""


def film(cast: Cast) -> Film:
    """What to draw."""
    terminal, result = Terminal(cast.columns, cast.rows), Film()
    current: dict[int, Version] = {}
    terminal.feed(f"\x1b[1m$ {cast.command}\x1b[0m\r\n")
    for at, text in [(0.0, ""), *shown_times(cast)]:
        terminal.feed(text)
        for row in range(max(len(terminal.lines), len(current))):
            content = tuple(terminal.lines[row]) if row < len(terminal.lines) else ()
            before = current.get(row)
            if before is None or before.content != content:
                if before is not None:
                    before.end = at
                current[row] = Version(row, at, content)
                if content:
                    result.versions.append(current[row])
        if terminal.top != result.tops[-1][1]:
            result.tops.append((at, terminal.top))
        result.seconds = at
    return result


def picture(cast: Cast) -> str:
    """The SVG."""
    drawn = film(cast)
    width = round(cast.columns * CHARACTER + 2 * MARGIN)
    height = cast.rows * LINE + 2 * MARGIN
    lines = [text for version in drawn.versions for text in _line(version)]
    moves = "".join(
        f'<set attributeName="y" to="{-top * LINE}" begin="{at:.2f}s" fill="freeze"/>'
        for at, top in drawn.tops[1:]
    )
    colors = "".join(f".c{index}{{fill:{color}}}" for index, color in enumerate(PALETTE))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' xml:space="preserve" aria-label="Recording of {escape(cast.command)}">\n'
        f"<title>Recording of {escape(cast.command)}</title>\n"
        f"<style>text{{font:{FONT};fill:#e5e7eb;white-space:pre}}"
        ".b{font-weight:bold}.d{opacity:.65}.i{font-style:italic}.u{text-decoration:underline}"
        f"{colors}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#111827"/>\n'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{height - 2 * MARGIN}">'
        f'<svg overflow="visible" y="0">{moves}\n' + "\n".join(lines) + "\n</svg></svg></svg>\n"
    )


def _line(version: Version) -> Iterator[str]:
    """A line for its time: hidden before, and after if another follows."""
    spans, column = [], 0
    for style, group in groupby(version.content, key=lambda each: each[1]):
        text = "".join(character for character, _ in group)
        if text.strip():
            lead = len(text) - len(text.lstrip())
            x = f"{(column + lead) * CHARACTER:.1f}"
            spans.append(f'<tspan x="{x}"{_look(style)}>{escape(text.strip(), quote=False)}</tspan>')
        column += len(text)
    if not spans:
        return
    times = ""
    if version.start:
        times = f'<set attributeName="visibility" to="visible" begin="{version.start:.2f}s" fill="freeze"/>'
    if version.end is not None:
        times += f'<set attributeName="visibility" to="hidden" begin="{version.end:.2f}s" fill="freeze"/>'
    hidden = ' visibility="hidden"' if version.start else ""
    yield f'<text y="{version.row * LINE + 14}"{hidden}>{times}{"".join(spans)}</text>'


def _look(style: Style) -> str:
    names = [style.bold and "b", style.dim and "d", style.italic and "i", style.underline and "u"]
    names.append(f"c{style.color}" if style.color.isdigit() else "")
    classes = " ".join(name for name in names if name)
    fill = f' style="fill:{style.color}"' if style.color.startswith("#") else ""
    return (f' class="{classes}"' if classes else "") + fill
