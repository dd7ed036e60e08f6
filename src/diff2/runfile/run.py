"""A run from a run file: read the tables, train, and leave a directory that describes the model in full."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .._files import AnyPath, read_json
from .._progress import Show
from ..data.loading import EncodedClients, load_clients
from ..data.scaling import Encoding, described_columns
from ..errors import CheckpointError, InvalidArgument
from ..models.mlp import mlp
from ..training.arguments import Compute
from ..training.build import prepare
from ..training.model_file import MODEL
from ..training.result import TrainResult
from ..training.scaling import PrivateScaling, standard_of
from .data_table import AT_SITES
from .reader import ModelSettings, RunFile, RunSettings, portable

FILES = (MODEL, "ledger.jsonl", "result.json", "history.csv", "checkpoint.pt")


@dataclass(frozen=True)
class FinishedRun:
    """A trained model, where it is, and what is in its files."""

    result: TrainResult
    directory: Path
    document: dict[str, Any]  # what result.json holds


def train_run_file(
    run: RunFile,
    directory: AnyPath,
    *,
    resume: bool = False,
    seed: int | None = None,
    sign_with: AnyPath | None = None,
    progress: Show = None,
) -> FinishedRun:
    """Train what the run file describes and write model, ledger, result, history and checkpoint to ``directory``.

    Args:
        resume: resume a run that was interrupted; without it a directory that holds anything is refused.
        seed: instead of the file's ``seed``; the run is then *not private*.
        sign_with: a key to sign the ledger with, instead of the file's.
        progress: show a bar; by default if standard error is a terminal; ``"lines"``: lines if it is not.
    """
    target = Path(directory)
    require_free(target, resume)
    if run.data is None:
        raise InvalidArgument(f"{run.path}: the table [data] is missing")
    if getattr(run.data, "file", None) == AT_SITES:
        raise InvalidArgument(f"{run.path}: [data] names no tables, they are at the sites; use 'diff2 federate'")
    if run.federation is not None and run.federation.trust == "sites":
        raise InvalidArgument(f"{run.path}: trust='sites' needs sites that add noise; use 'diff2 federate simulate'")
    tables, settings = load_clients(run.data, strict=run.privacy.strict, pending=True), run.run
    opening = None if tables.pending is None else PrivateScaling(tables.pending.columns, tables.pending.share)
    encoding = tables.encoding
    training = prepare(
        mlp(len(encoding.inputs), encoding.outputs, **asdict(run.model)),
        encoding.loss,
        tables.clients,
        run.algorithm,
        run.privacy.budget,
        protection=run.protection,
        compute=Compute(
            # With a federation, the same bytes as at the sites, under one seed.
            engine=settings.engine if run.federation is None else portable(settings.engine),
            dtype=getattr(torch, settings.dtype),
            by_client=run.federation is not None,
        ),
        groups=tables.groups,
        public_sizes=run.privacy.public_sizes,
        seed=settings.seed if seed is None else seed,
        output=settings.output,
        directory=target,
        resume=resume,
        metrics_every=settings.metrics_every,
        holdout=None if settings.metrics_every is None else tables.holdout,
        leaks=tables.leaks,
        strict=run.privacy.strict,
        opening=opening,
        columns=described_columns(encoding, tables.leaks, () if opening is None else opening.columns),
        run_file=run.text,
        sign_with=_key(run) if sign_with is None else sign_with,
    )
    result = training.run(progress=progress)
    if training.directory.opening is not None:
        released = np.array(training.directory.opening), result.ledger.releases[0].noise_std
        tables = tables._replace(encoding=scaled_encoding(tables, *released))
    result.save(target, _described(run, tables, result))
    return FinishedRun(result, target, {**result.summary(), **_described(run, tables, result)})


class SavedModel(NamedTuple):
    """A trained model, and the encoding that its inputs and outputs need."""

    model: nn.Module
    encoding: Encoding

    def predict(self, table: Any) -> np.ndarray:
        """Return a prediction for each row of any table, in the unit of the target or as a class label."""
        dtype = next(self.model.parameters()).dtype
        with torch.no_grad():
            outputs = self.model(torch.as_tensor(self.encoding.encode_inputs(table), dtype=dtype))
        return self.encoding.decode(outputs.numpy())


def load_model(directory: AnyPath) -> SavedModel:
    """Return what ``diff2 train`` left in a directory, ready to predict."""
    from safetensors.torch import load_file

    folder = Path(directory)
    try:
        document = read_json(folder / "result.json") or {}
        encoding, shape = Encoding.from_json(document["encoding"]), document["model"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{folder / 'result.json'} was not written by 'diff2 train' ({error!r})") from None
    model = mlp(len(encoding.inputs), encoding.outputs, hidden=shape["hidden"], activation=shape["activation"])
    model.to(getattr(torch, shape["dtype"]))
    model.load_state_dict(load_file(folder / MODEL))
    return SavedModel(model, encoding)


def scaled_encoding(tables: EncodedClients, value: np.ndarray, noise_std: float) -> Encoding:
    """Return the encoding that maps a column to u, and u to (u - mean) / deviation, as they were released."""
    if tables.pending is None:
        return tables.encoding
    standard, inputs, names = standard_of(value, noise_std), dict(tables.encoding.inputs), list(tables.encoding.inputs)
    for j, mean, deviation in zip(tables.pending.columns, *map(np.ndarray.tolist, standard), strict=True):
        unit = inputs[names[j]]
        inputs[names[j]] = replace(unit, offset=unit.offset + mean * unit.scale, scale=unit.scale * deviation)
    return replace(tables.encoding, inputs=inputs)


def require_free(target: Path, resume: bool) -> None:
    """Refuse to begin a run in a directory that holds anything."""
    if target.exists() and not target.is_dir():
        raise InvalidArgument(f"{target} is a file; give a directory for the run")
    if not resume and target.is_dir() and any(target.iterdir()):
        raise CheckpointError(f"{target} is not empty: resume the run in it with --resume, or choose another directory")


def _key(run: RunFile) -> Path | None:
    return None if run.run.sign_with is None else run.path.parent / run.run.sign_with


def _described(run: RunFile, tables: EncodedClients, result: TrainResult) -> dict[str, Any]:
    """Say what was trained on what, and how to use it."""
    sizes = result.plan.client_sizes
    return {
        "clients": [{"name": name, "records": size} for name, size in zip(tables.names, sizes, strict=True)],
        "held_out": 0 if tables.holdout is None else len(tables.holdout[0]),
        **described_model(tables.encoding, run.model, run.run),
    }


def described_model(encoding: Encoding, model: ModelSettings, settings: RunSettings) -> dict[str, Any]:
    """Say what ``load_model`` must know, in plain JSON values."""
    shape = {"kind": "mlp", "inputs": len(encoding.inputs), "outputs": encoding.outputs}
    return {
        "loss": encoding.loss,
        "output": settings.output,
        "model": {**shape, **asdict(model), "dtype": settings.dtype},
        "encoding": encoding.to_json(),
    }
