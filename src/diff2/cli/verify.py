"""``diff2 verify``: is this run what its ledger says, and is this model the one that it returned?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._numbers import epsilon_text
from .console import emit_json, ending, show_line
from .options import Json
from .reports import count_of_releases

if TYPE_CHECKING:
    from ..privacy import Ledger

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or a ledger.jsonl.")]
PublicKey = Annotated[Path | None, typer.Option(metavar="PEM", help="The Ed25519 public key that must have signed it.")]


def verify(
    run: RunFolder,
    public: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Check everything about a run that can be checked without its records: its ledger, its model, its signature.

    Exit status: 0 private as stated, 4 private apart from the leaks it names, 5 NOT PRIVATE, 1 broken, or not
    verifiable here.
    """
    with ending():
        from ..reporting.verdict import judge, ledger_of

        found = judge(run, public)
        guarantee = found.ledger.guarantee()
        state = "" if found.ledger.complete else ", not complete"
        line = (
            f"{found.words}: epsilon {epsilon_text(guarantee.epsilon)} at delta {guarantee.delta:g}, "
            f"{guarantee.algorithm}, {count_of_releases(guarantee.releases, guarantee.planned)}{state}"
        )
        if as_json:
            document = {"status": found.status, "verdict": found.words, "signed_by": found.signed_by}
            checks = {"checked": list(found.checked), "not_checked": list(found.unchecked)}
            emit_json({**document, **checks, "guarantee": guarantee.to_json()})
        else:
            show_line(line, style="bold")
            for name, items in (("checked", found.checked), ("not checked", found.unchecked)):
                for item in items:
                    show_line(f"  {name:<13}{item}")
        require_within_budget(found.ledger, ledger_of(run))
        if found.status:
            raise typer.Exit(found.status)


def require_within_budget(ledger: Ledger, path: Path) -> None:
    """Refuse a ledger that costs more than its budget."""
    from ..errors import BudgetExceeded

    epsilon, budget = ledger.epsilon(), float(ledger.header["budget"]["epsilon"])
    if epsilon > budget:
        raise BudgetExceeded(
            f"{path} holds releases worth epsilon={epsilon_text(epsilon)} at delta={ledger.delta:g}, more than its "
            f"budget of {budget:g}"
        )
