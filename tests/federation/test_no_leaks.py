"""Records, gradients of single records and values without noise are in no message, file or log but where they belong.

The records are numbers like 1234.5678. Whatever crosses the transport, and every file that a run leaves at the server
and at its sites, is searched for them, as they are and as encoded, for the gradient of every record at every iterate,
clipped or not, and for the sums and means before noise. Each search is shown to find what is planted.
"""

import traceback
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from canaries import Canaries

from catalogue import HIDDEN, SIZES
from diff2 import Population
from diff2.cohorts.clients import Client
from diff2.cohorts.per_client import ClientSums
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.faults import SiteRefused
from diff2.federation.flare.local import run_locally
from diff2.federation.server.job import JobSpec, run_job
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.records import load_records
from diff2.federation.site.site import Site, site_from_file
from diff2.federation.wire.messages import read
from diff2.federation.wire.request import ASK, read_request
from diff2.privacy import NoiseSource
from diff2.questions import ALL
from federated import BOUNDS, NAMES, Recorder, agreement_of, raw_records, write_tables

pytestmark = pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning", "ignore::diff2.WeakDeltaWarning")

ENCODING = Encoding({f"x{i}": Scaling.of_input(BOUNDS) for i in range(3)}, "y", Scaling.of_target(BOUNDS), None)
DIMENSION = 3 * HIDDEN + HIDDEN + HIDDEN + 1
OWN = "diff2, own noise"
RUNS = ["diff2", OWN, pytest.param("bvr", marks=pytest.mark.slow)]


def agreement(name):
    found = agreement_of(name.removesuffix(", own noise"), trust=("sites",) if name == OWN else ())
    return replace(found, encoding=ENCODING)


class Traffic:
    """A run in this process, with all its messages, files and secrets."""

    def __init__(self, name, directory):
        self.agreement, self.directory = agreement(name), directory
        folder = write_tables(directory / "sites", self.agreement)
        self.files = {site: read_site_file(folder / site / "site.toml") for site in NAMES}
        transport = Recorder({site: site_from_file(site, file) for site, file in self.files.items()})
        run_job(JobSpec(self.agreement, directory / "run", timeout=60.0), transport)
        self.messages, self.bytes = transport.messages, transport.bytes
        self.records, self.gradients, self.sums = Canaries(), Canaries(), Canaries()
        self._note_records()
        self._note_values()

    def _note_records(self):
        for i, name in enumerate(NAMES):
            for row in raw_records(i):
                self.records.add(f"a record of {name}", row)
            for part in load_records(self.files[name], self.agreement).client:
                for row in part:
                    self.records.add(f"an encoded record of {name}", row)

    def _note_values(self):
        """Recompute, for every question, what each record and each site contributes before noise."""
        clients = {name: load_records(file, self.agreement).client for name, file in self.files.items()}
        engine, _ = self.agreement.build_engine()
        self.clients, self.engine = clients, engine
        source, population = NoiseSource.from_seed(1), Population(SIZES)
        means = {}
        for site, request, answer in self.messages:
            parts = questions(read(request))
            if not parts:
                continue
            index, fields = NAMES.index(site), read(answer).fields
            sums = ClientSums(engine, clients[site], index, population, source=source)
            value = sum(factor * sums.answer(asked) for factor, asked in parts)
            asked = parts[0][1]
            round, clients_asked = asked.round, asked.batch.clients or (0, 1, 2)
            part = value * population.weights(clients_asked, asked.batch)[clients_asked.index(index)]
            grids = [fields["grid"]] if "grid" in fields else []
            for what, vector in (("sum", value), ("part", part)):
                self.sums.add(f"the {what} of {site} in round {round}", vector, grids)
            means[request] = means.get(request, 0) + part
            for _, asked in parts:
                self._note_gradients(engine, clients[site], asked, grids, site)
        for mean in means.values():
            self.sums.add("a mean", mean)

    def _note_gradients(self, engine, client, asked, grids, site):
        for i in range(client.size):
            alone = ClientSums(engine, Client(*(part[i : i + 1] for part in client)), 0, Population((1,)))
            for radius in (asked.radius, 100.0):  # unclipped, and on a grid so fine that no time in a log is on it
                value = alone.answer(replace(asked, radius=radius, batch=ALL, remember=False))
                self.gradients.add(f"a gradient of a record of {site}", value, grids)


def questions(message):
    """The questions in a message, with their weights in a release."""
    return read_request(message, DIMENSION, torch.float64).parts if message.kind == ASK else ()


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    return cache(lambda name: Traffic(name, tmp_path_factory.mktemp("traffic")))


def is_table(path):
    return path.name == "records.csv"


@pytest.mark.parametrize("name", RUNS)
def test_no_record_and_no_gradient_of_a_record_is_in_a_message(name, traffic):
    run = traffic(name)
    assert len(run.messages) > 3 * 7
    everything = run.bytes
    assert len(run.records) == 2 * 4 * sum(SIZES)
    assert len(run.gradients) > 7 * sum(SIZES) * DIMENSION
    assert not run.records.search(everything)
    assert not run.gradients.search(everything)


@pytest.mark.parametrize("name", RUNS)
def test_no_value_without_noise_reaches_a_site(name, traffic):
    """Sites hear iterates and radii; what other sites answered, and the mean of it, they hear with noise alone."""
    run = traffic(name)
    assert not run.sums.search(b"\n".join(request for _, request, _ in run.messages))


