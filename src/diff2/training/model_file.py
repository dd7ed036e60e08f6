"""The file of a trained model: tensors without code, the guarantee in its metadata, and the hash that its ledger holds.

Hashing a file needs no PyTorch, so whoever is given a run can verify it without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import in_order, write_whole
from .._version import __version__
from ..errors import LedgerError

if TYPE_CHECKING:
    import torch
    from torch import nn

MODEL = "model.safetensors"
TYPES = {  # of safetensors, and their names in PyTorch
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}  # fmt: skip


def write_model(path: Path, model: nn.Module, guarantee: str) -> None:
    """Write the state of a model, and in the metadata what holds for it."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    metadata = {"format": "pt", "library": f"diff2 {__version__}", "guarantee": guarantee}
    write_whole(path, in_order(save(state, metadata)))


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of all that a model holds, trained or not: names, shapes, types and values, by name."""
    return _digest((name, *_plain(tensor)) for name, tensor in sorted(model.state_dict().items()))


def file_digest(path: Path) -> str:
    """Return what :func:`model_digest` returns of the model in a file."""
    from safetensors import SafetensorError, deserialize

    try:
        found: Mapping[str, Mapping[str, bytes]] = dict(deserialize(path.read_bytes()))
        return _digest(
            (name, tuple(one["shape"]), f"torch.{TYPES[str(one['dtype'])]}", bytes(one["data"]))
            for name, one in sorted(found.items())
        )
    except (SafetensorError, KeyError) as error:
        raise LedgerError(f"{path} is not a saved model ({error})") from None


def stated_guarantee(path: Path) -> str | None:
    """Return the guarantee in the metadata of a model's file."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return (file.metadata() or {}).get("guarantee")


def _plain(tensor: torch.Tensor) -> tuple[tuple[int, ...], str, bytes]:
    import torch

    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(tensor.shape), str(tensor.dtype), raw


def _digest(tensors: Iterable[tuple[str, tuple[int, ...], str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, shape, kind, raw in tensors:
        digest.update(f"{name} {shape} {kind};".encode() + raw)
    return digest.hexdigest()
