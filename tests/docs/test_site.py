"""The documentation site: its navigation has every page in the order of docs/index.md, its links are those of the
repository, and its build is strict and needs no network.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import markdown
import pytest
import yaml
from markdown_it import MarkdownIt

from tests.ui.chromium import Chromium, program
from tools.docs.hooks import on_page_content
from tools.docs.layout import too_wide
from tools.docs.links import PROJECT_PAGES, ROOT, origin, page_text, place, source_text, targets
from trainfleet.errors import MissingToolError

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def pages_of(entry: Any) -> list[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    return [
        page for each in (entry.values() if isinstance(entry, dict) else entry) for page in pages_of(each)
    ]


def index_order(audience: str) -> list[str]:
    """The pages of docs/ that docs/index.md lists for an audience, in order."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {audience}\n")[2].partition("\n## ")[0]
    return list(dict.fromkeys(place(each) for each in targets(section, "docs/index.md")))


def test_the_navigation_has_every_page_once() -> None:
    found = Counter(pages_of(CONFIG["nav"]))
    assert [page for page, times in found.items() if times > 1] == []
    assert set(found) == PAGES | set(PROJECT_PAGES.values())


@pytest.mark.parametrize("audience", ["Platform engineers", "ML engineers"])
def test_the_navigation_has_the_order_of_the_index(audience: str) -> None:
    (section,) = [each[audience] for each in CONFIG["nav"] if audience in each]
    listed, shown = index_order(audience), pages_of(section)
    assert len(shown) > 8
    own = [page for page in shown if str(Path(page).parent / "README.md") not in listed or page in listed]
    assert set(own) - set(listed) == set(), "neither docs/index.md nor its folder's README.md lists these"
    assert own == [page for page in listed if page in own]


def test_every_page_is_reached_by_links_from_the_readme() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        path = waiting.pop()
        if path not in reached and path.endswith(".md"):
            reached.add(path)
            waiting += targets((ROOT / path).read_text(encoding="utf-8"), path)
    assert {f"docs/{page}" for page in PAGES} - reached == set()


def test_the_site_names_no_other_host() -> None:
    files = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.js"), *(ROOT / "docs").rglob("*.css")]
    assert len(files) > 2
    assert [
        file.name for file in files if "//" in re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M)
    ] == []


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("docs/diff.md", "[a](policies.md#levels)", "[a](policies.md#levels)"),
        ("docs/diff.md", "[a](../README.md#train)", "[a](project/overview.md#train)"),
        ("docs/first-apply/aws.md", "[a](../clouds.md)", "[a](../clouds.md)"),
        ("docs/diff.md", "[`p`](../infra/platform.py)", "[`p`](source/infra/platform.py.md)"),
        ("docs/layer.md", "[v](../infra/kubernetes/values)", "[v](source/infra/kubernetes/values/index.md)"),
        ("README.md", "![d](docs/images/diff.png)", "![d](../images/diff.png)"),
        ("README.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        (
            "README.md",
            "[a](https://example.com/x.md) [b](#train)",
            "[a](https://example.com/x.md) [b](#train)",
        ),
        ("README.md", "`[a](docs/diff.md)`", "`[a](docs/diff.md)`"),
        ("README.md", "<!-- run: ci -->\n```sh\n# <!-- kept -->\n```\n", "```sh\n# <!-- kept -->\n```\n"),
        ("README.md", "Check <!-- figure: a -->79<!-- /figure --> policies", "Check 79 policies"),
    ],
)
def test_links_lead_to_the_places_of_the_site_and_comments_are_not_shown(
    path: str, text: str, shown: str
) -> None:
    assert page_text(text, path) == shown


@pytest.mark.parametrize("path", ["README.md", "docs/index.md", "docs/first-apply/aws.md"])
def test_a_page_of_the_site_knows_its_file(path: str) -> None:
    assert origin(place(path)) == path


def test_a_source_page_fences_what_has_fences(tmp_path: Path) -> None:
    assert "\n````markdown\n" in source_text("README.md")


class Elements(HTMLParser):
    """Counts the elements of the content of a page, and collects what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.counts: Counter[str] = Counter()
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.inside |= tag == "article"
        if self.inside:
            self.counts[tag] += 1
        is_loaded = tag in ("script", "img", "iframe", "source") or values.get("rel") in (
            "stylesheet",
            "icon",
            "preconnect",
        )
        if is_loaded and (target := values.get("src") or values.get("href")):
            self.loaded.append(target)

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"


def counted(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    return found


SEARCH = """
const field = document.querySelector("input.md-search__input")
field.focus()
field.value = "protected-from-deletion"
field.dispatchEvent(new Event("keyup", { bubbles: true }))
"""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map((each) => each.href)"
PLANTED = """# Planted

