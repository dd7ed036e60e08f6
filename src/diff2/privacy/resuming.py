"""Whether a run may be resumed: with the settings it was started with, and no others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

LONGEST = 200  # characters of a setting in a message


def lasting(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a header must be the same when a run is resumed: not when, by what and from which text."""
    return {name: value for name, value in header.items() if name not in ("time", "version", "run_file")}


def require_same_settings(path: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings; name the first that differs."""
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name):
            was, now = (repr(found.get(name))[:LONGEST] for found in (theirs, mine))
            raise CheckpointError(
                f"{path} belongs to another run: {name} was {was} and is now {now}. Resume with the original settings, "
                "or start a new run in another directory"
            )
