"""HTML that cannot be broken out of: every text is escaped, and only what :func:`tag` has built is taken as it is.

>>> tag("p", "a < b", tag("b", "c"), class_="note")
'<p class="note">a &lt; b<b>c</b></p>'
"""

from html import escape

VOID = frozenset({"br", "meta"})
LONGEST = 2000  # characters of one text


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
