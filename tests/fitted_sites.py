"""A fit over two sites whose tables together are that of ``fitted.py``, in this process."""

import csv
import warnings
from dataclasses import replace

import numpy as np

import diff2
from diff2.federation.fit_agreement import FitAgreement
from diff2.federation.server.fit import fit_at_sites
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.privacy.trust import Trust
from diff2.runfile.fit import FitSettings
from diff2.tables.kinds import Counts
from federated import in_process
from fitted import few_trees, schema, table

NAMES = ("north", "south")
ROLES = {"clients": "hospital", "groups": "person"}
ROWS = 400


def schema_of(kind):
    """The schema of a task; counts are the target of the regression, rounded."""
    if kind == "counts":
        return replace(schema("regression", **ROLES), target=Counts(10))
    return schema(kind, **ROLES)


def fit_agreement(kind="regression", *, trust=(), sites=NAMES, minimum_sites=None, **settings):
    given = {"epsilon": 8.0, "delta": 1e-4, "seed": 0, **settings}
    return FitAgreement(schema_of(kind), FitSettings(**given), sites, Trust(*trust), minimum_sites)


def of_hospitals(rows=ROWS):
    """The records of each hospital, in their order."""
    columns = table(rows)
    places = {name: np.flatnonzero(columns["hospital"] == name) for name in NAMES}
    return {
        name: {column: values[chosen] for column, values in columns.items() if column != "hospital"}
        for name, chosen in places.items()
    }


def write_tables(folder, policy="epsilon = inf", rows=ROWS):
    """Write NAME/site.toml and a table for each site: the records of one hospital, in their order."""
    for name, columns in of_hospitals(rows).items():
        (folder / name).mkdir(parents=True)
        with open(folder / name / "table.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*(cells.tolist() for cells in columns.values()), strict=True)])
        (folder / name / "site.toml").write_text(f'[data]\nfile = "table.csv"\n[policy]\n{policy}\n', encoding="utf-8")
    return folder


def sites_of(folder, *agreements):
    """The sites in a folder, where somebody approved these agreements."""
    found = {name: site_from_file(name, read_site_file(folder / name / "site.toml")) for name in NAMES}
    for site in found.values():
        for agreement in agreements:
            site.approve(agreement)
    return found


def fitted_at_sites(agreement, folder, transport=None, sites=None, **options):
    """Fit over sites in this process; return the model, and the sites."""
    if sites is None:
        places = folder / "sites"
        sites = sites_of(places if places.exists() else write_tables(places), agreement)
    with few_trees(), warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        model, _ = fit_at_sites(
            agreement, transport or in_process(sites), agreement.sites, directory=folder / "server", **options
        )
    return model, sites


def fitted_here(agreement, **options):
    """The same fit in one process, of one table, with few trees."""
    with few_trees():
        return fitted_fully(agreement, **options)


def fitted_fully(agreement, **options):
    """The same fit as in processes of their own, which know nothing of :func:`few_trees`."""
    settings = agreement.settings
    names = ("epsilon", "delta", "unit", "weighting", "score", "seed")
    given = {name: getattr(settings, name) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return diff2.fit(table(ROWS), agreement.schema, **given, **options)
