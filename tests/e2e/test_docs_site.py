"""The documentation site: whole, alone, and about the package as it is."""

import base64
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rs_keras import cli

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "docs" / "site"
ROOMS = {
    "rs_keras": "rs_keras",
    "trainers": "rs_keras.trainers",
    "export": "rs_keras.export",
    "serving": "rs_keras.serving",
}


def build(folder, config="mkdocs.yml"):
    """Builds as `make docs` does."""
    command = "-m mkdocs build --strict --config-file".split()
    return subprocess.run(
        [sys.executable, *command, str(config), "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; building says nothing, not even a warning."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def article(path):
    """A page's own part: what is not the frame of every page."""
    return re.search(r"<article.*</article>", path.read_text(), re.S)[0]


def text_of(html):
    """The words of some HTML, with single spaces."""
    texts = []
    parser = HTMLParser()
    parser.handle_data = texts.append
    parser.feed(html)
    return " ".join("".join(texts).split())


def prose_of(html):
    """The words of some HTML that stand outside of code."""
    return text_of(re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.S))


@pytest.fixture(scope="module")
def shown(site):
    """What the API's pages say of each name, up to the next one."""
    found = {}
    for path in sorted((site / "api").rglob("*.html")):
        pieces = re.split(r'<h\d id="(rs_keras[\w.]*)"', article(path))
        texts = map(text_of, pieces[2::2])
        found.update(zip(pieces[1::2], texts, strict=True))
    return found


def test_a_warning_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nowhere.md)")
    # The site's own settings, about another folder with the same machinery.
    text = (ROOT / "mkdocs.yml").read_text()
    settings = text[: text.index("\nnav:")].replace("docs/site/", f"{TOOLS}/")
    settings += "\nnav: [index.md, {Results: []}, {Examples: []}, {API: []}]\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr


# -- the API -----------------------------------------------------------------


def modules_with_names():
    found = []
    for folder, package in ROOMS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if re.search(r"^__all__\b", path.read_text(), re.M):
                inside = path.relative_to(ROOT / folder).with_suffix("")
                parts = [part for part in inside.parts if part != "__init__"]
                found.append(".".join([package, *parts]))
    return found


def test_modules_with_names_are_found():
    packages = {*ROOMS.values(), "rs_keras.bounds", "rs_keras.datasets"}
    assert packages <= set(modules_with_names())


@pytest.mark.parametrize("module", modules_with_names())
def test_every_public_name_is_shown_with_what_it_says(shown, module):
    home = importlib.import_module(module)
    parts = module.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for name in home.__all__:
        # The outermost package that has the name has its page.
        page = next(
            package
            for package in around
            if name in getattr(importlib.import_module(package), "__all__", ())
        )
        text = shown[f"{page}.{name}"]
        value = getattr(home, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            first = inspect.getdoc(value).split("\n\n")[0]
            words = " ".join(first.replace("`", "").split())
            assert words in text, f"{module}.{name}"


@pytest.mark.parametrize(
    "identifier",
    [
        "rs_keras.Certifier",
        "rs_keras.certify_dataset",
        "rs_keras.trainers.SmoothMix",
        "rs_keras.trainers.recipes.get",
        "rs_keras.export.export_certifier",
        "rs_keras.serving.CertificationClient",
    ],
)
def test_every_argument_is_shown_and_explained(shown, identifier):
    module, _, name = identifier.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    signature, explained = shown[identifier].split("Parameters:")
    for argument in inspect.signature(value).parameters:
        assert re.search(rf"\b{argument}\b", signature), argument
        assert re.search(rf"\b{argument} \(", explained), argument


def test_inherited_methods_are_shown_where_they_are_called(shown):
    assert "rs_keras.Certifier.sample" in shown
    assert "rs_keras.trainers.SmoothTrainer.losses_of" in shown
    assert "rs_keras.trainers.SmoothMix.losses_of" not in shown


def test_examples_formulas_and_references_are_markup(site):
    page = article(site / "api" / "rs_keras" / "trainers" / "SmoothMix.html")
    blocks = [
        text_of(block) for block in re.findall(r"<pre>.*?</pre>", page, re.S)
    ]
    assert any(block.startswith(">>> import keras") for block in blocks)
    assert any(block.startswith("x_mix = (1 - lam)") for block in blocks)
    links = re.findall(r'<li><a href="([^"]+)">', page)
    assert "https://arxiv.org/abs/2111.09277" in links


def test_no_docstring_is_mistaken_for_other_markup(site):
    for path in sorted((site / "api").rglob("*.html")):
        page = article(path)
        assert "<blockquote" not in page, path
        assert 'class="admonition' not in page, path
        assert ">>>" not in prose_of(page), path
        assert not re.search(r"<p>[^<]*\n- ", page), path


# -- the command line --------------------------------------------------------


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_is_documented_as_it_helps(site, command):
    page = article(site / "commands.html")
    section = re.search(rf'<h2 id="{command}".*?(?=<h2|</article>)', page, re.S)
    text = text_of(section[0])
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        cli.main([command, "--help"])
    helped = " ".join(said.getvalue().split())
    for flag in set(re.findall(r"--[a-z][a-z0-9-]*", helped)) - {"--help"}:
        assert flag in text
    for default in re.findall(r"\(default: [^)]*\)", helped):
        assert default in text
    assert helped.split("example: ")[1] in text


def test_exit_codes_are_documented(site):
    text = text_of(article(site / "commands.html"))
    assert "0 success 1 success, but the answer is no 2 an argument" in text
    assert "130 stopped" in text


# -- examples ----------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]),
    ids=lambda path: path.name,
)
def test_an_example_has_a_page_with_all_its_code(site, path):
    page = text_of(article(site / "examples" / f"{path.name}.html"))
    code = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(code)["cells"]
        code = "\n".join("".join(c["source"]) for c in cells[1:])
    lines = [" ".join(line.split()) for line in code.splitlines()]
    lines = [line for line in lines if re.match(r"(import|from|print)\b", line)]
    assert lines
    assert [line for line in lines if line not in page] == []
    assert (
        f'"examples/{path.name}.html"' in (site / "examples.html").read_text()
    )


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("programs")


