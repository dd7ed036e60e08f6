"""``diff2 verify``: is this run what its ledger says, and is this model the one that it returned?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._files import read_json
from .._numbers import epsilon_text
from .console import FAILED, LEAKS, NOT_PRIVATE, emit_json, ending, show_line
from .options import Json
from .reports import count_of_releases

if TYPE_CHECKING:
    from ..privacy import Guarantee, Ledger

VERIFY_HELP = (
    "Check everything about a run that can be checked without its records: its ledger, its model, its signature.\n\n"
    "Exit status: 0 private as stated, 4 private apart from the leaks it names, 5 NOT PRIVATE, 1 broken, or it "
    "cannot be verified here."
)


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or a ledger.jsonl.")],
    public_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Whose signature it must be: an Ed25519 public key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check everything about a run that can be checked without its records."""
    with ending():
        from ..planning.verify import verify as verify_ledger

        path = run / "ledger.jsonl" if run.is_dir() else run
        ledger, checked, unchecked = verify_ledger(path)
        status, words = (FAILED, "not verified") if unchecked else _status(ledger.guarantee())
        done, undone = list(checked), list(unchecked)
        for what, reason in (_model(ledger, path), _signature(ledger, path, public_key)):
            (undone if reason else done).append(f"{what}: {reason}" if reason else what)
        guarantee = ledger.guarantee()
        state = "" if ledger.complete else ", not complete"
        line = (
            f"{words}: epsilon {epsilon_text(guarantee.epsilon)} at delta {guarantee.delta:g}, {guarantee.algorithm}, "
            f"{count_of_releases(guarantee.releases, guarantee.planned)}{state}"
        )
        if as_json:
            found = {"status": status, "verdict": words, "checked": done, "not_checked": undone}
            emit_json({**found, "guarantee": guarantee.to_json()})
        else:
            show_line(line, style="bold")
            for name, items in (("checked", done), ("not checked", undone)):
                for item in items:
                    show_line(f"  {name:<13}{item}")
        require_within_budget(ledger, path)
        if status:
            raise typer.Exit(status)


def require_within_budget(ledger: Ledger, path: Path) -> None:
    """Refuse a ledger that costs more than its budget."""
    from ..errors import BudgetExceeded

    epsilon, budget = ledger.epsilon(), float(ledger.header["budget"]["epsilon"])
    if epsilon > budget:
        raise BudgetExceeded(
            f"{path} holds releases worth epsilon={epsilon_text(epsilon)} at delta={ledger.delta:g}, more than its "
            f"budget of {budget:g}"
        )


def _status(guarantee: Guarantee) -> tuple[int, str]:
    if math.isinf(guarantee.epsilon) or guarantee.seeded:
        return NOT_PRIVATE, "NOT PRIVATE" + (", its noise came from a seed" if guarantee.seeded else ", no noise")
    if guarantee.leaks:
        return LEAKS, f"private apart from {'; '.join(guarantee.leaks)}"
    return 0, "private as stated"


def _model(ledger: Ledger, path: Path) -> tuple[str, str]:
    """Compare the model file with the hash in the closing line; return what, and why it was not done."""
    from ..errors import LedgerError

    folder, what = path.parent, "the model, against the hash in the closing line"
    file = folder / "model.pt"
    if not ledger.complete or ledger.model is None:
        return what, "the ledger has no such hash" if ledger.complete else "the run is not complete"
    if (folder / "model.safetensors").exists():
        from ..fitting.saving import load

        load(folder)  # refuses a model that is not the ledger's
        return what, ""
    if not file.exists():
        return what, f"no {file.name} beside the ledger"
    try:
        import torch

        from ..training.result import model_digest
    except ImportError:
        return what, "PyTorch is not installed here"
    try:
        found = model_digest(torch.load(file, weights_only=True))
    except Exception as error:
        raise LedgerError(f"{file} is not a model that a run has saved ({type(error).__name__})") from None
    if found != ledger.model:
        raise LedgerError(f"{file} has the SHA-256 {found}, the run returned a model with {ledger.model}")
    return what, ""


def _signature(ledger: Ledger, path: Path, public_key: Path | None) -> tuple[str, str]:
    """Check the signature beside the ledger; return what, and why it was not done."""
    from ..errors import LedgerError
    from ..privacy.signing import SIGNATURE, check_signature, read_public

    signed_by, what = ledger.header["signed_by"], "the signature"
    if public_key is not None and read_public(public_key) != signed_by:
        whose = "not signed" if signed_by is None else f"signed by {signed_by}"
        raise LedgerError(f"{path} is {whose}, not by the key in {public_key}")
    if signed_by is None:
        return what, "the run was not signed; its author could have rewritten all of it"
    if not ledger.complete:
        return what, "the run is not complete"
    try:
        check_signature(str(path.with_name(SIGNATURE)), read_json(path.with_name(SIGNATURE)), ledger.chain, signed_by)
    except ImportError:
        return what, "the package cryptography is not installed here: pip install 'diff2[sign]'"
    whose = "the key that was given" if public_key else f"{signed_by}, whoever that is (--public-key compares)"
    return f"{what}, by {whose}", ""
