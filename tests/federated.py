"""A federation of three sites with the records of the catalogue, in this process or in a folder of site files."""

import json
import math
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import diff2
from catalogue import CATALOGUE, HIDDEN, OPTIONS, PRIVATE, SAMPLED, SIZES, make_clients, start_vector
from diff2 import Question
from diff2.cohorts.clients import Client, as_groups
from diff2.cohorts.per_client import ClientSums
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.agreement import Agreement
from diff2.federation.server.run import close_run, prepare_at_sites
from diff2.federation.site.approval import approve, approved
from diff2.federation.site.policy import Policy
from diff2.federation.site.records import SiteRecords
from diff2.federation.site.site import Site
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.request import ANSWER, ASK, DESCRIBE, OPEN, Request, read_request
from diff2.federation.wire.transport import InProcessTransport
from diff2.privacy.trust import Trust
from diff2.runfile.reader import ModelSettings, PrivacySettings, RunSettings

NAMES = ("north", "south", "east")
ANYTHING = Policy(epsilon=math.inf)
ENCODING = Encoding({f"x{i}": Scaling() for i in range(3)}, "y", Scaling(), None)
RUN = "0123456789abcdef" * 2
START = start_vector()
NEXT = START + 0.01
C1, C2 = 2.0, 3.0  # radii of the catalogue
APART = float((NEXT - START).norm())
BOUNDS = (0.0, 5000.0)
LIKE_DIFF2 = {name for name in CATALOGUE if name.startswith("diff2, ") and name not in OPTIONS}  # the same questions
DEAR = SAMPLED - {"bvr", "dpsgd, fixed"}  # to price


def entries(*slow):
    """The names of the catalogue, those in ``slow`` marked so."""
    marked = set().union(*slow)
    return [pytest.param(name, marks=[pytest.mark.slow] if name in marked else []) for name in CATALOGUE]


def agreement_of(name, *, budget=PRIVATE, seed=1, trust=(), **changes):
    """The agreement on an algorithm, or on an entry of the catalogue with its options."""
    options = {**(OPTIONS.get(name, {}) if isinstance(name, str) else {}), **changes}
    grouped = options.pop("groups", None) is not None
    unit = options.pop("unit", "record")
    return Agreement(
        CATALOGUE[name] if isinstance(name, str) else name,
        ModelSettings(hidden=(HIDDEN,), seed=5),
        PrivacySettings(budget.epsilon, budget.delta, unit=unit),
        RunSettings(dtype="float64", seed=seed, **options),
        ENCODING,
        NAMES,
        "group" if grouped else None,
        trust=Trust(*trust),
    )


def own_noise(name, honest=None, aggregation="none", **changes):
    """The same, with noise from the sites."""
    return agreement_of(name, trust=("sites", honest, aggregation), **changes)


def records_of(index, grouped=False):
    client = Client(*(part.clone() for part in make_clients()[index]))
    return SiteRecords(client, as_groups([OPTIONS["diff2, groups"]["groups"][index]], [client])[0] if grouped else None)


def make_site(index, directory, policy=ANYTHING, keys=None):
    def load(agreement):
        return records_of(index, agreement.grouped)

    return Site(NAMES[index], load, policy, directory / NAMES[index], keys)


def make_sites(directory, policy=ANYTHING, keys=None):
    return {name: make_site(i, directory, policy, keys) for i, name in enumerate(NAMES)}


def approving(sites, agreement):
    """The same sites, where somebody approved the agreement."""
    for site in sites.values():
        site.approve(agreement)
    return sites


def in_process(sites):
    return InProcessTransport({name: site.answer for name, site in sites.items()})