def test_no_value_without_noise_reaches_the_server_where_the_sites_add_it(traffic):
    run = traffic(OWN)
    assert not run.sums.search(b"\n".join(answer for _, _, answer in run.messages))


def test_the_search_finds_what_the_trusted_server_does_get(traffic):
    """Where the server adds the noise, the answers hold the sums: the same search over the same bytes finds them."""
    run = traffic("diff2")
    found = run.sums.search(b"\n".join(answer for _, _, answer in run.messages))
    assert {"the sum of north in round 1", "the sum of east in round 7"} <= {name for name, _ in found}


@pytest.mark.parametrize("name", RUNS)
def test_no_file_holds_records_gradients_or_values_without_noise(name, traffic):
    run = traffic(name)
    for secret in (run.records, run.gradients, run.sums):
        found, searched = secret.search_files(run.directory, leave_out=is_table)
        assert not found
        assert searched > 10_000
    found, _ = run.records.search_files(run.directory)
    assert sorted(found) == [f"sites/{name}/records.csv" for name in sorted(NAMES)]  # the search has eyes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning")  # of a library that FLARE uses
@pytest.mark.parametrize("name", ["diff2", OWN])
def test_no_file_or_log_of_real_processes_holds_them_either(name, traffic, tmp_path):
    """The seed makes it the same run, with the same gradients; FLARE's kits, jobs and logs are searched as well."""
    run = traffic(name)
    sites = write_tables(tmp_path / "sites", run.agreement)
    spec = JobSpec(run.agreement, tmp_path / "run", timeout=60.0)
    run_locally(spec, sites, simulate=False, restarts=0, start_timeout=150.0)
    for secret in (run.records, run.gradients, run.sums):
        found, searched = secret.search_files(tmp_path, leave_out=is_table)
        assert not found
        assert searched > 100_000
    logs = [path for path in tmp_path.rglob("*") if path.suffix in (".log", ".txt") and path.stat().st_size]
    assert len(logs) > 2 * len(NAMES)
    planted = next(path for path in logs if "south" in path.parts)
    with open(planted, "a", encoding="utf-8") as log:
        log.write(f"ERROR in row {raw_records(1)[5].tolist()}\n")
    found, _ = run.records.search_files(tmp_path, leave_out=is_table)
    assert list(found) == [str(planted.relative_to(tmp_path))]


WAYS = {
    "text": lambda vector: ", ".join(map(repr, vector.tolist())).encode(),
    "scientific": lambda vector: " ".join(f"{value:.12e}" for value in vector).encode(),
    "double": lambda vector: b"odd" + vector.astype("<f8").tobytes(),
    "single": lambda vector: b"o" + vector.astype("<f4").tobytes(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["record", "encoded", "gradient", "sum"])
def test_a_planted_leak_is_found(what, way, traffic):
    run = traffic("diff2")
    site, request, answer = next(message for message in run.messages if read(message[1]).kind == ASK)
    client = run.clients[site]
    alone = ClientSums(run.engine, Client(*(part[2:3] for part in client)), 0, Population((1,)))
    planted, secret = {
        "record": (raw_records(NAMES.index(site))[2], run.records),
        "encoded": (client.inputs[2].numpy(), run.records),
        "gradient": (alone.answer(questions(read(request))[0][1]).numpy(), run.gradients),
        "sum": (read(answer).arrays["value"], run.sums),
    }[what]
    assert not secret.search(request)
    assert secret.search(request + WAYS[way](planted) + b"and so on")


def test_a_planted_number_of_steps_is_found(traffic):
    """A site's part without its noise is a vector of whole numbers."""
    run = traffic(OWN)
    site, request, answer = next(message for message in run.messages if questions(read(message[1])))
    grid, (_, asked) = read(answer).fields["grid"], questions(read(request))[0]
    index, population = NAMES.index(site), Population(SIZES)
    sums = ClientSums(run.engine, run.clients[site], index, population)
    part = sums.answer(asked) * population.weights(range(3))[index]
    steps = np.rint(part.numpy() / grid).astype("<i8")
    assert {way for _, way in run.sums.search(b"odd" + steps.tobytes())} == {"steps"}


def test_an_error_that_quotes_records_stays_at_the_site(tmp_path, monkeypatch):
    """What a library says about a table it cannot read is for the site's own log."""

    def failing(directory):
        files = write_tables(directory / "sites", replace(agreement("diff2"), sites=("north",)))
        record = raw_records(0)[3].tolist()

        def load(agreement):
            raise ValueError(f"cannot make sense of the row {record}")

        file = read_site_file(files / "north" / "site.toml")
        return Site("north", load, file.policy, file.directory)

    def asked(site):
        transport = Recorder({"north": site})
        alone = replace(agreement("diff2"), sites=("north",))
        with pytest.raises(SiteRefused, match="'north'"):
            run_job(JobSpec(alone, site._directory / "run", timeout=60.0), transport)
        return b"".join(answer for _, _, answer in transport.messages)

    records = Canaries()
    records.add("a record", raw_records(0)[3])
    site = failing(tmp_path / "good")
    assert not records.search(asked(site))
    found, _ = records.search_files(site._directory)
    assert list(found) == ["site.log"]
    refused = Site._refused
    monkeypatch.setattr(Site, "_refused", lambda self, run, reason, _=None: refused(self, run, traceback.format_exc()))
    assert records.search(asked(failing(tmp_path / "bad")))  # the same site, telling the server what went wrong
