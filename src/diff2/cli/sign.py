"""``diff2 keygen`` and ``diff2 sign``: who vouches for a run."""

from pathlib import Path
from typing import Annotated

import typer

from .console import command, emit_json, ending, show_line
from .options import Json
from .verify import RunFolder


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
