"""``diff2 doctor``: what is installed here, and whether it suffices."""

import os
import platform
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, Any

import typer

from .._version import __version__
from .console import emit_json, ending, show_facts
from .options import Json

EXTRAS = {  # module -> extra, and what it is for
    "torch": ("torch", "diff2 train, fit --method network"),
    "cryptography": ("sign", "diff2 sign"),
    "sklearn": ("sklearn", "diff2.sklearn"),
    "numba": ("fast", "a compiled gradient engine"),
    "onnx": ("onnx", "FittedModel.to_onnx"),
    "nvflare": ("federation", "diff2 federate"),
    "tenseal": ("secure", "encrypted sums"),
    "joblib": ("experiments", "diff2 compare, reproduce"),
    "matplotlib": ("plots", "figures"),
    "pyarrow": ("parquet", "Parquet tables"),
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs will be written.")] = Path(),
    as_json: Json = False,
) -> None:
    """Show what is installed, which extras are missing, where randomness comes from, and what can be written.

    Paste it into a bug report. Exit status 1 if something that every run needs is missing.
    """
    with ending():
        found = examine(folder)
        if as_json:
            emit_json(found)
        else:
            for title in ("versions", "machine", "randomness", "files"):
                show_facts(title, {name: str(value) for name, value in found[title].items()})
            show_facts("packages", {name: _package(one) for name, one in found["packages"].items()})
            show_facts("verdict", {"problems": "; ".join(found["problems"]) or "none"})
        if found["problems"]:
            raise typer.Exit(1)


def examine(folder: Path) -> dict[str, Any]:
    """Return what was found, as plain values."""
    problems = []
    try:
        enough = len(os.urandom(32)) == 32
    except NotImplementedError:
        enough = False
    if not enough:
        problems.append("the operating system has no source of randomness: no run can be private here")
    writable = _writable(folder)
    if not writable:
        problems.append(f"cannot write to {folder}" if folder.is_dir() else f"{folder} is not a folder")
    packages = {name: _look_up(name, extra, use) for name, (extra, use) in EXTRAS.items()}
    return {
        "versions": {
            "diff2": __version__,
            "python": platform.python_version(),
            "numpy": _version("numpy"),
            "scipy": _version("scipy"),
        },
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            **{name: os.environ[name] for name in THREADS if name in os.environ},
            **_torch(),
        },
        "randomness": {
            "source": "getrandom" if hasattr(os, "getrandom") else "os.urandom",
            "works": enough,
            "stream": "SHAKE-256, a key of 256 bits for each run",
        },
        "files": {
            "folder": str(folder.resolve()),
            "writable": writable,
            "DIFF2_DATA": os.environ.get("DIFF2_DATA", "not set"),
            "terminal": sys.stderr.isatty(),
        },
        "packages": packages,
        "problems": problems,
    }


def _look_up(name: str, extra: str, use: str) -> dict[str, Any]:
    """Return whether a package is here, without importing it."""
    here = util.find_spec(name) is not None
    version = _version(name) if here else None
    return {"installed": here, "version": version, "for": use, "install": f"pip install 'diff2[{extra}]'"}


def _package(one: dict[str, Any]) -> str:
    return f"{one['version']}" if one["installed"] else f"missing, for {one['for']}: {one['install']}"


def _version(name: str) -> str:
    try:
        return metadata.version({"sklearn": "scikit-learn"}.get(name, name))
    except metadata.PackageNotFoundError:
        return "unknown"


def _torch() -> dict[str, Any]:
    """Return how PyTorch computes here, where it is installed."""
    if util.find_spec("torch") is None:
        return {}
    try:
        import torch
    except Exception as error:  # a broken installation is what this command is for
        return {"PyTorch": f"cannot be imported: {type(error).__name__}"}
    return {"PyTorch threads": torch.get_num_threads(), "CUDA": torch.cuda.is_available()}


def _writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
