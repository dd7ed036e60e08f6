"""HTML that cannot be broken out of: every text is escaped, and only what :func:`tag` has built is taken as it is.

>>> tag("p", "a < b", tag("b", "c"), class_="note")
'<p class="note">a &lt; b<b>c</b></p>'
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from .._numbers import epsilon_text

VOID = frozenset({"br", "meta"})
LONGEST = 2000  # characters of one text
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 150, 46, 8, 18, 24


class Markup(str):
    """HTML that is right already."""


def text(value: object) -> Markup:
    """Return a text as HTML; characters that cannot be seen are shown as numbers, so that none misleads.

    >>> text("<b>" + chr(0x202E))
    '&lt;b&gt;\\\\u202e'
    """
    if isinstance(value, Markup):
        return value
    found = str(value)
    found = found if len(found) <= LONGEST else f"{found[: LONGEST - 1]}…"
    return Markup(escape("".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in found)))


def join(*parts: object) -> Markup:
    """Return parts one after the other."""
    return Markup("".join(map(text, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; ``class_`` is written ``class``, and ``_`` in other attributes ``-``."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{words}>" + ("" if name in VOID else f"{join(*children)}</{name}>"))


def table(header: list[object], rows: list[list[object]], *, figures: bool = False) -> Markup:
    """Return a table; ``figures``: all columns but the first stand to the right. Others become a list on a phone."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in header)))
    body = [tag("tr", tag("th", row[0], scope="row"), *map(_cell, header[1:], row[1:])) for row in rows]
    found = tag("table", head, tag("tbody", *body), class_="figures" if figures else "stack")
    return tag("div", found, class_="wide")


def _cell(name: object, content: object) -> Markup:
    return tag("td", content, data_name=name or None) if content else tag("td", class_="empty")


def chart(path: Sequence[Sequence[float]], stated: Any) -> Markup:
    """Return epsilon by round as a picture: what was released, and what is stated; none for fewer than two rounds."""
    if len(path) < 2:
        return Markup("")
    first, last, top = path[0][0], path[-1][0], float(stated) or 1.0

    def place(r: float, epsilon: float) -> tuple[float, float]:
        across = (r - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return LEFT + across, HEIGHT - BOTTOM - min(epsilon / top, 1.0) * (HEIGHT - TOP - BOTTOM)

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(r, epsilon) for r, epsilon in path))
    floor, limit = HEIGHT - BOTTOM, TOP
    labels = [
        tag("text", epsilon_text(top), x=LEFT - 6, y=limit + 4, text_anchor="end"),
        tag("text", "0", x=LEFT - 6, y=floor + 4, text_anchor="end"),
        tag("text", f"{first:g}", x=LEFT, y=HEIGHT - 8),
        tag("text", f"{last:g}", x=WIDTH - RIGHT, y=HEIGHT - 8, text_anchor="end"),
        tag("text", "round", x=(LEFT + WIDTH - RIGHT) // 2, y=HEIGHT - 8, text_anchor="middle"),
        tag("text", "stated, for the whole plan", x=LEFT + 6, y=limit - 5),
    ]
    picture = tag(
        "svg",
        tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor),
        tag("line", class_="limit", x1=LEFT, x2=WIDTH - RIGHT, y1=limit, y2=limit),
        tag("polyline", class_="path", points=points),
        *labels,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label="epsilon of what was released, by round",
    )
    return tag("figure", picture, tag("figcaption", "epsilon of what was released by then, which is not a guarantee"))
