"""The verdict on a run: is it what its ledger says, and is this model the one that it returned?

Everything is checked that can be checked without the records. ``diff2 verify`` prints it, ``diff2 report`` shows it.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .._files import AnyPath, read_json
from .._version import __version__
from ..errors import LedgerError
from ..planning.filter import FILTERED
from ..planning.verify import verify
from ..privacy import Guarantee, Ledger
from ..privacy.leaks import code_of
from ..privacy.signing import SIGNATURE, check_signature, read_public
from ..training.model_file import MODEL, file_digest, stated_guarantee

AS_STATED, BROKEN, OVER_BUDGET, LEAKS, NOT_PRIVATE = 0, 1, 3, 4, 5  # exit status of the command


class Verdict(NamedTuple):
    """What was found, what was checked, and what could not be."""

    status: int
    words: str
    ledger: Ledger
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]  # each with the reason, after ": "
    signed_by: str | None  # the public key whose signature fits


def ledger_of(run: AnyPath) -> Path:
    """Return the ledger of a run: that in a directory, or the file itself."""
    path = Path(run)
    return path / "ledger.jsonl" if path.is_dir() else path


def judge(run: AnyPath, public_key: AnyPath | None = None) -> Verdict:
    """Check a run; raise LedgerError or InvalidArgument where anything contradicts anything else.

    Args:
        run: its directory, or its ledger.
        public_key: a PEM file; only a signature by this key will do.
    """
    path = ledger_of(run)
    ledger, checked, unchecked = verify(path)
    guarantee = ledger.guarantee()
    status, words = (BROKEN, "not verified") if unchecked else _status(guarantee)
    if guarantee.epsilon > float(ledger.header["budget"]["epsilon"]):
        status, words = OVER_BUDGET, "more than its budget was spent"
    done, undone = list(checked), list(unchecked)
    signature, signed_by, why = _signature(ledger, path, public_key)
    for what, reason in (_model(ledger, path), *_metadata(ledger, path), (signature, why)):
        (undone if reason else done).append(f"{what}: {reason}" if reason else what)
    return Verdict(status, words, ledger, tuple(done), tuple(undone), signed_by)


def _status(guarantee: Guarantee) -> tuple[int, str]:
    if math.isinf(guarantee.epsilon) or guarantee.seeded:
        seeded = ", its noise came from a seed (LEAK-SEED)"
        return NOT_PRIVATE, "NOT PRIVATE" + (seeded if guarantee.seeded else ", no noise (LEAK-NO-NOISE)")
    if guarantee.leaks:
        return LEAKS, f"private apart from {'; '.join(f'{leak} ({code_of(leak)})' for leak in guarantee.leaks)}"
    return AS_STATED, "private as stated"


def _model(ledger: Ledger, path: Path) -> tuple[str, str]:
    """Compare the model file with the hash in the closing line; return what, and why it was not done."""
    folder, what = path.parent, "the model, against the hash in the closing line"
    file = folder / MODEL
    if not ledger.complete or ledger.model is None:
        return what, "the ledger has no such hash" if ledger.complete else "the run is not complete"
    if not file.exists():
        return what, f"no {file.name} beside the ledger"
    if ledger.header["algorithm"]["name"] in FILTERED:
        from ..fitting.saving import load

        load(folder)  # refuses a model that is not the ledger's
    elif (found := file_digest(file)) != ledger.model:
        raise LedgerError(f"{file} has the SHA-256 {found}, the run returned a model with {ledger.model}")
    return what, ""


def _metadata(ledger: Ledger, path: Path) -> Iterator[tuple[str, str]]:
    """Compare the sentence in the model file with the ledger's; its words are those of the version that wrote it."""
    what, file = "the guarantee in the metadata of the model", path.parent / MODEL
    if not ledger.complete or ledger.model is None or not file.exists():
        return
    version = ledger.header["version"]
    if version == __version__ and stated_guarantee(file) != str(ledger.guarantee()):
        raise LedgerError(f"{file} states another guarantee than its ledger; copy the folder again")
    yield what, "" if version == __version__ else f"version {version} wrote it, and may have put it in other words"


def _signature(ledger: Ledger, path: Path, public_key: AnyPath | None) -> tuple[str, str | None, str]:
    """Check the signature beside the ledger; return what, by whom, and why it was not done.

    The header names the key of a run that was signed as it ended; one that was signed later names none.
    """
    what, file = "the signature", path.with_name(SIGNATURE)
    document = read_json(file)
    if document is None and file.exists():
        raise LedgerError(f"{file} is not a signature; restore it from a copy, or sign the run again")
    signed_by = ledger.header["signed_by"] or (document or {}).get("public_key")
    if public_key is not None and read_public(public_key) != signed_by:
        whose = "not signed" if signed_by is None else f"signed by {signed_by}"
        raise LedgerError(f"{path} is {whose}, expected a signature by the key in {public_key}")
    if signed_by is None:
        return what, None, "the run was not signed; its author could have rewritten all of it"
    if not ledger.complete:
        return what, None, "the run is not complete"
    try:
        check_signature(str(file), document, ledger.chain, str(signed_by))
    except ImportError:
        return what, None, "the package cryptography is not installed here: pip install 'diff2[sign]'"
    whose = "the key that was given" if public_key else f"{signed_by}, whoever that is (--public compares)"
    return f"{what}, by {whose}", str(signed_by), ""
