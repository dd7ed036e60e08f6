"""The report as one page: no network, no scripts, light and dark, on a phone, and on two sheets of A4.

The page is a function of the facts (``facts.py``). It shortens and rounds, to the safe side, and adds nothing.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._numbers import epsilon_text
from .markup import Markup, chart, join, table, tag, text

Facts = Mapping[str, Any]
STYLE = Path(__file__).with_name("page.css")  # on a screen of any width, light and dark, and on paper
NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'"
MOST_COLUMNS, MOST_NAMES, MOST_VALUES, MOST_LEAKS, MOST_RUNS, MOST_FILES = 10, 6, 5, 6, 6, 9
LONG = (5, 8, 9)  # parts that may go on on the next sheet
MARKS = {True: ("✓", "checked"), False: ("–", "not checked")}
SIGN_OFF = (
    "The bounds, lists and sizes in parts 2 and 5 are public knowledge.",
    "The unit of protection (part 2) is the right one.",
    "All other uses of these records are known (part 8).",
    "Only files marked “share” (part 9) leave.",
)


def page(facts: Facts) -> str:
    """Return the page as HTML."""
    verdict = facts["verdict"]
    body = [_bar(facts)]
    if "guarantee" in facts:
        parts = (_guarantee, _checks, _releases, _columns, _quality, _health, _project, _files, _sign_off)
        body.append(tag("main", *(part(facts) for part in parts)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=NO_NETWORK),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{facts['run']}: {verdict['words']}"),
        tag("style", Markup(STYLE.read_text(encoding="utf-8"))),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def up(share: Any) -> str:
    """Return a share in per cent with one decimal, rounded up.

    >>> up(0.0123), up(1.0)
    ('1.3 %', '100 %')
    """
    return f"{math.ceil(float(share) * 1000 - 1e-9) / 10:g} %"


def number(value: Any) -> str:
    """Return an epsilon from a document, where infinity is a word."""
    return epsilon_text(float(value))


def _section(place: int, title: str, *children: object, wide: bool = False) -> Markup:
    heading = tag("h2", tag("span", place, class_="place"), title)
    kind = "whole table" if wide and place in LONG else "whole" if wide else None
    return tag("section", heading, *children, class_=kind)


def _bar(facts: Facts) -> Markup:
    verdict, guarantee = facts["verdict"], facts.get("guarantee")
    lines: list[object] = [tag("p", facts["run"], class_="run"), tag("h1", verdict["words"])]
    if guarantee is not None:
        stated = f"epsilon {number(guarantee['epsilon'])} at delta {guarantee['delta']:g} for {guarantee['protected']}"
        lines.append(tag("p", stated, class_="stated"))
    for reason in [verdict["reason"], *verdict.get("leaks", [])[:MOST_LEAKS]]:
        if reason:
            lines.append(tag("p", reason))
    if guarantee is not None:
        lines.append(tag("p", f"{facts['algorithm']} · {facts['version']} · {facts['time']}", class_="small"))
    return tag("header", *lines, class_=verdict["colour"])


def _guarantee(facts: Facts) -> Markup:
    found = facts["guarantee"]
    units = {"record": "records", "group": "groups", "client": "clients"}[found["unit"]]
    rows: list[list[object]] = [
        [f"{row['units']} {units[:-1] if row['units'] == 1 else units}", *map(number, row["epsilon"])]
        for row in found["groups"]
    ]
    header: list[object] = ["protected together", *(f"delta {delta:g}" for delta in found["deltas"])]
    guesses: list[list[object]] = [[up(one["false_positives"]), up(one["true_positives"])] for one in found["guesses"]]
    adjacency = found["adjacency"].replace("-", " ")
    clients = f"{found['clients']} client{'' if found['clients'] == 1 else 's'}"
    terms = [
        ("unit", f"{found['unit']}; {found['records']:,} records of {clients}, a public number"),
        ("adjacency", adjacency),
        ("trusted", found["trusted"]),
        ("not protected", "; ".join(found["not_protected"])),
    ]
    words = tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in terms))
    return _section(
        2,
        "The guarantee",
        tag("p", found["sentence"], class_="sentence"),
        tag(
            "div",
            tag("div", tag("h3", "epsilon"), table(header, rows, figures=True)),
            tag(
                "div",
                tag("h3", "best guess at who is in the data"),
                table(["false alarms", "found at most"], guesses, figures=True),
            ),
            words,
            class_="three",
        ),
        wide=True,
    )


def _checks(facts: Facts) -> Markup:
    rows = []
    for check in facts["checks"]:
        mark, word = MARKS[check["done"]]
        sign = tag("span", mark, class_="mark", title=word, role="img", aria_label=word)
        reason = [tag("span", f": {check['reason']}", class_="soft")] if check["reason"] else []
        rows.append(tag("li", sign, tag("span", check["what"], *reason)))
    return _section(3, "Checks", tag("ul", *rows, class_="checks"))


def _releases(facts: Facts) -> Markup:
    found = facts["releases"]
    rows: list[list[object]] = [[*purpose_cells(row)] for row in found["purposes"]]
    planned = "" if found["planned"] is None else f" of {found['planned']:,} planned"
    return _section(
        4,
        "What was released",
        tag("p", f"{found['made']:,} releases{planned}."),
        table(["purpose", "count", "noise multiplier", "epsilon alone"], rows, figures=True),
        chart(found["path"], facts["guarantee"]["epsilon"]),
    )


def purpose_cells(row: Facts, digits: int = 4) -> list[str]:
    """Return the releases of one purpose in words: what, how often, with which noise multiplier, the price alone."""
    name = row["purpose"] if row["mechanism"] == "gaussian" else f"{row['purpose']} ({row['mechanism']})"
    if row["sampling"] != "full":
        name += f" ({row['sampling']} batches, rate {float(row['rate']):.3g})"
    low, high = (f"{float(row[end]):.{digits}g}" for end in ("multiplier_min", "multiplier_max"))
    return [name, f"{row['count']:,}", low if low == high else f"{low} to {high}", number(row["epsilon_alone"])]


def _columns(facts: Facts) -> Markup:
    found = facts["columns"]
    if found is None:
        return _section(5, "Columns", tag("p", "Not stated: the records came as arrays, without names."), wide=True)
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        key = one["role"], one["kind"], _range(one), one["source"], one["encoding"]
        alike.setdefault(key, []).append(one["name"])
    rows: list[list[object]] = [[_shortened(names, MOST_NAMES), *key] for key, names in alike.items()]
    rest = len(rows) - MOST_COLUMNS
    drop = f" Left out by name: {_shortened(facts['dropped'], MOST_NAMES)}." if facts["dropped"] else ""
    more = f" {rest} more kinds of columns are in the JSON document." if rest > 0 else ""
    return _section(
        5,
        "Columns",
        table(["column", "role", "kind", "public bounds", "from", "encoding"], rows[:MOST_COLUMNS]),
        tag("p", f"All other columns of the table were dropped.{drop}{more}", class_="soft"),
        wide=True,
    )


def _range(column: Facts) -> str:
    if column["values"] is not None:
        return _shortened([str(value) for value in column["values"]], MOST_VALUES)
    if column["bounds"] is None:
        return "none"
    low, high = (f"{bound:g}" if isinstance(bound, int | float) else str(bound) for bound in column["bounds"])
    return f"{low} to {high}"


def _shortened(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name if len(name) <= 60 else f"{name[:59]}…" for name in names[:most]) + more


def _quality(facts: Facts) -> Markup:
    found = facts["quality"]
    if found is None:
        words = "Not measured: no private score was asked for. Exact scores would leak, and are not shown."
        return _section(6, "Quality", tag("p", words))
    return _section(6, "Quality", tag("p", found["sentence"]), tag("p", f"Measured {found['where']}.", class_="soft"))


def _health(facts: Facts) -> Markup:
    found = facts["health"]
    stages, clipped = found["stages"], any(stage["clipped"] is not None for stage in found["stages"])
    if not stages:
        return _section(7, "Health", tag("p", "Not known."))
    header: list[object] = ["purpose", "releases", "share of noise", *(["records at the radius"] if clipped else [])]
    rows: list[list[object]] = [
        [
            stage["purpose"],
            f"{stage['releases']:,}",
            _percent(stage["noise_share"]),
            *(["" if stage["clipped"] is None else _percent(stage["clipped"])] if clipped else []),
        ]
        for stage in stages
    ]
    sources = sorted({stage["source"] for stage in stages if "source" in stage})
    notes = [tag("p", note, class_="soft") for note in [*found["lines"], *sources]]
    return _section(7, "Health", table(header, rows, figures=True), *notes)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share == 0 or share >= 0.01 else "below 1%"


def _project(facts: Facts) -> Markup:
    found = facts["project"]
    if found is None:
        words = (
            "Not counted: the run is in no project (diff2 budget). If these records were used before, or are used "
            "again, the costs add up."
        )
        return _section(8, "All runs on these data together", tag("p", words), wide=True)
    rows: list[list[object]] = [
        [run["run"], number(run["epsilon"]), run["state"]] for run in found["runs"][-MOST_RUNS:]
    ]
    limit = "" if found["limit"] is None else f", of {number(found['limit'])} that are allowed"
    words = (
        f"{len(found['runs'])} runs together: epsilon {number(found['epsilon'])} at delta {found['delta']:g}{limit}."
    )
    notes = [tag("p", note, class_="soft") for note in found["notes"]]
    listed = table(["run", "epsilon alone", "state"], rows)
    return _section(8, "All runs on these data together", tag("p", words), listed, *notes, wide=True)


def _files(facts: Facts) -> Markup:
    rows: list[list[object]] = [
        [
            file["name"],
            tag("span", file["class"], class_=f"badge {file['class']}"),
            file["holds"],
            tag("code", file["sha256"]) if file["sha256"] else "",
        ]
        for file in facts["files"][:MOST_FILES]
    ]
    rest = len(facts["files"]) - MOST_FILES
    more = [tag("p", f"{rest} more are in the JSON document.", class_="soft")] if rest > 0 else []
    return _section(9, "Files", table(["file", "for", "holds", "SHA-256"], rows), *more, wide=True)


def _sign_off(facts: Facts) -> Markup:
    key = facts["signed_by"]
    signed = "The ledger is not signed." if key is None else f"The ledger is signed by the key {key}."
    boxes = [tag("li", tag("span", "☐", class_="mark", aria_hidden="true"), tag("span", line)) for line in SIGN_OFF]
    lines = [tag("p", tag("span", name), class_="line") for name in ("Name and role", "Date", "Signature")]
    return _section(
        10,
        "Sign-off",
        tag("p", "No program can check these:"),
        tag("ul", *boxes, class_="checks"),
        tag("div", *lines, class_="lines"),
        tag("p", signed, " Chain of its last line: ", tag("code", text(facts["chain"])), class_="small"),
        wide=True,
    )
