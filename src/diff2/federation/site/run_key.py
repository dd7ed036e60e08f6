"""The secret of a site in a run, from which it draws batches, masks and noise; deleted when the run is complete."""

import secrets
from pathlib import Path

from ..._files import write_whole
from ...privacy import NoiseSource
from ...privacy.noise import KEY_BYTES
from ..faults import Refusal


def run_source(directory: Path, run: str, seed: int | None, *, new: bool) -> NoiseSource:
    """Return the source of batches, masks and noise: a secret of the site's own, unless the run is seeded."""
    if seed is not None:
        return NoiseSource.from_seed(seed)
    path = key_path(directory, run)
    if new:
        # A key that is there already belongs to a run the ledger does not know: its noise may have been used.
        path.unlink(missing_ok=True)
        write_whole(path, secrets.token_bytes(KEY_BYTES), secret=True)
    if not path.exists() or path.stat().st_size != KEY_BYTES:
        raise Refusal("the site has lost the key of this run, so it cannot be resumed; start a new run")
    return NoiseSource(path.read_bytes(), private=True)


def key_path(directory: Path, run: str) -> Path:
    """Return the file of a run's secret."""
    return directory / f"{run}.key"
