"""A fitted model as a folder without code: arrays in safetensors, all else in JSON.

A model is a tree of named parts with fields. Arrays go to ``model.safetensors``, which holds the guarantee and the
SHA-256 of the two JSON files in its metadata. ``preparation.json`` holds the tree with the numbers, and says where an
array belongs. The closing line of the ledger holds a hash of all of them. Reading builds the parts that are listed here
and no others, and checks each field against its declared type and each array against the shape that the schema implies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._files import AnyPath, in_order, to_json, write_whole
from .._version import __version__
from ..errors import InvalidArgument
from ..planning.verify import verify
from ..privacy import Guarantee, Ledger
from ..tables.schema import Schema
from .columns import Column
from .health import Health
from .linear import CurvedModel, LinearModel
from .parts import Parts
from .perceptron import ModuleModel, Perceptron
from .preparation import Preparation, Projections, Whitening
from .shapes import shape_faults
from .statistics import Design
from .tree_model import Binning, Half, Tree, TreeModel

if TYPE_CHECKING:
    from .model import FittedModel

PARTS = Parts(
    LinearModel, CurvedModel, TreeModel, Perceptron, ModuleModel, Design, Preparation, Column, Whitening, Projections,
    Binning, Tree, Half,
)  # fmt: skip
ARRAYS, SCHEMA, PREPARATION, LEDGER, HEALTH, README = FILES = (
    "model.safetensors", "schema.json", "preparation.json", "ledger.jsonl", "health.json", "README.md",
)  # fmt: skip
HOLDS = {
    ARRAYS: "the arrays of the model; the guarantee is in its metadata",
    PREPARATION: "how to rebuild the model from the arrays",
    SCHEMA: "columns, bounds, categories and target: what was known publicly",
    HEALTH: "the quality of the model, from releases: a private score, noise against estimates",
    LEDGER: "every release with its price; diff2 account adds them up",
}
FORMAT = "1"


def save(folder: AnyPath, saved: FittedModel) -> Path:
    """Write a model to a folder, which may hold its ledger, or all of it, already and nothing of another model."""
    from safetensors.numpy import save as to_bytes

    target = Path(folder)
    ledger_file = target / LEDGER
    own = saved.ledger.path is not None and ledger_file.exists() and ledger_file.samefile(saved.ledger.path)
    if not own:
        refuse_folder(target)
    documents, arrays = _described(saved.schema, saved.model, saved.bounds)
    if saved.health is not None:
        documents[HEALTH] = to_json(saved.health.to_json()).encode()
    metadata = {
        "format": FORMAT,
        "library": f"diff2 {__version__}",
        "guarantee": str(saved.guarantee),
        **{f"sha256 of {name}": hashlib.sha256(data).hexdigest() for name, data in documents.items()},
    }
    target.mkdir(parents=True, exist_ok=True)
    if not own:
        copy = Ledger(saved.ledger.header, ledger_file)
        for release in saved.ledger.releases:
            copy.record(release)
        if saved.ledger.complete:
            copy.close(saved.ledger.model)
    for name, data in documents.items():
        write_whole(target / name, data)
    write_whole(target / README, _readme(saved.guarantee).encode())
    write_whole(target / ARRAYS, in_order(to_bytes(arrays, metadata)))
    return target


def model_sha256(schema: Schema, model: Any, bounds: tuple[float, float]) -> str:
    """Return a hash of all that a prediction depends on, for the closing line of the ledger."""
    return _sha256(*_described(schema, model, bounds))


def refuse_folder(folder: AnyPath) -> None:
    """Refuse a folder that holds files of another model."""
    for name in HOLDS:
        if (Path(folder) / name).exists():
            raise InvalidArgument(f"{Path(folder) / name} exists: a model is never overwritten; choose another folder")


def load(folder: AnyPath) -> dict[str, Any]:
    """Read the fields of a fitted model; what is not as :func:`save` writes it is refused, and nothing is run."""
    from safetensors import SafetensorError, safe_open

    source = Path(folder)
    if not (source / ARRAYS).is_file():
        raise InvalidArgument(f"no model in {source}: expected a folder with {ARRAYS}, as diff2 fit writes it")
    if (source / "result.json").exists() and not (source / PREPARATION).exists():
        raise InvalidArgument(f"{source} is a run of diff2 train; load its model with diff2.runfile.run.load_model")
    try:
        with safe_open(source / ARRAYS, framework="np") as file:
            metadata, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = [name for name in (SCHEMA, PREPARATION, HEALTH) if name != HEALTH or f"sha256 of {name}" in metadata]
        documents = {name: (source / name).read_bytes() for name in names}
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"the model in {source} cannot be read ({error}); copy the whole folder again") from None
    if metadata.get("format") != FORMAT:
        raise InvalidArgument(f"{source / ARRAYS} is not in format {FORMAT}; read it with the version that wrote it")
    for name, data in documents.items():
        if metadata.get(f"sha256 of {name}") != hashlib.sha256(data).hexdigest():
            raise InvalidArgument(
                f"{source / name} is not the file that was saved with {ARRAYS}; copy the folder again"
            )
    try:
        schema, tree = Schema.from_json(json.loads(documents[SCHEMA])), json.loads(documents[PREPARATION])
        kinds = LinearModel | CurvedModel | TreeModel | Perceptron | ModuleModel
        model = PARTS.from_plain(tree["model"], kinds, arrays, "model")
        low, high = PARTS.from_plain(tree["bounds"], tuple[float, float], arrays, "bounds")
        faults = shape_faults(model, schema)
        health = Health.from_json(json.loads(documents[HEALTH])) if HEALTH in documents else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"{source / PREPARATION} describes no model ({error}); copy the folder again") from None
    if faults:
        raise InvalidArgument(f"the model in {source} does not fit together: {'; '.join(faults)}")
    ledger = verify(source / LEDGER).ledger
    if ledger.model != _sha256(documents, arrays):
        raise InvalidArgument(f"{source / LEDGER} is the ledger of another model; copy the folder again")
    return {"schema": schema, "model": model, "bounds": (low, high), "ledger": ledger, "health": health}


def _described(
    schema: Schema, model: Any, bounds: tuple[float, float]
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Return the JSON files and the arrays of a model."""
    arrays: dict[str, np.ndarray] = {}

    def keep(place: str, array: np.ndarray) -> str:
        arrays[place] = array
        return place

    tree = {"bounds": list(bounds), "model": PARTS.to_plain(model, "model", keep)}
    return {SCHEMA: to_json(schema.to_json()).encode(), PREPARATION: to_json(tree).encode()}, arrays


def _sha256(documents: Mapping[str, bytes], arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name in (SCHEMA, PREPARATION):
        found.update(hashlib.sha256(documents[name]).digest())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _readme(guarantee: Guarantee) -> str:
    if guarantee.private:
        shared = (
            "The files below hold only public facts and what was released under this guarantee. "
            "All of them may be shared with everyone the guarantee is meant for; keep them together."
        )
    else:
        shared = "**Share none of these files**: the model is not private."
    rows = "\n".join(f"| `{name}` | {what} |" for name, what in HOLDS.items())
    return f"""# A fitted model

{guarantee}

{shared}

| file | what it holds |
| --- | --- |
{rows}

Predictions for private rows are private: they are not covered by the guarantee, and are not in this folder.

    diff2 predict THIS_FOLDER new.csv --out predictions.csv

or, in Python, `diff2.FittedModel.load("THIS_FOLDER").predict(table)`.
"""
