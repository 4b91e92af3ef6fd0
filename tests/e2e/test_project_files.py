"""Files about the project: containers, CI, templates, guides, the changelog."""

import json
import os
import re
import shlex
import subprocess
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import jsonschema
import nbformat
import pytest
import yaml

import rs_keras
from rs_keras.cli import make_parser

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
GUIDES = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT")]
GUIDES += [ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY")]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))

named = pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)


def schema(name):
    shipped = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    return json.loads((shipped / f"{name}.json").read_text())


def make_targets(text):
    """Returns the targets of each `make` in a script, variables left out."""
    calls = re.findall(
        r"(?:^|`|run: )\s*make ((?:[\w-]+ ?)+)(?![\w=])", text, re.M
    )
    return {target for call in calls for target in call.split()}


# -- CI ----------------------------------------------------------------------


def steps(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_valid_and_run_what_exists(path):
    text = path.read_text()
    # YAML 1.1 takes `on` for a boolean.
    loaded = yaml.safe_load(text.replace("\non:", '\n"on":'))
    jsonschema.validate(loaded, schema("github-workflows"))
    assert loaded["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in loaded["jobs"].values())
    for step in steps(path):
        # Actions of others would need a hash.
        assert step.get("uses", "actions/").startswith("actions/")
        for word in shlex.split(step.get("run", "true"))[:1]:
            if word != "make" and word != "true":
                assert os.access(ROOT / word, os.X_OK), word
    assert make_targets(text) <= TARGETS


def test_ci_runs_on_every_python_that_is_supported():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    assert ".ci/run" in [step.get("run") for step in jobs["all"]["steps"]]
    matrix = jobs["all"]["strategy"]["matrix"]["python"]
    setup = (ROOT / "setup.py").read_text()
    assert matrix == re.findall(r"Python :: (3\.\d+)", setup)


def test_the_merge_check_runs_targets_that_exist():
    found = make_targets((ROOT / ".ci" / "run").read_text())
    assert {"setup", "lint", "types", "docs", "wheel", "test"} == found
    assert found <= TARGETS


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    listed = set(re.findall(r'@echo "make ([\w-]+) ', makefile))
    [phony] = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)
    silent = {"help", "setup", "format", "clean"}
    assert listed == set(phony.split()) - silent
    assert set(phony.split()) <= TARGETS


def test_commits_are_checked_as_make_lint_checks():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    [repository] = config["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    makefile = (ROOT / "Makefile").read_text()
    [recipe] = re.findall(r"^lint: setup\n((?:\t.*\n)+)", makefile, re.M)
    assert [entry.replace("--force-exclude", ".") for entry in entries] == [
        line.strip().replace("$(BIN)", ".venv/bin")
        for line in recipe.splitlines()
    ]
    for hook in repository["hooks"]:
        assert {"id", "name", "language", "types_or"} <= set(hook)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_valid(path):
    loaded = yaml.safe_load(path.read_text())
    jsonschema.validate(loaded, schema("github-issue-forms"))


def test_the_choice_of_issue_forms_is_valid():
    path = GITHUB / "ISSUE_TEMPLATE" / "config.yml"
    loaded = yaml.safe_load(path.read_text())
    jsonschema.validate(loaded, schema("github-issue-config"))


def test_the_citation_is_valid():
    loaded = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    jsonschema.validate(loaded, schema("citation-file-format"))


# -- the container -----------------------------------------------------------


def instructions():
    """Yields (instruction, words) for each line of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, rest = line.split(maxsplit=1)
            yield name, rest.split()


def is_in_the_context(path):
    """Says whether .dockerignore lets a file of the tree through."""
    taken = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = rule.removeprefix("!").rstrip("/")
        if rule and rule[0] != "#" and fnmatch(path, pattern):
            taken = rule.startswith("!")
    return taken


def test_the_image_copies_what_exists_and_is_in_its_context():
    for name, words in instructions():
        if name == "COPY" and not words[0].startswith("--from"):
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
                assert is_in_the_context(source), source
    assert not is_in_the_context(".git")
    assert not is_in_the_context("tests")


def test_the_image_has_every_file_that_setup_needs():
    copied = {
        word
        for name, words in instructions()
        if name == "COPY"
        for word in words
    }
    setup = (ROOT / "setup.py").read_text()
    rooms = re.findall(r'^    "rs_keras[\w.]*": "(\w+)",$', setup, re.M)
    assert len(rooms) == 4
    assert {*rooms, "setup.py", "pyproject.toml", "README.md"} <= copied


def test_the_image_runs_as_a_user_that_is_not_root():
    names = [name for name, _ in instructions()]
    assert set(names) <= set(
        "FROM WORKDIR ENV RUN COPY USER EXPOSE ENTRYPOINT CMD".split()
    )
    [user] = [words for name, words in instructions() if name == "USER"]
    assert int(user[0]) > 0
    assert names.index("USER") > len(names) - 1 - names[::-1].index("RUN")
    [entry] = [words for name, words in instructions() if name == "ENTRYPOINT"]
    assert (
        f"{json.loads(' '.join(entry))[0]} = "
        in (ROOT / "setup.py").read_text()
    )


def test_the_image_installs_the_locked_files_that_are_needed_to_run():
    assert "\n# For development\n" in (ROOT / "requirements.lock").read_text()
    text = (ROOT / "Dockerfile").read_text()
    assert "'/^# For development/,$d'" in text
    assert "--require-hashes" in text


def test_the_commands_of_the_image_are_understood():
    text = (ROOT / "Dockerfile").read_text().replace("\\\n#", "")
    calls = re.findall(r"^# .*docker run .* rs-keras +(.+)$", text, re.M)
    assert len(calls) == 3
    for call in calls:
        words = shlex.split(call)
        assert make_parser().parse_args(words).command == words[0]


# -- guides ------------------------------------------------------------------


@named
def test_links_of_guides_lead_somewhere(path):
    text = path.read_text()
    for target, _, heading in re.findall(
        r"\]\((?!https?:)([^)#\s]+)(#([^)\s]+))?\)", text
    ):
        assert (ROOT / target).exists(), target
        words = heading.replace("-", "[ -]")
        found = re.search(
            rf"^#+ {words}$", (ROOT / target).read_text(), re.M | re.I
        )
        assert found or not heading, heading


@named
def test_paths_and_targets_of_guides_exist(path):
    text = path.read_text()
    if path.stem == "CHANGELOG":
        return
    assert make_targets(text) <= TARGETS
    code = re.findall(
        r"`([\w.]+/[\w./]*|[\w.]+\.(?:md|py|yml|cff|lock))`", text
    )
    for name in code:
        if name.startswith("site/"):  # Made by `make docs`.
            continue
        assert (ROOT / name).exists(), name


def test_the_first_change_is_described_with_what_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    part = text.split("## Ten minutes to a first change\n")[1].split("\n## ")[0]
    commands = [
        line.split("#")[0].strip()
        for line in part.splitlines()
        if line.startswith("    ")
    ]
    assert len(commands) == 3
    for command in commands:
        first, *rest = command.split()
        if first == "make":
            assert set(rest) <= TARGETS
        else:
            assert (ROOT / rest[-1]).exists()
    # The words of the error that a newcomer may change are tested there.
    [module] = re.findall(r"in `(rs_keras/\w+\.py)`", part)
    test = next(word for word in part.split() if word.endswith("test_rows.py"))
    assert "needs pandas" in (ROOT / module).read_text()
    assert "pandas" in (ROOT / test).read_text()


@pytest.mark.parametrize("name", ["PULL_REQUEST_TEMPLATE.md"])
def test_the_template_of_pull_requests_names_targets_that_exist(name):
    found = make_targets((GITHUB / name).read_text())
    assert found and found <= TARGETS


# -- releases ----------------------------------------------------------------

PARTS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_changelog_is_in_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    title, *releases = re.split(r"^## ", text, flags=re.M)
    assert title.startswith("# Changelog\n")
    assert releases[0].startswith("Unreleased\n")
    versions = []
    for release in releases[1:]:
        heading = release.split("\n")[0]
        found = re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", heading)
        assert found, heading
        versions.append([int(number) for number in found[1].split(".")])
    assert versions == sorted(versions, reverse=True)
    for release in releases:
        parts = re.findall(r"^### (.+)$", release, re.M)
        assert parts == [part for part in PARTS if part in parts]


def tag(name):
    return subprocess.run(
        [ROOT / ".ci" / "tag", name], capture_output=True, text=True
    )


def test_a_release_is_tagged_with_its_version():
    version = rs_keras.__version__
    assert tag(f"v{version}").returncode == 0
    wrong = tag("v9.9.9")
    assert wrong.returncode == 1
    assert f"v{version}. Received: v9.9.9" in wrong.stderr


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_a_notebook_says_first_what_to_install(path):
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    assert "`pip install ." in first.source
