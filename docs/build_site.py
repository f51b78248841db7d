"""Builds the site: python docs/build_site.py writes build/site, and fails on a warning or a link that leads nowhere.

The pages are laid out in build/docs first: the commands' help is added to their page (what all of them take once), and
what a page links to outside docs/ (an example, a test) is put beside it. Addresses of other hosts are not asked for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
LAID_OUT, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
COMMON = re.compile(r"\*\*Options of every command\*\*:\n\n(?P<options>.*?)\n*(?=\n## |\Z)", re.DOTALL)
OUTSIDE = re.compile(r"(?<=\]\()(?:\.\./)+[^)#\s]+")


def lay_out() -> None:
    """Writes build/docs. Raises SystemExit where a page links to a file that does not exist."""
    shutil.rmtree(LAID_OUT, ignore_errors=True)
    shutil.copytree(ROOT / "docs", LAID_OUT, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    from lengthen.cli import app

    helps = app.generate_docs()
    helps = helps[helps.index("## lengthen ") :]
    helps = re.sub(r"^Example: (.*)$", r"Example: `\1`", helps, flags=re.MULTILINE)
    common = COMMON.search(helps)
    assert common is not None, "the commands' help has no options of every command"
    with (LAID_OUT / "reference" / "commands.md").open("a", encoding="utf-8") as page_of_commands:
        page_of_commands.write(f"\n## Options of every command\n\n{common['options']}\n{COMMON.sub('', helps)}")
    for page in LAID_OUT.rglob("*.md"):
        source = ROOT / "docs" / page.relative_to(LAID_OUT)
        text = page.read_text(encoding="utf-8")
        page.write_text(OUTSIDE.sub(lambda link: beside(link[0], page, source), text), encoding="utf-8")  # noqa: B023


def beside(link: str, page: Path, source: Path) -> str:
    """The link from a laid out page to a copy of what `source` links to; links inside docs/ stay."""
    target = (source.parent / link).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link
    if not target.is_file():
        sys.exit(f"{source.relative_to(ROOT)} links to {link}, which does not exist.")
    copy = LAID_OUT / "files" / target.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(target, copy)
    return os.path.relpath(copy, page.parent)


class Links(HTMLParser):
    """What a built page shows and links to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.to: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in {"href", "src", "srcset"}:
                self.to.append(value)
            elif value and name in {"id", "name"}:
                self.anchors.add(value)


def dead_links() -> list[str]:
    """A line for each address inside the built site at which there is no file or no such anchor, or that no menu has."""
    pages = {page: Links(page) for page in SITE.rglob("*.html") if page.name != "404.html"}
    found, in_menu = [], {SITE / "index.html"}
    for page, links in pages.items():
        for link in links.to:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if page == SITE / "index.html":
                in_menu.add(target)
            no_anchor = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            if not target.is_file() or no_anchor:
                found.append(f"{page.relative_to(SITE)} links to {link}, where nothing is.")
    return found + [f"{page.relative_to(SITE)} is not in mkdocs.yml's nav." for page in pages if page not in in_menu]


def main() -> None:
    lay_out()
    shutil.rmtree(SITE, ignore_errors=True)
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT)
    if built.returncode:
        sys.exit("The site has not been built; what is wrong stands above.")
    if dead := dead_links():
        sys.exit("\n".join(dead))


if __name__ == "__main__":
    main()
