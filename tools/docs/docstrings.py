r"""Docstrings of the source, written for Sphinx, as Markdown for the site: roles become links, formulas MathML.

>>> as_markdown("See :func:`prepare`, with ``x`` and :class:`~diff2.questions.question.Question`.")
'See [`prepare`][diff2.prepare], with `x` and [`Question`][diff2.Question].'
>>> as_markdown("Twice.\n\n>>> 1 + 1\n2\n\nEnd.")
'Twice.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd.'
>>> "<mi>&#x003BC;</mi>" in as_markdown(r"a :math:`\mu` of one")
True
"""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert
from tools.docs.api import path_of

import diff2

ROLE = re.compile(r":(func|class|meth|mod|attr|data):`(~?)([\w.]+)`")
BLOCK = re.compile(r"^( *)\.\. math::(.*\n(?:\1 +.*\n?|\n)*)", re.M)

DOCTEST = re.compile(r"^( *)>>> .*\n(?:\1\S.*\n|\1 +\S.*\n)*", re.M)  # up to the next empty line


def as_markdown(text: str, home: str = "") -> str:
    """Return a docstring in Markdown; ``home`` is the class that it is about, if any."""
    text = BLOCK.sub(lambda found: f"\n{found[1]}{_formula(found[2])}\n\n", text + "\n").rstrip("\n")
    text = re.sub(r":math:`([^`]*)`", lambda found: convert(_plain(found[1])), text)
    text = ROLE.sub(lambda found: _link(found[1], found[2], found[3], home), text)
    text = text.replace("``", "`")
    return DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n", text + "\n").rstrip(
        "\n"
    )


def _formula(source: str) -> str:
    several = "\\\\" in source and "\\begin" not in source
    latex = f"\\begin{{align*}}{source}\\end{{align*}}" if several else source
    return convert(_plain(latex), display="block")


def _plain(source: str) -> str:
    return " ".join(source.split()).replace(r"\tfrac", r"\frac").replace(r"\dfrac", r"\frac")


def _link(role: str, short: str, name: str, home: str) -> str:
    """Return a link to a public name or to a method of the same class; other names stay words."""
    bare = name.removeprefix("diff2.")
    last = bare.rpartition(".")[2]
    shown = last if short else name
    first, dot, rest = bare.partition(".")
    if first in diff2.__all__:
        return f"[`{shown}`][{path_of(first)}{dot}{rest}]"
    if last in diff2.__all__:
        return f"[`{shown}`][{path_of(last)}]"
    return f"[`{shown}`][{home}.{name}]" if role == "meth" and home else f"`{shown}`"


class Markdown(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_instance(self, *, obj: griffe.Object, **others: Any) -> None:
        """Rewrite the docstring of one module, class or function."""
        if obj.docstring is None:
            return
        home = obj.path if obj.is_class else obj.parent.path if obj.parent and obj.parent.is_class else ""
        obj.docstring.value = as_markdown(obj.docstring.value, home)
