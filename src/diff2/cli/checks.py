"""``diff2 account``, ``verify``, ``report``, ``budget``, ``keygen`` and ``sign``: what runs cost, and who vouches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._numbers import epsilon_text
from .console import command, emit_json, ending, show_line, show_rows, show_warning
from .options import Json
from .reports import account_document, count_of_releases, show_account

if TYPE_CHECKING:
    from ..privacy import Ledger

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or a ledger.jsonl.")]
PublicKey = Annotated[Path | None, typer.Option(metavar="PEM", help="The Ed25519 public key that must have signed it.")]


def account(
    ledger_file: Annotated[Path, typer.Argument(metavar="LEDGER", help="A ledger.jsonl, or the directory of a run.")],
    delta: Annotated[
        float | None, typer.Option(help="State epsilon at this delta; default: that of the run's budget.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute what a run cost from its ledger alone; an edited ledger is refused."""
    with ending():
        from ..planning.verify import verify as verify_ledger
        from ..privacy.budget import Budget
        from ..reporting.verdict import ledger_of

        path = ledger_of(ledger_file)
        found = verify_ledger(path)
        ledger = found.ledger
        at = ledger.delta if delta is None else Budget(1.0, delta).delta
        for what in found.unchecked:
            show_warning(f"not checked: {what}")
        if as_json:
            emit_json(account_document(ledger, at))
        else:
            show_account(ledger, path, at)
        require_within_budget(ledger, path)


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


def budget(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds the runs, at any depth.")],
    epsilon: Annotated[float | None, typer.Option(help="Set this limit for all runs together.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta of the limit; without --epsilon: state the total at this delta.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what all runs in a folder cost together, and set a limit for them.

    All are assumed to use the same records. With --epsilon and --delta the folder becomes a project: diff2 train, fit
    and evaluate then refuse, with exit status 3 and before anything is spent, what would exceed that limit.
    """
    with ending():
        from ..errors import BudgetExceeded, InvalidArgument
        from ..planning.project import set_limit, standing
        from ..privacy import Budget

        if epsilon is not None and delta is None:
            raise typer.BadParameter("give --delta with --epsilon: the delta of the limit")
        if epsilon is not None and delta is not None:
            set_limit(folder, Budget(epsilon, delta))
        elif not folder.is_dir():
            raise InvalidArgument(f"{folder} is not a folder; --epsilon and --delta make it a project")
        found = standing(folder, None if epsilon is not None or delta is None else Budget(1.0, delta).delta)
        document = found.to_json()
        if as_json:
            emit_json(document)
        else:
            rows = [[run["run"], epsilon_text(float(run["epsilon"])), run["state"]] for run in document["runs"]]
            if rows:
                show_rows(f"runs in {folder}", rows, ["run", f"epsilon alone at {found.delta:g}", "state"])
            show_line(_sentence(document), style="bold", wrap=True)
            for note in document["notes"]:
                show_line(note, wrap=True)
        if found.limit is not None and found.epsilon > found.limit:
            raise BudgetExceeded(
                f"the runs in {folder} cost epsilon={epsilon_text(found.epsilon)} at delta={found.delta:g} together, "
                f"the limit is {epsilon_text(found.limit)}"
            )


def _sentence(document: dict[str, Any]) -> str:
    runs, delta = document["runs"], document["delta"]
    limit = "" if document["limit"] is None else f"; the limit is {epsilon_text(float(str(document['limit'])))}"
    if not runs:
        return f"no runs yet{limit}."
    most = max(float(run["epsilon"]) for run in runs)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    total = epsilon_text(float(str(document["epsilon"])))
    text = f"{count}, each at most epsilon {epsilon_text(most)}: together epsilon {total} at delta {delta:g}"
    return f"{text}, for replacing one {document['unit']} in all of them{limit}."


def keygen(
    key: Annotated[Path, typer.Argument(metavar="KEY.pem", help="Where the new private key goes. Keep it secret.")],
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key to sign runs with, and beside it the public key, to hand out."""
    with ending():
        from ..privacy.signing import make_key, read_public

        secret, public = make_key(key)
        if as_json:
            emit_json({"private": str(secret), "public": str(public), "public_key": read_public(public)})
            return
        show_line(f"private key  {secret}, readable only by its owner: keep it secret")
        show_line(f"public key   {public}: hand it out over a channel that others trust")
        show_line(f"             {read_public(public)}")


def sign(
    run: RunFolder,
    key: Annotated[Path, typer.Option(metavar="PEM", help="Your private Ed25519 key; diff2 keygen makes one.")],
    as_json: Json = False,
) -> None:
    """Sign a finished run: ledger.sig beside its ledger shows who vouches for it.

    Everything is verified first. diff2 train --sign-with signs when the run ends; then nobody can remove the signature
    unnoticed.
    """
    with ending():
        from ..privacy.signing import PROVES, Signer, sign_ledger
        from ..reporting.verdict import judge, ledger_of

        signer = Signer(key, "--key")
        found, path = judge(run), ledger_of(run)
        file = sign_ledger(found.ledger, path, signer)
        if as_json:
            document = {"signature": str(file), "public_key": signer.public, "chain": found.ledger.chain}
            emit_json({**document, "verdict": found.words, "proves": PROVES})
            return
        show_line(f"signed: {found.words}", style="bold")
        show_line(f"  signature    {file}")
        show_line(f"  public key   {signer.public}")
        show_line(f"  to check     {command('diff2', 'verify', run, '--public', 'THE_PUBLIC_KEY.pem')}")
        show_line(PROVES, wrap=True)
