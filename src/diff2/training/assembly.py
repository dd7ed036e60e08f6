"""From a plan, an engine and a cohort to a run that is ready: ledger, checkpoint, noise, and what must stay the same.

Whatever asks the records, in this process or at several sites, is put together here, so that a run can be killed and
goes on by the same rules wherever its records are.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..cohorts.pooled import Cohort
from ..errors import CheckpointError, InvalidArgument
from ..gradients import Engine
from ..planning.plan import Opening, Plan
from ..privacy import Ledger, Mechanism, NoiseSource
from . import directory as checkpoints
from .directory import Checkpoint
from .loop import Training, checkpoint_path, ledger_path
from .metrics import ExactMetrics

C = TypeVar("C", bound=Cohort)


def assemble(
    noise_plan: Plan,
    engine: Engine,
    *,
    cohort: Callable[[NoiseSource], C],
    records_tag: Callable[[NoiseSource], bytes],
    metrics: Callable[[C], ExactMetrics | None],
    settings: Mapping[str, Any],
    seed: int | None,
    output: str,
    directory: str | os.PathLike[str] | None,
    resume: bool,
    leaks: Sequence[str],
    opening: Opening | None = None,
    trust: Mapping[str, Any] | None = None,
    mechanism: Callable[[C, Ledger, NoiseSource, float], Mechanism] | None = None,
) -> Training:
    """Open or resume the run; spend nothing yet.

    Args:
        cohort: builds the cohort, given the secret from which batches, masks and noise are drawn.
        records_tag: a hash of all records, which says nothing without the secret.
        metrics: exact metrics of the cohort, or None.
        settings: whatever else must be the same for a run to go on.
        opening: a release that was made before the first round; it becomes the first line of the ledger.
        trust: who adds the noise, where that is not whoever runs this; a part of the ledger's header.
        mechanism: builds what adds the noise, given the largest sum of 1/z^2; by default it is added here.
    """
    algorithm, budget = noise_plan.algorithm, noise_plan.budget
    start = engine.flat.vector.clone()
    header = _header(noise_plan, engine, seed, leaks)
    # Where noise is chosen on the way, this bounds it, and is what the run costs.
    limit = noise_plan.mu if algorithm.adaptive and budget.private else None
    if limit is not None:
        header["filter_mu"] = limit
    if opening is not None:
        header["opening_share"] = opening.share
    if trust is not None:
        header["trust"] = dict(trust)
    whole = {
        **header,
        **settings,
        "output": output,
        "start": hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest(),
        "dtype": str(engine.flat.dtype),
        "seed": seed,
        "chunk_rows": engine.chunk_rows,
    }
    folder = None if directory is None else Path(directory)
    found = _find_checkpoint(folder, resume, whole, opening)
    noise = _noise(seed, found)
    tag = b"" if folder is None else _tag(folder, noise, records_tag, found)
    ledger = _open_ledger(folder, header, found, opening)
    asked = cohort(noise)
    most = math.inf if limit is None else limit**2
    return Training(
        plan=noise_plan,
        cohort=asked,
        mechanism=Mechanism(ledger, noise, limit=most) if mechanism is None else mechanism(asked, ledger, noise, most),
        engine=engine,
        start=start,
        output_round=algorithm.rounds if output == "last" else noise.integer(algorithm.rounds, "output"),
        output_step=0 if output == "last" else noise.integer(algorithm.routine.local_steps, "output step"),
        metrics=metrics(asked),
        directory=folder,
        settings=whole,
        records_tag=tag,
        resumed=found,
    )


def _header(noise_plan: Plan, engine: Engine, seed: int | None, leaks: Sequence[str]) -> dict[str, Any]:
    """Describe the run for the ledger, in plain JSON values."""
    algorithm, budget, population = noise_plan.algorithm, noise_plan.budget, noise_plan.population
    return {
        "library": "diff2",
        "adjacency": population.adjacency,
        "unit": population.unit,
        "client_sizes": list(population.sizes),
        "weighting": population.weighting,
        "clients_per_round": population.clients_per_round,
        "client_order": population.client_order,
        "accounting": noise_plan.accounting,
        "budget": {"epsilon": plain(budget.epsilon), "delta": budget.delta},
        "algorithm": described(algorithm),
        "dimension": len(engine.flat),
        "seeded": seed is not None,
        "leaks": list(leaks),
    }


def described(settings: Any) -> dict[str, Any]:
    """Return the name and the fields of an algorithm or a routine, those inside it included, as JSON values."""
    return {"name": settings.name, **{field.name: plain(getattr(settings, field.name)) for field in fields(settings)}}


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return described(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _find_checkpoint(
    folder: Path | None, resume: bool, settings: dict[str, Any], opening: Opening | None
) -> Checkpoint | None:
    if folder is None:
        if resume:
            raise InvalidArgument("resume=True needs the directory of the run to go on with; give directory=...")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder)
    if not resume:
        for existing in (path, ledger_path(folder)):
            if existing.exists():
                raise CheckpointError(f"{existing} exists: resume that run (resume=True), or choose another directory")
        return None
    if not path.exists():
        # Killed before the first checkpoint: then nothing was released either. The ledger says whether that is so.
        _drop_unused_ledger(ledger_path(folder), opening)
        return None
    found = checkpoints.load(path)
    checkpoints.require_same(path, settings, found.settings)
    return found


def _drop_unused_ledger(path: Path, opening: Opening | None) -> None:
    """Remove a ledger that holds no release but the opening one; refuse others that have no checkpoint."""
    if not path.exists():
        return
    lines = path.read_bytes().count(b"\n")
    if lines > 1 and (opening is None or lines > 2 or Ledger.resume(path).entries != [opening.entry]):
        raise CheckpointError(
            f"{path} holds releases and has no checkpoint beside it, so the run cannot go on; its releases stay spent. "
            "Start a new run in another directory"
        )
    path.unlink()


def _noise(seed: int | None, found: Checkpoint | None) -> NoiseSource:
    if found is not None and not found.complete:
        return NoiseSource(found.key, private=found.private)
    return NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)


def _tag(
    folder: Path,
    noise: NoiseSource,
    records_tag: Callable[[NoiseSource], bytes],
    found: Checkpoint | None,
) -> bytes:
    if found is not None and found.complete:
        return found.records_tag  # the key is gone, and nothing more will be released
    tag = records_tag(noise)
    if found is not None and tag != found.records_tag:
        raise CheckpointError(
            f"{checkpoint_path(folder)} belongs to a run on other records of the same shape; going on would use the "
            "same noise twice. Restore the records, or start a new run in another directory"
        )
    return tag


def _open_ledger(
    folder: Path | None, header: dict[str, Any], found: Checkpoint | None, opening: Opening | None
) -> Ledger:
    path = None if folder is None else ledger_path(folder)
    if found is None or path is None:
        ledger = Ledger(header, path)
        if opening is not None:
            ledger.record(opening.entry)
        return ledger
    ledger = Ledger.read(path) if found.complete else Ledger.resume(path)
    if opening is not None and ledger.entries[:1] != [opening.entry]:
        raise CheckpointError(
            f"{path} does not begin with the release that the records were scaled by; start a new run"
        )
    return ledger
