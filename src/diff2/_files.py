"""Files, each way of handling them once: whole or not at all, plain JSON, TOML, safetensors, and a lock.

JSON has no infinity and no NaN: both are written as the words ``"inf"``, ``"-inf"`` and ``"nan"``.

>>> plain({"epsilon": float("inf"), "sizes": (1, 2)})
{'epsilon': 'inf', 'sizes': [1, 2]}
"""

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

from .errors import Diff2Error, InvalidArgument

AnyPath: TypeAlias = str | os.PathLike[str]


def plain(value: Any) -> Any:
    """Return plain JSON values; a named tuple or dataclass becomes a table, with its ``name`` first if it has one."""
    if is_dataclass(value) and not isinstance(value, type):
        name = {"name": value.name} if hasattr(value, "name") else {}
        return {**name, **{field.name: plain(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Integral | Real) and not isinstance(value, bool | int | float):  # of numpy
        return plain(int(value) if isinstance(value, Integral) else float(value))
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def to_json(value: Any) -> str:
    """Return a JSON document, ending in a line break."""
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document so that a reader sees the old or the new file, whole."""
    write_whole(path, to_json(value).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what :func:`write_json` wrote, or None where there is no such file yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_whole(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write a file that is there whole or not at all, whatever happens; a secret one is its owner's alone."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # one that a crash left has a mode of its own
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # where the disk is full, it is what filled it
        raise


def in_order(data: bytes) -> bytes:
    """Return a safetensors file with its metadata in order, which the library writes in a random one."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@contextmanager
def owner_only() -> Iterator[None]:
    """Have every file and folder that is made in the block be its owner's alone, from the moment it is there."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def read_toml(path: AnyPath, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file; ``what`` it is, for messages."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(f"no {what} at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not a TOML file: {error}") from None


@contextmanager
def locked(path: Path, what: str, *, patience: float) -> Iterator[None]:
    """Let one process at a time work on ``what``; wait for another at most ``patience`` seconds.

    The operating system gives the lock up when its holder is gone, however it went.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=patience, poll_interval=0.1):
            yield
    except Timeout:
        raise Diff2Error(f"another process uses {what}; wait until it has ended") from None
