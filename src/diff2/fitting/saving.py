"""A fitted model as a folder without code: arrays in safetensors, all else in JSON.

A model is a tree of named parts with fields. Arrays go to ``model.safetensors``, which holds the guarantee and the
SHA-256 of the two JSON files in its metadata. ``preparation.json`` holds the tree with the numbers, and says where an
array belongs. The closing line of the ledger holds a hash of all of them. Reading builds the parts that are listed here
and no others, and checks each field against its declared type and each array against the shape that the schema implies.
"""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from .._files import to_json, write_whole
from .._version import __version__
from ..errors import InvalidArgument
from ..planning.verify import verify
from ..privacy import Ledger
from ..tables.schema import Schema
from .columns import Column
from .health import Health
from .linear import LinearModel
from .perceptron import ModuleModel, Perceptron
from .preparation import Preparation, Projections, Whitening
from .shapes import shape_faults
from .statistics import Design
from .trees import Binning, Half, Tree, TreeModel

PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        LinearModel, TreeModel, Perceptron, ModuleModel, Design, Preparation, Column, Whitening, Projections, Binning,
        Tree, Half,
    )
}  # fmt: skip
ARRAYS, SCHEMA, PREPARATION, LEDGER, HEALTH, README = (
    "model.safetensors", "schema.json", "preparation.json", "ledger.jsonl", "health.json", "README.md",
)  # fmt: skip
FORMAT = "1"


class Saved(NamedTuple):
    """What a folder holds."""

    schema: Schema
    model: Any
    bounds: tuple[float, float]
    ledger: Ledger
    health: Health | None = None


def save(folder: str | os.PathLike[str], saved: Saved) -> Path:
    """Write a model to a folder, which may hold its ledger already and nothing of another model."""
    from safetensors.numpy import save as to_bytes

    target = Path(folder)
    ledger_file = target / LEDGER
    own = saved.ledger.path is not None and ledger_file.exists() and ledger_file.samefile(saved.ledger.path)
    refuse_folder(target, except_for=(LEDGER,) if own else ())
    documents, arrays = _described(saved.schema, saved.model, saved.bounds)
    if saved.health is not None:
        documents[HEALTH] = to_json(saved.health.to_json()).encode()
    metadata = {
        "format": FORMAT,
        "library": f"diff2 {__version__}",
        "guarantee": str(saved.ledger.guarantee()),
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
    write_whole(target / README, _readme(saved).encode())
    write_whole(target / ARRAYS, to_bytes(arrays, metadata))
    return target


def model_sha256(schema: Schema, model: Any, bounds: tuple[float, float]) -> str:
    """Return a hash of all that a prediction depends on, for the closing line of the ledger."""
    return _sha256(*_described(schema, model, bounds))


def refuse_folder(folder: str | os.PathLike[str], except_for: tuple[str, ...] = ()) -> None:
    """Refuse a folder that holds files of another model."""
    for name in (ARRAYS, SCHEMA, PREPARATION, LEDGER, HEALTH):
        if name not in except_for and (Path(folder) / name).exists():
            raise InvalidArgument(f"{Path(folder) / name} exists: a model is never overwritten; choose another folder")


def load(folder: str | os.PathLike[str]) -> Saved:
    """Read a model; what is not as :func:`save` writes it is refused. Nothing in the folder is run."""
    from safetensors import SafetensorError, safe_open

    source = Path(folder)
    if not (source / ARRAYS).is_file():
        raise InvalidArgument(f"no model in {source}: expected a folder with {ARRAYS}, as diff2 fit writes it")
    try:
        with safe_open(source / ARRAYS, framework="np") as file:
            metadata, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = [name for name in (SCHEMA, PREPARATION, HEALTH) if name != HEALTH or f"sha256 of {name}" in metadata]
        documents = {name: (source / name).read_bytes() for name in names}
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"the model in {source} cannot be read ({error}); copy the whole folder anew") from None
    if metadata.get("format") != FORMAT:
        raise InvalidArgument(f"{source / ARRAYS} is not in format {FORMAT}; read it with the version that wrote it")
    for name, data in documents.items():
        if metadata.get(f"sha256 of {name}") != hashlib.sha256(data).hexdigest():
            raise InvalidArgument(f"{source / name} is not the file that was saved with {ARRAYS}; copy the folder anew")
    try:
        schema, tree = Schema.from_json(json.loads(documents[SCHEMA])), json.loads(documents[PREPARATION])
        model = _from_plain(tree["model"], LinearModel | TreeModel | Perceptron | ModuleModel, arrays, "model")
        low, high = _from_plain(tree["bounds"], tuple[float, float], arrays, "bounds")
        faults = shape_faults(model, schema)
        health = Health.from_json(json.loads(documents[HEALTH])) if HEALTH in documents else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"{source / PREPARATION} describes no model ({error}); copy the folder anew") from None
    if faults:
        raise InvalidArgument(f"the model in {source} does not fit together: {'; '.join(faults)}")
    ledger = verify(source / LEDGER).ledger
    if ledger.model != _sha256(documents, arrays):
        raise InvalidArgument(f"{source / LEDGER} is the ledger of another model; copy the folder anew")
    return Saved(schema, model, (low, high), ledger, health)


