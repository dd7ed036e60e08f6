"""Which agreements a site answers: those that somebody there approved, by their hash, or that its policy approves.

``diff2 federate approve`` shows an agreement in plain words and writes ``approved/HASH.json`` to the site's directory:
the whole agreement and the time. A server, or whoever submits a job, cannot write there.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from ..._files import read_json, write_json
from ..agreement import AnyAgreement
from ..faults import Refusal
from .columns import Column, check_columns
from .policy import Policy

FOLDER = "approved"


class NotApproved(Refusal):
    """Nobody at the site approved the agreement, and its policy does not either."""

    def __init__(self, agreement: AnyAgreement):
        self.agreement = agreement
        super().__init__(
            f"nobody at this site approved the agreement {agreement.digest[:16]}; whoever answers for the records "
            "there reads and approves its run file: diff2 federate approve RUN.toml --site SITE.toml"
        )


def approve(directory: Path, agreement: AnyAgreement) -> Path:
    """Write down that this site takes part in runs of exactly this agreement; return the file."""
    path = _path(directory, agreement)
    path.parent.mkdir(parents=True, exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(path, {"approved": now, "hash": agreement.digest, "agreement": agreement.to_json()})
    return path


def approved(directory: Path, agreement: AnyAgreement) -> bool:
    """Whether somebody at the site approved exactly this agreement."""
    return (read_json(_path(directory, agreement)) or {}).get("agreement") == agreement.to_json()


def require_approved(directory: Path, policy: Policy, columns: Mapping[str, Column], agreement: AnyAgreement) -> None:
    """Refuse an agreement that nobody here approved, or that exceeds a limit. No record is read."""
    if not (approved(directory, agreement) or policy.approves(agreement, columns)):
        raise NotApproved(agreement)
    check_columns(columns, agreement)
    policy.check(agreement)


def _path(directory: Path, agreement: AnyAgreement) -> Path:
    return directory / FOLDER / f"{agreement.digest}.json"
