"""``diff2 tutorial``: from a table to a model that others can check, on made-up records. It needs no extra."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidArgument
from .console import command, ending

SCHEMA = """# What everybody knows about the columns. Nothing here was read off the records.
[target]
column = "visits"
kind = "counts"
high = 50          # nobody sees a doctor more often in a year
[columns]
age = { kind = "number", low = 0, high = 100 }
smoker = { kind = "flag" }
"""
STEPS = {  # what a newcomer would do, in this order
    "What will it cost, and what can be expected? No record is read.": (
        "plan --schema people.schema.toml --records 4000 --epsilon 1"
    ),
    "Fit a model. Epsilon bounds what it reveals about any one of the people.": (
        "fit people.csv --schema people.schema.toml --epsilon 1 --out model"
    ),
    "Use the model.": "predict model new.csv --out predictions.csv",
    "Check it, as anybody can: the ledger suffices, no record is needed.": "verify model",
    "Write a page for whoever signs.": "report model --out report.html",
}


def tutorial(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for tables, model and page.")] = Path(
        "diff2-tutorial"
    ),
) -> None:
    """Fit, use and check a private model of made-up records, one command at a time.

    Every command is shown before it runs, and works the same on your own table. It needs no PyTorch.
    """
    with ending():
        if out.exists():
            raise InvalidArgument(f"{out} exists; name a new folder: diff2 tutorial DIR")
        out.mkdir(parents=True)
        (out / "people.schema.toml").write_text(SCHEMA, encoding="utf-8")
        (out / "people.csv").write_text(made_up(4000), encoding="utf-8")
        (out / "new.csv").write_text("age,smoker\n30,no\n80,yes\n", encoding="utf-8")
        typer.echo(f"In {out}: people.csv, 4,000 made-up people; people.schema.toml, what everybody knows about them.")
        for why, words in STEPS.items():
            typer.secho(f"\n# {why}\n$ {command('diff2', *words.split())}", bold=True)
            ended = subprocess.run([sys.executable, "-m", "diff2", *words.split()], cwd=out, check=False)
            if ended.returncode:
                raise typer.Exit(ended.returncode)
        typer.secho(f"\nOpen {out / 'report.html'} in a browser. For your own table: diff2 schema --help", bold=True)


def made_up(people: int) -> str:
    """Return a table of people whose visits depend on age and smoking."""
    draw, rows = random.Random(0), ["age,smoker,visits"]
    for _ in range(people):
        age, smoker = draw.randint(18, 95), draw.random() < 0.3
        visits = max(0, round(draw.gauss(age / 20 + 3 * smoker, 1.5)))
        rows.append(f"{age},{'yes' if smoker else 'no'},{visits}")
    return "\n".join(rows) + "\n"