def _described(
    schema: Schema, model: Any, bounds: tuple[float, float]
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Return the JSON files and the arrays of a model."""
    arrays: dict[str, np.ndarray] = {}
    tree = {"bounds": list(bounds), "model": _to_plain(model, "model", arrays)}
    return {SCHEMA: to_json(schema.to_json()).encode(), PREPARATION: to_json(tree).encode()}, arrays


def _sha256(documents: Mapping[str, bytes], arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name in (SCHEMA, PREPARATION):
        found.update(hashlib.sha256(documents[name]).digest())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _to_plain(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return plain values; arrays are put aside under the name of their place."""
    if isinstance(value, np.ndarray):
        by_columns = value.ndim == 2 and value.flags.f_contiguous and not value.flags.c_contiguous
        arrays[place] = np.array(value.T if by_columns else value, order="C")
        return {"array": place, "by_columns": by_columns}  # sums of products may depend on the order, in the last bit
    if type(value) in PARTS.values():
        found = {name: _to_plain(getattr(value, name), f"{place}.{name}", arrays) for name in _hints(type(value))}
        return {"part": type(value).__name__, **found}
    if isinstance(value, tuple):
        return [_to_plain(one, f"{place}.{i}", arrays) for i, one in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    raise InvalidArgument(f"{place} is of type {type(value).__name__}, which a saved model cannot hold")


def _from_plain(found: Any, hint: Any, arrays: Mapping[str, np.ndarray], place: str) -> Any:
    """Return what plain values describe, if it is of the declared type."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return _from_plain(found, _option(found, get_args(hint), place), arrays, place)
    if hint is np.ndarray:
        array = arrays[found["array"]]
        if array.dtype not in (np.float64, np.int64, np.bool_) or not np.isfinite(array).all():
            raise ValueError(f"{place} holds something else than finite numbers in double precision")
        return array.T if found["by_columns"] else array
    if get_origin(hint) is tuple:
        of = get_args(hint)
        kinds = [of[0]] * len(found) if of[1:] == (...,) else list(of)
        if not isinstance(found, list) or len(found) != len(kinds):
            raise ValueError(f"{place} is no list of {len(kinds)}")
        return tuple(_from_plain(one, kind, arrays, f"{place}.{i}") for i, (one, kind) in enumerate(zip(found, kinds)))  # noqa: B905
    if hint in PARTS.values():
        declared = _hints(hint)
        if not isinstance(found, dict) or set(found) != {"part", *declared} or found["part"] != hint.__name__:
            raise ValueError(f"{place} is no {hint.__name__}")
        return hint(
            **{name: _from_plain(found[name], one, arrays, f"{place}.{name}") for name, one in declared.items()}
        )
    if hint is float and found in ("inf", "-inf"):
        return float(found)
    if hint is float and type(found) is int:
        return float(found)
    if (type(found) is not hint and not (hint is types.NoneType and found is None)) or found != found:
        raise ValueError(f"{place} is no {hint.__name__}")
    return found


def _option(found: Any, options: tuple[Any, ...], place: str) -> Any:
    """Return the type among several that plain values are of."""
    if found is None:
        wanted: Any = types.NoneType
    elif isinstance(found, dict):
        wanted = np.ndarray if "array" in found else PARTS.get(found.get("part", ""))
    else:
        wanted = float
    if wanted not in options:
        raise ValueError(f"{place} is of no type that is possible there")
    return wanted


def _hints(part: type) -> dict[str, Any]:
    """Return the declared type of each field."""
    hints = get_type_hints(part)
    if is_dataclass(part):
        names = [one.name for one in fields(part) if one.metadata.get("saved", True)]
    else:
        names = part._fields  # type: ignore[attr-defined]
    return {name: hints[name] for name in names}


def _readme(saved: Saved) -> str:
    guarantee = saved.ledger.guarantee()
    if guarantee.private:
        shared = (
            "The files below are made of public facts and of what was released under this guarantee, and of nothing "
            "else. All of them may be shared with whom the guarantee is made for; keep them together."
        )
    else:
        shared = "**Share none of these files**: the model is not private."
    return f"""# A fitted model

{guarantee}

{shared}

| file | what it holds |
| --- | --- |
| `{ARRAYS}` | the arrays of the model; the guarantee is in its metadata |
| `{PREPARATION}` | how arrays and numbers make a model |
| `{SCHEMA}` | columns, bounds, categories and target: what was known publicly |
| `{HEALTH}` | what releases say of the model's worth: a private score, noise against estimates |
| `{LEDGER}` | every release with its price; `diff2 account` adds them up |

Predictions for private rows are private: they are not covered by the guarantee, and are not in this folder.

    diff2 predict THIS_FOLDER new.csv --out predictions.csv

or, in Python, `diff2.FittedModel.load("THIS_FOLDER").predict(table)`.
"""
