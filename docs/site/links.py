"""Checks all links and fragments of a built site: links.py SITE.

Pages must also work offline: resources that a page loads (scripts, styles,
images) must not be on another host. Hyperlinks to other hosts are allowed and
not followed.
"""

import sys
from dataclasses import dataclass
from dataclasses import field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from urllib.parse import urlsplit

# The attribute with the address of a resource that browsers load, by tag.
LOADS = {
    "audio": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}


@dataclass
class Page(HTMLParser):
    """The anchors, links and loaded resources of one page.

    Attributes:
        names: Fragments that exist on the page.
        links: Targets of hyperlinks.
        loads: Addresses of resources that a browser loads.
    """

    names: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        for attribute, value in attrs:
            if attribute == "id" or (tag, attribute) == ("a", "name"):
                self.names.add(value or "")
            elif (tag, attribute) == ("a", "href"):
                self.links.append(value or "")
            elif attribute == LOADS.get(tag):
                self.loads.append(value or "")


def read(path: Path) -> Page:
    """Parses a page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(site: Path) -> list[str]:
    """Returns a line for every broken link, in order of pages."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        told = [
            (link, _trouble(site, pages, path, link)) for link in page.links
        ]
        for load in page.loads:
            elsewhere = "is loaded from another host" * _is_elsewhere(load)
            told += [(load, elsewhere or _trouble(site, pages, path, load))]
        name = path.relative_to(site)
        found += [f"{name}: {link} {why}" for link, why in told if why]
    return found


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _trouble(
    site: Path, pages: dict[Path, Page], path: Path, address: str
) -> str:
    """Returns why an address on a page is broken; "" if it is not."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    # "/..." starts at the site, as on the page for what is not found.
    start = site if parts.path.startswith("/") else path.parent
    target = path
    if parts.path:
        target = (start / unquote(parts.path).lstrip("/")).resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return "leads to no file"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].names:
        return f"leads to no #{fragment}"
    return ""


def main(site: str) -> int:
    """Prints broken links; returns 1 if there are any."""
    root = Path(site).resolve()
    pages = len(list(root.rglob("*.html")))
    if not pages:
        print(f"`site` must hold pages. Received: {site}", file=sys.stderr)
        return 2
    found = broken(root)
    print("\n".join([*found, f"{pages} pages, {len(found)} broken links"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
