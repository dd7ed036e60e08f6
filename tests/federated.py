"""A federation of three sites with the records of the catalogue, in this process or for a folder of site files."""

import json
import math
import warnings

import numpy as np
import torch

import diff2
from catalogue import CATALOGUE, HIDDEN, OPTIONS, PRIVATE, make_clients
from diff2.cohorts.clients import Client, as_owners
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.agreement import Agreement
from diff2.federation.server.run import close_run, prepare_at_sites
from diff2.federation.site.policy import Policy
from diff2.federation.site.records import SiteRecords
from diff2.federation.site.site import Site
from diff2.federation.wire.transport import InProcessTransport
from diff2.runfile.reader import ModelSettings, PrivacySettings, RunSettings

NAMES = ("north", "south", "east")
ANYTHING = Policy(epsilon=math.inf)
ENCODING = Encoding({f"x{i}": Scaling() for i in range(3)}, "y", Scaling(), None)


def agreement_of(name, *, budget=PRIVATE, seed=1, **changes):
    """The agreement on an entry of the catalogue: the model and the options its contract is tested with."""
    options = {**(OPTIONS.get(name, {}) if isinstance(name, str) else {}), **changes}
    grouped = options.pop("groups", None) is not None
    unit = options.pop("unit", "record")
    return Agreement(
        CATALOGUE[name] if isinstance(name, str) else name,
        ModelSettings(hidden=(HIDDEN,), seed=5),
        PrivacySettings(budget.epsilon, budget.delta, unit=unit),
        RunSettings(dtype="float64", seed=seed, **options),
        ENCODING,
        "owner" if grouped else None,
    )


def records_of(index, grouped=False):
    pair = make_clients()[index]
    client = Client(*(part.clone() for part in pair))
    owners = as_owners([OPTIONS["diff2, owners"]["groups"][index]], [client])[0] if grouped else None
    return SiteRecords(client, owners)


def make_site(index, directory, policy=ANYTHING):
    return Site(
        NAMES[index],
        lambda agreement: records_of(index, agreement.group_column is not None),
        policy,
        directory / NAMES[index],
    )


def make_sites(directory, policy=ANYTHING):
    return {name: make_site(i, directory, policy) for i, name in enumerate(NAMES)}


def quiet_prepare(agreement, transport, directory, sites=NAMES, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return prepare_at_sites(agreement, transport, sites, directory=directory, **options)


def federated_run(agreement, directory, sites=None, **options):
    """Train in this process; return the result and the sites."""
    sites = sites or make_sites(directory / "sites")
    transport = InProcessTransport({name: site.answer for name, site in sites.items()})
    training = quiet_prepare(agreement, transport, directory / "server", tuple(sites), **options)
    result = training.run(progress=False)
    assert close_run(training, transport, 5.0) == []
    return result, sites


def write_sites(directory, policy="epsilon = inf"):
    """Write a folder with a site.toml and the records of each site, as a site would have them."""
    for i, name in enumerate(NAMES):
        folder = directory / name
        folder.mkdir(parents=True)
        inputs, targets = (part.numpy() for part in make_clients()[i])
        groups = np.array([str(owner) for owner in OPTIONS["diff2, owners"]["groups"][i]])
        np.savez(folder / "records.npz", inputs=inputs, targets=targets, groups=groups)
        (folder / "site.toml").write_text(f'[data]\nfile = "records.npz"\n[policy]\n{policy}\n', encoding="utf-8")
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same_result(one, other):
    assert torch.equal(one.params, other.params)
    assert one.ledger.entries == other.ledger.entries
