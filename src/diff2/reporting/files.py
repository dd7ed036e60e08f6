"""The files of a run, and whom each may be shown to: shared, internal to those who hold the records, or secret.

Only files to share have a hash. That of an exact metric would confirm a guess of the metric.
"""

import hashlib
from pathlib import Path
from typing import Any

from ..fitting.saving import HOLDS

SHARE, INTERNAL, SECRET = "share", "internal", "secret"
REPORT, CARD = "report.html", "model-card.md"

KNOWN = {
    **{name: (SHARE, what) for name, what in HOLDS.items()},
    "README.md": (SHARE, "what the folder holds"),
    "ledger.sig": (SHARE, "the signature of the ledger"),
    "result.json": (INTERNAL, "what was trained, and how to use it; holds times"),
    "history.csv": (INTERNAL, "what happened in each round; holds times, and exact metrics if they were asked for"),
}


def files(folder: Path, *, private: bool, complete: bool) -> list[dict[str, Any]]:
    """Return name, class, content and hash of each file in the folder of a run.

    Args:
        private: whether the run is private as stated; nothing of one that is not is to be shared.
    """
    found = []
    for file in sorted(one for one in folder.iterdir() if one.is_file() and one.name not in (REPORT, CARD)):
        kind, holds = _kind(file, complete)
        kind = kind if private or kind != SHARE else INTERNAL
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if kind == SHARE else None
        found.append({"name": file.name, "class": kind, "holds": holds, "sha256": digest})
    return found


def _kind(file: Path, complete: bool) -> tuple[str, str]:
    if file.name == "checkpoint.pt":
        if complete:
            return INTERNAL, "the last state of the run; the key of its noise is wiped"
        return SECRET, "the key of the noise: whoever has it can remove the noise"
    if file.suffix in (".pem", ".key"):
        return SECRET, "a key"
    return KNOWN.get(file.name, (INTERNAL, "not written by a run"))
