"""``diff2 report``: a page about a run that can be shared, printed and signed."""

from pathlib import Path
from typing import Annotated

import typer

from .console import emit_json, ending, show_line
from .options import Json
from .verify import PublicKey, RunFolder


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Where the page goes; by default report.html in RUN.")
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Also write model-card.md beside it, for Hugging Face.")] = False,
    public: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Write a page about a run: verdict, guarantee, checks, releases, columns, quality, files, sign-off.

    It holds only released and public values, and needs no network. Exit status as for diff2 verify.
    """
    with ending():
        from .._files import write_whole
        from ..reporting.card import card as card_of
        from ..reporting.facts import facts
        from ..reporting.files import CARD, REPORT
        from ..reporting.page import page
        from ..reporting.verdict import ledger_of

        found = facts(run, public)
        place = out or ledger_of(run).with_name(REPORT)
        written = []
        if out is not None or not as_json:
            write_whole(place, page(found).encode())
            written.append(place)
        if card:
            write_whole(place.with_name(CARD), card_of(found).encode())
            written.append(place.with_name(CARD))
        verdict = found["verdict"]
        if as_json:
            emit_json(found)
        else:
            show_line(f"{verdict['words']}{': ' if verdict['reason'] else ''}{verdict['reason']}", style="bold")
            for file in written:
                show_line(f"  written      {file}")
        if verdict["status"]:
            raise typer.Exit(verdict["status"])
