"""``[data] dataset = "covertype"``: a table of the catalogue, dealt to clients; ``builtin = "randhie"``: of our own."""

from dataclasses import dataclass

from .._validate import nearest, one_of
from ..errors import InvalidArgument
from . import randhie
from .catalogue import entry_of
from .datasets import ROWS, SYMBOLIC, check_totals, input_names, read_frame
from .places import require
from .scaling import Encoding, Scaling
from .settings import CommonSettings, TableSettings
from .tables import ClientTable, split_by_column

INDICATORS = ("keep", "scale")
UNIT = (-1.0, 1.0)  # as bounds of an indicator: 0 stays 0 and 1 stays 1
BUILTIN = ("randhie",)


@dataclass(frozen=True)
class DatasetSettings(CommonSettings):
    """The ``[data]`` table of a run file that names a public table: target, task, inputs and classes are known.

    Args:
        dataset: its name in the catalogue.
        rows: ``"train"``: only the publisher's training part, where there is one.
        symbolic: columns of text as ``"one_hot"`` indicators, or as ``"codes"``: the position in a sorted public list.
        indicators: ``"keep"`` leaves columns of 0 and 1 as they are whatever ``scale`` says; ``"scale"`` treats them
            like numbers.
        totals: ``"keep"``, or ``"average"``: averages instead of totals, where the catalogue knows them.
        folders: where to look for the table before DIFF2_DATA and the user's cache.
    """

    dataset: str
    rows: str = "all"
    symbolic: str = "one_hot"
    indicators: str = "keep"
    totals: str = "keep"
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        entry_of(self.dataset)
        one_of("rows", self.rows, ROWS)
        one_of("symbolic", self.symbolic, SYMBOLIC)
        one_of("indicators", self.indicators, INDICATORS)
        check_totals(entry_of(self.dataset), self.totals)
        self._check_columns()
        self.table()

    def _check_columns(self) -> None:
        if self.columns is not None and self.drop:
            raise InvalidArgument("expected columns (what to use) or drop (what to leave out), got both")
        entry = entry_of(self.dataset)
        if entry.target in self.drop:
            raise InvalidArgument(f"target={entry.target!r} cannot also be dropped")
        sources = [name for name in entry.columns if name != entry.target]
        if self.client_column is not None and self.client_column not in sources:
            raise InvalidArgument(
                f"client_column={self.client_column!r} is not a column of {self.dataset} that could separate clients"
                f"{nearest(self.client_column, sources)}"
            )
        known = self._known()
        for key, names in (
            ("columns", self.columns or ()),
            ("drop", self.drop),
            ("bounds", self.bounds),
            ("unscaled", self.unscaled),
        ):
            for name in names:
                if name not in known and not (key == "bounds" and name == entry.target):
                    raise InvalidArgument(
                        f"{key} names {name!r}, which is not an input of {self.dataset}{nearest(name, known)}"
                    )

    @property
    def group_column(self) -> None:
        """No column of these tables names groups of records."""
        return None

    @property
    def opening_share(self) -> float | None:
        """The share of the budget's mu^2 that is spent before the first round."""
        return self.table().opening_share

    @property
    def inputs(self) -> int:
        """How many inputs the model needs."""
        return self.table().inputs or 0

    @property
    def outputs(self) -> int:
        """How many outputs the model needs."""
        return len(entry_of(self.dataset).classes or (0,))

    def table(self) -> TableSettings:
        """Return the same settings with everything that the catalogue knows."""
        entry = entry_of(self.dataset)
        names = self._known()
        hot = [f"{name}={value}" for name, values in entry.symbolic.items() for value in values]
        kept = {name: UNIT for name in (*entry.indicators, *hot) if self.indicators == "keep" and name in names}
        columns = self.columns if self.columns is not None else tuple(n for n in names if n not in self.drop)
        bounds = {name: kept[name] for name in columns if name in kept and name not in self.unscaled}
        known = {"columns": columns, "drop": (), "bounds": {**bounds, **self.bounds}}
        return TableSettings(
            **{**self.common, **known}, target=entry.target, task=entry.task, file=entry.file, classes=entry.classes
        )

    def read(self) -> list[ClientTable]:
        """Read the table from where it is: one client, or one for each value of ``client_column``."""
        entry = entry_of(self.dataset)
        frame = read_frame(
            entry,
            require(entry, self.folders),
            rows=self.rows,
            symbolic=self.symbolic,
            totals=self.totals,
            plain=() if self.client_column is None else (self.client_column,),
        )
        return split_by_column(ClientTable(entry.name, frame), self.table())

    def _known(self) -> tuple[str, ...]:
        """Return the names of all possible inputs."""
        entry = entry_of(self.dataset)
        plain = () if self.client_column is None else (self.client_column,)
        names = input_names(entry, self.symbolic, plain, totals=self.totals)
        return tuple(name for name in names if name != self.client_column)


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
