"""Hooks that mkdocs calls to generate pages from other sources.

A comment `<!-- from README.md: Train -->` in a page is replaced by that section
of the README, `<!-- commands -->` by the command line, `<!-- api -->` by an
index of the API, `<!-- formulas -->` by the methods' losses and
`<!-- examples -->` by a list of examples/. CHANGELOG.md, CONTRIBUTING.md and
their like, the results, the model cards and each example become pages.
"""

import atexit
import logging
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import api
import commands
import programs
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from mkdocs.structure.files import Files

# Print warnings only. (With --quiet, --strict would not see them.)
logging.getLogger("mkdocs").setLevel(logging.WARNING)

ROOT = Path(__file__).resolve().parents[2]
CARDS = sorted((ROOT / "rs_keras" / "data" / "pretrained").glob("*.md"))
# Files of the tree that become pages unchanged.
WHOLE = {
    "changelog.md": ROOT / "CHANGELOG.md",
    "code-of-conduct.md": ROOT / "CODE_OF_CONDUCT.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "security.md": ROOT / "SECURITY.md",
    "results.md": ROOT / "results" / "README.md",
    **{f"pretrained/{card.name}": card for card in CARDS},
}
# Targets on the site of links in these files and in the README.
MOVED = {
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "docs/": "",
    "examples/README.md": "examples.md",
    "results/README.md": "results.md",
    "rs_keras/data/pretrained/": "pretrained/",
}
FROM_README = re.compile(r"<!-- from README\.md: (.+?) -->")
# A name of the package in running text, neither linked nor in a block.
NAME = re.compile(
    r"<code>(rs_keras(?:\.\w+)+|[A-Z]\w+(?:\.\w+)*)</code>(?!</a>)"
)
_pages: list[api.Page] = []
_programs: list[programs.Program] = []


@event_priority(100)  # before mkdocstrings reads where the sources are
def on_config(config: Any) -> Any:
    """Copies the package; adds generated pages to the navigation."""
    sources = Path(tempfile.mkdtemp(prefix="rs-keras-docs-"))
    atexit.register(shutil.rmtree, sources)
    api.lay_out(sources)
    _pages[:] = api.pages(sources)
    _python_handler(config)["paths"] = [str(sources)]
    _section(config, "Results").extend(
        {card.stem: f"pretrained/{card.name}"} for card in CARDS
    )
    _programs[:] = programs.read(ROOT / "examples")
    _section(config, "Examples").extend({p.title: p.path} for p in _programs)
    groups: dict[str, list[dict[str, str]]] = {}
    for page in _pages:
        groups.setdefault(page.group, []).append({page.title: page.path})
    _section(config, "API").extend({name: groups[name]} for name in groups)
    return config


def _section(config: Any, name: str) -> Any:
    [section] = (entry[name] for entry in config.nav if name in entry)
    return section


def _python_handler(config: Any) -> Any:
    return config.plugins["mkdocstrings"].config.handlers["python"]


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, which are not in docs/."""
    made = {
        path: _as_page(source.read_text()) for path, source in WHOLE.items()
    }
    made |= {page.path: page.markdown() for page in _pages}
    made |= {program.path: program.markdown for program in _programs}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Replaces the comments by README sections, commands and API."""
    markdown = FROM_README.sub(lambda m: readme_section(m[1]), markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands.page())
    if "<!-- examples -->" in markdown:
        listed = programs.index(_programs)
        markdown = markdown.replace("<!-- examples -->", listed)
    if "<!-- api -->" in markdown or "<!-- formulas -->" in markdown:
        package = api.load(Path(_python_handler(config)["paths"][0]))
        markdown = markdown.replace("<!-- formulas -->", api.formulas(package))
        index = api.index(_pages, package)
        markdown = markdown.replace("<!-- api -->", index)
    return markdown


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Hides the sidebars on wide pages."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri == "results.md":
        page.meta["hide"] = ["navigation", "toc"]
    return context


def on_page_content(html: str, **_: Any) -> str:
    """Links names of the package to their API pages."""
    return NAME.sub(_linked, html)


def _linked(match: re.Match[str]) -> str:
    first, *rest = match[1].split(".")
    known = {page.title: page.identifier for page in _pages if page.is_a_name}
    if first == "rs_keras":
        identifier = match[1]
    elif first in known:
        identifier = ".".join([known[first], *rest])
    else:
        return match[0]
    return f'<autoref optional identifier="{identifier}">{match[0]}</autoref>'


def readme_section(title: str) -> str:
    """Returns a section of the README; its title gives the introduction."""
    text = (ROOT / "README.md").read_text().removeprefix("# ")
    parts = (part.split("\n", 1) for part in text.split("\n## "))
    sections = {heading: body for heading, body in parts}
    if title not in sections:
        raise ValueError(
            f"`title` must be a section of the README. Received: {title!r}"
        )
    return _as_page(sections[title]).strip()


def _as_page(text: str) -> str:
    """Rewrites links relative to the root of the tree to pages."""
    for source, page in MOVED.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text
