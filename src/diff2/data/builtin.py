"""Public tables that anyone has: ``[data] builtin = "randhie"``."""

from dataclasses import dataclass

from .._validate import one_of
from ..errors import InvalidArgument
from . import randhie
from .scaling import Encoding, Scaling

BUILTIN = ("randhie",)


@dataclass(frozen=True)
class BuiltinSettings:
    """The ``[data]`` table of a run file that uses a built-in table: clients, inputs and held-out records come with it.

    Args:
        builtin: ``"randhie"``: doctor visits at six sites, see ``data/randhie.py``; a fifth of the people is held out.
        group_column: ``"zper"`` protects people instead of person-years.
    """

    builtin: str
    group_column: str | None = None

    def __post_init__(self) -> None:
        one_of("builtin", self.builtin, BUILTIN)
        if self.group_column not in (None, randhie.PERSON):
            raise InvalidArgument(
                f"expected group_column to be {randhie.PERSON!r} with builtin={self.builtin!r}, got "
                f"group_column={self.group_column!r}"
            )

    @property
    def opening_share(self) -> None:
        """Nothing is spent before the first round."""
        return None

    @property
    def inputs(self) -> int:
        """How many inputs the model needs."""
        return len(randhie.FEATURES)

    @property
    def outputs(self) -> int:
        """How many outputs the model needs."""
        return 1

    def encoding(self) -> Encoding:
        """Return how its values are used: as ``randhie.scale`` gives them."""
        return Encoding({name: Scaling() for name in randhie.FEATURES}, f"log(1 + {randhie.TARGET})", Scaling(), None)
