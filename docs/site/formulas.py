"""Formulas of notebooks as pictures: pages need no script to show them."""

import base64
import html
import io
import re

from matplotlib import rc_context
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image

DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.S)
INLINE = re.compile(r"\$([^$]+)\$")
# In points. Only ratios to it are used: formulas are as large as the text.
SIZE = 12
LOOK = {
    "mathtext.fontset": "cm",
    "savefig.transparent": True,
    "svg.fonttype": "path",
}


def drawn(markdown: str) -> str:
    """Returns Markdown in which `$...$` and `$$...$$` are pictures.

    Raises:
        ValueError: If a formula has what Matplotlib cannot set.
    """
    markdown = DISPLAYED.sub(_displayed, markdown)
    return INLINE.sub(lambda m: _picture(m[1]), markdown)


def _displayed(match: re.Match[str]) -> str:
    latex = match[1].replace(r"\frac", r"\dfrac")
    return f"\n{_picture(latex)}\n"


def _picture(latex: str) -> str:
    latex = " ".join(latex.split())
    file = io.BytesIO()
    with rc_context(LOOK):
        font = FontProperties(size=SIZE)
        depth = math_to_image(f"${latex}$", file, font, format="svg")
    picture = file.getvalue()
    found = re.search(rb'<svg [^>]*?height="([\d.]+)pt"', picture, re.S)
    if found is None:
        raise ValueError(f"`latex` must draw something. Received: {latex!r}")
    style = f"height:{float(found[1]) / SIZE:.3f}em;"
    style += f"vertical-align:{-depth / SIZE:.3f}em"
    data = base64.b64encode(picture).decode()
    return (
        f'<img class="formula" alt="{html.escape(latex)}" style="{style}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