def quiet_prepare(agreement, transport, directory, sites=NAMES, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return prepare_at_sites(agreement, transport, sites, directory=directory, **options)


def federated_run(agreement, directory, sites=None, **options):
    """Train in this process; return the result and the sites."""
    sites = approving(sites or make_sites(directory / "sites"), agreement)
    transport = in_process(sites)
    training = quiet_prepare(agreement, transport, directory / "server", tuple(sites), **options)
    result = training.run(progress=False)
    assert close_run(training, transport, 5.0) == []
    return result, sites


class Killed(Exception):
    pass


def killed_in(round):
    """Watches a run and kills it in a round."""

    def watch(exchange):
        if exchange.round == round:
            raise Killed

    return watch


def write_sites(directory, *agreements, policy="epsilon = inf", more=""):
    """Write a folder with a site.toml and the records of each site, as a site would have them; approve agreements."""
    for i, name in enumerate(NAMES):
        folder = directory / name
        folder.mkdir(parents=True)
        inputs, targets = (part.numpy() for part in make_clients()[i])
        groups = np.array([str(group) for group in OPTIONS["diff2, groups"]["groups"][i]])
        np.savez(folder / "records.npz", inputs=inputs, targets=targets, groups=groups)
        text = f'[data]\nfile = "records.npz"\n[policy]\n{policy}\n{more}'
        (folder / "site.toml").write_text(text, encoding="utf-8")
        for agreement in agreements:
            approve(folder / "diff2-site", agreement)
    return directory


def raw_records(index):
    """Numbers with eight digits, like 1234.5678, within ``BOUNDS``."""
    return np.round(np.random.default_rng(40 + index).uniform(1000, 4999, (SIZES[index], 4)), 4)


def write_tables(directory, *agreements):
    """Write a folder with a site.toml and a table of such records for each site; approve agreements."""
    for i, name in enumerate(NAMES):
        folder = directory / name
        folder.mkdir(parents=True)
        rows = ["x0,x1,x2,y", *(",".join(f"{value:.4f}" for value in row) for row in raw_records(i))]
        (folder / "records.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        (folder / "site.toml").write_text('[data]\nfile = "records.csv"\n[policy]\nepsilon = inf\n', encoding="utf-8")
        for agreement in agreements:
            approve(folder / "diff2-site", agreement)
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answer_labels(ledger_path):
    """What a site has answered, from its file."""
    found = [line for line in lines(ledger_path) if line["kind"] == "answer"]
    return [
        (line["release"]["round"], line["release"]["purpose"], line["question"], line["release"]["step"])
        for line in found
    ]


def same_result(one, other):
    assert torch.equal(one.params, other.params)
    assert one.ledger.releases == other.ledger.releases


# One site, asked by hand.


def tell(site, kind, **fields):
    return read(site.answer(write(Message(kind, fields))))


def describe(site, agreement):
    """Have the site approve the agreement, and describe itself."""
    site.approve(agreement)
    return tell(site, DESCRIBE, agreement=agreement.to_json())


@cache
def engine_of(model, grouped=False):
    """The engine of the agreements of these tests."""
    return replace(agreement_of("diff2, groups" if grouped else "diff2"), model=model).build_engine()[0]


def open_run(site, agreement, run=RUN, sites=NAMES, sizes=SIZES, engine=None):
    if not approved(site._directory, agreement):
        site.approve(agreement)
    engine = engine or engine_of(agreement.model, agreement.grouped).name
    fields = {"agreement": agreement.to_json(), "run": run, "sites": list(sites), "sizes": list(sizes)}
    return tell(site, OPEN, **fields, engine=engine)


def opened(directory, agreement, index=0, policy=ANYTHING, keys=None):
    """A site that has opened a run."""
    site = make_site(index, directory, policy, keys)
    answer = open_run(site, agreement)
    assert answer.kind == "opened", answer.fields
    return site


def gradient(params=START, radius=C1, round=1, **fields):
    """A gradient, as it is asked."""
    return Question("gradient", float(radius), **{"purpose": "gradient", **fields}, round=round, params=params)


def difference(params=NEXT, previous=START, radius=None, round=2, **fields):
    radius = C2 * float((params - previous).norm()) if radius is None else radius
    fields = {"purpose": "difference", **fields, "round": round, "params": params, "previous": previous}
    return Question("difference", float(radius), **fields)


def request(question, multiplier=0.0, weight=1.0, run=RUN):
    return Request(run, ((weight, question),), multiplier)


def ask(site, question, multiplier=0.0, **options):
    return read(site.answer(write(request(question, multiplier, **options).message())))


def refused(answer, part):
    assert answer.kind == "refusal", answer
    assert part in answer.fields["reason"]
    return True


# Sites that add their own noise: all messages, and what the noise was added to.


def words(data):
    """All runs of eight bytes, for looking up numbers in messages."""
    return {data[i : i + 8] for i in range(len(data))}


class Recorder:
    """A transport that keeps all messages; ``fault`` may change the answer of the site in the middle."""

    def __init__(self, sites, fault=None):
        self._inner = in_process(sites)
        self._fault = fault
        self.messages = []  # (site, request, answer)

    def members(self):
        return self._inner.members()

    def broadcast(self, payload, sites, timeout):
        replies = self._inner.broadcast(payload, sites, timeout)
        for site, answer in replies.answers.items():
            self.messages.append((site, payload, answer))
            if self._fault is not None and site == NAMES[1] and read(answer).kind == ANSWER:
                replies.answers[site] = self._fault(read(answer))
        return replies

    @property
    def exchanges(self):
        """The requests for answers, with the answers of the sites."""
        found = [(site, read(asked), read(answer)) for site, asked, answer in self.messages]
        return [(site, asked, answer) for site, asked, answer in found if asked.kind == ASK]

    @property
    def bytes(self):
        return b"".join(part for _, asked, answer in self.messages for part in (asked, answer))


def recorded_run(agreement, directory, fault=None):
    transport = Recorder(approving(make_sites(directory / "sites"), agreement), fault)
    return quiet_prepare(agreement, transport, directory / "server").run(progress=False), transport


class Truth:
    """What sites would have answered without noise: their parts of the weighted mean, computed here."""

    def __init__(self, agreement):
        self.population = agreement.protection.population(SIZES)
        self.engine, _ = agreement.build_engine()
        self._sums = [ClientSums(self.engine, records_of(i).client, i, self.population) for i in range(3)]

    def weight(self, site):
        return self.population.weights(range(3))[NAMES.index(site)]

    def part(self, site, message):
        parts = read_request(message, len(self.engine.flat), torch.float64).parts
        sums = self._sums[NAMES.index(site)]
        return self.weight(site) * sum(factor * sums.answer(question) for factor, question in parts).numpy()


def widened(agreement, width=4000):
    """The same agreement for a model with 5 * width + 1 parameters."""
    return replace(agreement, model=replace(agreement.model, hidden=(width,)))
