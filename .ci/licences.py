"""Prints docs/dependencies.md: what the package needs, under which licences.

The names are those of requirements.lock; licences are what the metadata of the
installed packages says. `make licences` writes the page.
"""

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# Dependencies and their licences

`pip install` brings the packages that are needed to run; `make setup` installs
those that are needed to develop, too. The licences are what each package says
of itself (SPDX names where it gives them). `make licences` makes this page from
the packages in `requirements.lock`.

| package | licence | needed to |
| --- | --- | --- |
"""
# Packages that name their licence in a file alone, and what it is.
IN_A_FILE = {"namex": "Apache-2.0", "simple-parsing": "MIT"}


def locked() -> dict[str, str]:
    """Returns what each locked package is needed to do: {name: verb}."""
    run, develop = (
        (ROOT / "requirements.lock").read_text().split("# For development")
    )
    return {
        name: verb
        for verb, part in (("run", run), ("develop", develop))
        for name in re.findall(r"^([\w.-]+)==", part, re.M)
    }


def licence(name: str) -> str:
    """Returns the licence of an installed package, in a few words."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    listed = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier", [])
        if text.startswith("License ::") and text.count("::") > 1
    ]
    # Some packages put the whole text where a name belongs.
    stated = (about.get("License") or "").strip()
    if "\n" in stated or len(stated) > 60:
        stated = ""
    found = ", ".join(sorted(listed)) or stated or IN_A_FILE.get(name)
    if not found:
        raise SystemExit(f"{name} names no licence: add it to IN_A_FILE")
    return found


def page() -> str:
    """Returns the page in Markdown."""
    rows = [
        f"| {name} | {licence(name)} | {verb} |"
        for name, verb in sorted(
            locked().items(), key=lambda item: item[0].lower()
        )
    ]
    return HEADER + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