[page](no-such-page.md) [heading](diff.md#no-such-heading) [file](../no-such-file.py)
"""
COMMONMARK = MarkdownIt("commonmark").enable("table")
COMPARED = ("h1", "h2", "h3", "table", "tr", "li", "blockquote", "img")


def site_html(text: str, path: str) -> str:
    """A page of the repository as mkdocs renders it, without highlighting."""
    extensions = [
        each if isinstance(each, str) else next(iter(each)) for each in CONFIG["markdown_extensions"]
    ]
    plain = {"pymdownx.highlight": {"use_pygments": False}}
    return on_page_content(
        markdown.markdown(page_text(text, path), extensions=extensions, extension_configs=plain)
    )


def test_a_pipe_in_a_cell_is_shown_without_the_backslash_that_markdown_needs() -> None:
    page = site_html("| a | b |\n|---|---|\n| `X\\|Y` | x \\| y |\n\n`A\\|B`\n", "docs/index.md")
    assert "<code>X|Y</code>" in page
    assert "x | y" in page
    assert r"<code>A\|B</code>" in page


@pytest.mark.parametrize("there", sorted(PAGES | set(PROJECT_PAGES.values())))
def test_the_site_shows_the_lists_tables_and_headings_that_the_repository_shows(there: str) -> None:
    path = origin(there)
    assert path
    text = re.sub(r"\A---\n.*?\n---\n", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)
    expected = counted(f"<article>{COMMONMARK.render(text)}</article>").counts
    shown = counted(f"<article>{site_html(text, path)}</article>").counts
    assert {tag: shown[tag] for tag in COMPARED} == {tag: expected[tag] for tag in COMPARED}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A clone with a page that has three wrong links and is not in the navigation, and its build."""
    clone = tmp_path_factory.mktemp("site") / "trainfleet"
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, clone], check=True)
    (clone / "docs" / "planted.md").write_text(PLANTED)
    command = [sys.executable, "-m", "mkdocs", "build"]
    environment = os.environ | {"PYTHONPATH": str(clone)}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    return clone, done


Built = tuple[Path, "subprocess.CompletedProcess[str]"]


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_the_build_is_strict_and_finds_nothing_but_what_was_planted(built: Built) -> None:
    _, done = built
    warnings = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert done.returncode != 0
    for each in ("no-such-page.md", "#no-such-heading", "no-such-file.py"):
        assert [line for line in warnings if each in line and "planted.md" in line], done.stderr
    assert [line for line in warnings if "planted.md" not in line and "not included in the" not in line] == []
    assert "  - planted.md" in done.stderr
    assert (
        "Aborted with 4 warnings in strict mode" in done.stdout + done.stderr
    )  # depends on the version of click


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_page_loads_nothing_from_another_host_and_shows_no_marker(built: Built) -> None:
    pages = list((built[0] / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert [each for each in counted(html).loaded if "//" in each] == [], page
        assert not re.search(r"<!-- (?:not )?run:|<!-- f", html), page


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_no_page_is_wider_than_a_phone_or_a_desktop_window(built: Built) -> None:
    try:
        wide = too_wide(built[0] / "site")
    except MissingToolError as error:
        pytest.skip(str(error))
    assert wide == []


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.skipif(program() is None, reason="needs chromium")
@pytest.mark.parametrize("opened", ["served", "as files"])
@pytest.mark.parametrize("page", ["index.html", "first-apply/aws.html"])
def test_the_search_finds_pages(built: Built, tmp_path: Path, opened: str, page: str) -> None:
    site = built[0] / "site"
    handler = functools.partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, Chromium(tmp_path / "profile") as chromium:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}" if opened == "served" else site.as_uri()
        chromium.open(1280, 900)
        chromium.go(f"{base}/{page}")
        chromium.evaluate(SEARCH)
        deadline = time.monotonic() + 60
        while not (found := chromium.evaluate(FOUND)):
            assert time.monotonic() < deadline, chromium.logged_errors()
            time.sleep(0.2)
        server.shutdown()
    assert all(each.startswith(base) for each in found)
    assert any("policies" in each for each in found)
    assert chromium.logged_errors() == []


@pytest.mark.deep
def test_a_page_that_is_wider_than_a_phone_is_found(tmp_path: Path) -> None:
    (tmp_path / "wide.html").write_text(
        "<!doctype html><article><div style='width: 600px'>wide</div></article>"
    )
    (tmp_path / "narrow.html").write_text("<!doctype html><article>narrow</article>")
    try:
        wide = too_wide(tmp_path)
    except MissingToolError as error:
        pytest.skip(str(error))
    assert [line.partition(" px wide")[0] for line in wide] == ["wide.html at 390 px: 608"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["narrow.html", "wide.html"]
