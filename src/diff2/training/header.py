"""What the ledger's header says about a run, and what must be the same for a run to be resumed."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .._files import plain
from .._version import __version__
from ..gradients import Engine
from ..planning import Plan
from ..planning.header import described
from .model_file import model_digest


def header(
    noise_plan: Plan,
    engine: Engine,
    seed: int | None,
    leaks: Sequence[str],
    trust: Mapping[str, Any] | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    run_file: str | None = None,
    signed_by: str | None = None,
) -> dict[str, Any]:
    """Describe the run for the ledger.

    Args:
        trust: who adds the noise, where that is not whoever runs this.
        columns: what each column means, and where its bounds come from.
        run_file: the text of the run file.
        signed_by: the public key of whoever will sign the ledger.
    """
    file = None if run_file is None else {"text": run_file, "sha256": hashlib.sha256(run_file.encode()).hexdigest()}
    return {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **described(noise_plan, trust),
        "dimension": len(engine.flat),
        "engine": engine.name,
        "seeded": seed is not None,
        "leaks": list(leaks),
        "columns": plain(columns),
        "run_file": file,
        "signed_by": signed_by,
    }


def same_bytes(engine: Engine, output: str) -> dict[str, Any]:
    """Return what must be the same for a resumed run to give the bytes of one that was never interrupted."""
    return {
        "output": output,
        "start": model_digest(engine.flat.module),
        "dtype": str(engine.flat.dtype),
        "chunk_rows": engine.chunk_rows,
    }
