"""Hooks of mkdocs: pages and source files above docs/, anchors of GitHub, links of the repository."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from tools.docs.links import PROJECT_PAGES, ROOT, SOURCE, origin, page_text, place, source_text, targets


def on_config(config: MkDocsConfig) -> None:
    """Name headings as GitHub does, so that one anchor is right in both."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the pages above docs/, and a page for every other file that a page links to."""
    pages = [f"docs/{each.src_uri}" for each in files.documentation_pages()]
    for path, there in PROJECT_PAGES.items():
        files.append(File.generated(config, there, content=(ROOT / path).read_text(encoding="utf-8")))
        pages.append(path)
    linked = {found for path in pages for found in targets((ROOT / path).read_text(encoding="utf-8"), path)}
    for path in sorted(linked):
        there = place(path)
        if there.startswith(f"{SOURCE}/") and (ROOT / path).exists():
            files.append(File.generated(config, there, content=source_text(path)))
    llms = page_text((ROOT / "llms.txt").read_text(encoding="utf-8"), "llms.txt")
    files.append(File.generated(config, "llms.txt", content=llms))


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """The text of a page as the site shows it."""
    path = origin(page.file.src_uri)
    return markdown if path is None else page_text(markdown, path)


def on_page_content(html: str, **_: object) -> str:
    """The page with `|` in the cells of a table. Markdown needs a backslash there, and the site shows it."""
    return re.sub(r"<td[^>]*>.*?</td>", lambda cell: cell.group().replace("\\|", "|"), html, flags=re.DOTALL)