def notebook(path, *cells):
    path.write_text(json.dumps({"cells": list(cells)}))


def test_a_notebook_keeps_what_its_cells_printed_and_drew(programs, tmp_path):
    said = {"cell_type": "markdown", "source": ["# Title\n", "\n", "It is. So"]}
    code = {
        "cell_type": "code",
        "source": ["show()"],
        "outputs": [
            {"output_type": "stream", "text": ["7\n", "8\n"]},
            {"output_type": "display_data", "data": {"image/png": "iVBOR\n"}},
            {"output_type": "execute_result", "data": {"text/plain": "9"}},
        ],
    }
    notebook(tmp_path / "one.ipynb", said, code)
    [found] = programs.read(tmp_path)
    assert (found.title, found.about) == ("One", "It is.")
    parts = ["show()", "7\n8", "base64,iVBOR)", "````text\n9\n````"]
    places = [found.markdown.index(part) for part in parts]
    assert places == sorted(places)


def test_a_formula_is_drawn_and_said(programs, tmp_path):
    text = "# T\n\nFor $p > 1/2$ it is\n$$R = \\frac{\\sigma}{2}$$"
    notebook(
        tmp_path / "one.ipynb", {"cell_type": "markdown", "source": [text]}
    )
    [found] = programs.read(tmp_path)
    assert re.findall(r'alt="([^"]*)"', found.markdown) == [
        "p &gt; 1/2",
        r"R = \dfrac{\sigma}{2}",
    ]
    assert "$" not in found.markdown
    for data in re.findall(r"base64,([^\"]+)", found.markdown):
        picture = ElementTree.fromstring(base64.b64decode(data))
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(picture.get("width").removesuffix("pt")) > 10


def test_a_formula_that_cannot_be_drawn_is_an_error(programs, tmp_path):
    text = "# T\n\nSee $\\nonsense{x}$."
    notebook(
        tmp_path / "one.ipynb", {"cell_type": "markdown", "source": [text]}
    )
    with pytest.raises(ValueError, match="nonsense"):
        list(programs.read(tmp_path))


# -- the rest ----------------------------------------------------------------


def test_pages_come_in_the_order_of_a_newcomer(site):
    home = (site / "index.html").read_text()
    sidebar = home[home.index("md-nav--primary") :]
    order = "index researcher certification choosing methods adding-a-method "
    order += (
        "serving cluster demo results examples glossary formats commands api "
        "changelog contributing"
    )
    places = [sidebar.index(f'"{name}.html"') for name in order.split()[1:]]
    assert places == sorted(places)


def test_the_home_page_has_what_the_readme_says(site):
    text = text_of(article(site / "index.html"))
    assert "make quickstart" in text
    assert "certifier.certify(images[:4], n=10_000, alpha=0.001)" in text
    assert "from README.md" not in (site / "index.html").read_text()


@pytest.fixture
def links():
    return runpy.run_path(str(TOOLS / "links.py"))


def test_every_link_of_the_site_leads_somewhere(site, links):
    assert links["broken"](site) == []


PAGE = '<h1 id="top">Top</h1><a href="{}">x</a>'


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("other.html", "leads to no file"),
        ("#nowhere", "leads to no #nowhere"),
        ("inside/two.html#nowhere", "leads to no #nowhere"),
        ("/two.html", "leads to no file"),
    ],
)
def test_a_broken_link_is_told(tmp_path, links, capsys, link, why):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "two.html").write_text(PAGE.format("../one.html"))
    (tmp_path / "one.html").write_text(PAGE.format(link))
    assert links["broken"](tmp_path) == [f"one.html: {link} {why}"]
    assert links["main"](str(tmp_path)) == 1
    assert "1 broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "link",
    ["", "#top", "inside/", "inside/index.html#a%20b", "/one.html#top"]
    + ["https://example.org/x#y", "mailto:someone@example.org"],
)
def test_a_sound_link_is_not_told(tmp_path, links, link):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "index.html").write_text('<i id="a b"></i>')
    (tmp_path / "one.html").write_text(PAGE.format(link))
    assert links["broken"](tmp_path) == []
    assert links["main"](str(tmp_path)) == 0


def test_what_is_loaded_from_another_host_is_told(tmp_path, links):
    page = '<script src="//cdn.example/x.js"></script><img src="data:,">'
    (tmp_path / "one.html").write_text(page)
    [told] = links["broken"](tmp_path)
    assert told == "one.html: //cdn.example/x.js is loaded from another host"


def test_no_pages_are_an_error(tmp_path, links):
    assert links["main"](str(tmp_path)) == 2


def test_search_works_from_a_file_and_nothing_else_is_asked(site, browser):
    said, asked = [], []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "api" / "rs_keras" / "Certifier.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("clopper")
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    assert "bounds.html" in first.get_attribute("href")
    page.close()
    assert said == []
    assert [url for url in asked if not url.startswith(site.as_uri())] == []
