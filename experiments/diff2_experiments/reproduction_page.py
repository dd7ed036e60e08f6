"""What docs/reproduction-tables.md shows of finished reproductions: their tables and figures, one after the other.

python -m diff2_experiments.reproduction_page STORES STAGE ... --out docs

``STORES`` is what ``paper/run_all.sh`` fills. The tables of each stage, for people and for machines, and its figures go
to ``docs/reproduction/STAGE``; curves and single runs stay in the store. A stage that the stores do not hold stays on
the page as it is, so stores may be filled on several machines and thrown away.
"""

from __future__ import annotations

import csv
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from diff2.errors import InvalidArgument

from .formatting import markdown_line

HEAD = """# The paper's experiments, table by table

The numbers behind [the summary](reproduction.md): losses, gradient norms, p-values and settings of every method, with
the value of each seed. **None of this is private**: settings are tuned on exact losses, records are scaled by their own
mean and deviation, noise is seeded. Epsilon is that of one run, as if its settings had been known beforehand. The
tables are public.
"""
PAGE = "reproduction-tables.md"
KEPT = ("table.csv", "settings.csv", "figure-*.png")
SUMMARY = """
## Ours and published

Mean over the seeds of the best round, and in brackets what was published. *p* is of a one-sided t-test that DIFF2-GD is
better than DP-GD.

| stage | epsilon, accounting | metric | GD | DP-GD | DIFF2-GD | p |
| --- | --- | --- | ---: | ---: | ---: | ---: |"""
COMPARED = ("gd", "dpgd", "diff2")


def section(stores: Path, stage: str, docs: Path) -> str:
    """Return what the page says about a stage: from the stores, or as it was."""
    found = sorted(stores.glob(f"*/found/{stage}"))
    if found:
        return "\n".join(published(found[0], stage, docs))
    page = docs / PAGE
    parts = page.read_text(encoding="utf-8").split("\n\n## ") if page.exists() else []
    for part in parts:
        if part.partition("\n")[0].endswith(f": `{stage}`"):
            return f"## {part.rstrip()}"
    raise InvalidArgument(f"neither {stores} nor {page} holds a finished stage {stage!r}; see run_all.sh STORES --list")


def published(found: Path, stage: str, docs: Path) -> Iterator[str]:
    """Copy the files of a stage next to the page; yield its lines of the page."""
    place = docs / "reproduction" / stage
    place.mkdir(parents=True, exist_ok=True)
    for pattern in KEPT:
        for path in found.glob(pattern):
            shutil.copyfile(path, place / path.name)
    title, _, _, _, *lines = (found / "table.md").read_text(encoding="utf-8").splitlines()
    name = title.removeprefix("# ").partition(":")[0]
    yield from (f"## {name}: `{stage}`", "")
    for line in lines:
        if line.startswith("## "):
            condition = line.removeprefix("## ").lower()
            epsilon, accounting = condition.removeprefix("epsilon ").removesuffix(" accounting").split(", ")
            figure = f"reproduction/{stage}/figure-{accounting}-epsilon-{epsilon}.png"
            yield from (f"### {name}, {condition}", "", f"![{name}, {condition}]({figure})")
        elif line.startswith("diff2 reproduce"):
            yield f"{line.partition(' --out ')[0]} --out DIR"
        else:
            yield line.replace("`settings.csv`", f"[settings.csv](reproduction/{stage}/settings.csv)")


def summary(stage: str, docs: Path) -> Iterator[str]:
    """Yield a line for each accounting, epsilon and metric: what was published, and what was found."""
    lines: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    with (docs / "reproduction" / stage / "table.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            condition = f"{float(row['compared_at_epsilon']):g}, {row['accounting']}"
            lines[condition, row["metric"].replace("_", " ")][row["method"]] = row
    for place, rows in lines.items():
        places = [(name, "best_mean", "published") for name in COMPARED] + [("diff2", "p_value", "published_p_value")]
        pairs = [(rows[name][ours], rows[name][theirs]) if name in rows else ("", "") for name, ours, theirs in places]
        yield markdown_line([stage, *place, *(f"{_number(ours)} ({_number(theirs)})" for ours, theirs in pairs)])


def _number(text: str) -> str:
    return f"{float(text):.3g}" if text else "–"


def main(
    stores: Annotated[Path, typer.Argument(help="What run_all.sh has filled.")],
    stages: Annotated[list[str], typer.Argument(help="Finished stages, in the order of the page.")],
    out: Annotated[Path, typer.Option(help="Directory of the page.")] = Path("docs"),
) -> None:
    """Write reproduction-tables.md, and the files it shows."""
    parts = [section(stores, stage, out) for stage in stages]
    head = [HEAD.rstrip(), SUMMARY, *(line for stage in stages for line in summary(stage, out))]
    (out / PAGE).write_text("\n\n".join(["\n".join(head), *parts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
