"""Sealed runs where only the server can call: the coordinator says what to ask, and keeps model and ledger."""

import numpy as np
import pytest

from diff2._files import read_json
from diff2.federation.faults import BadAnswer, SiteRefused, SitesMissing
from diff2.federation.flare.follow import JobStopped, error_of
from diff2.federation.flare.local import run_locally
from diff2.federation.sealed.keys import CIPHERTEXTS, SEALED, SiteKeys
from diff2.federation.server import OUTCOME, PROGRESS
from diff2.federation.server.job import JobSpec
from diff2.federation.server.relay import COORDINATE, REPLIES, relay_job
from diff2.federation.site.approval import approve
from diff2.federation.site.coordinator import CoordinatorSite
from diff2.federation.site.policy import read_site_file
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.transport import InProcessTransport
from diff2.privacy import Ledger
from diff2.training.model_file import file_digest, model_digest
from federated import NAMES, federated_run, in_process, lines, own_noise, write_sites

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")


@pytest.fixture(scope="module")
def keys():
    return SiteKeys.generate()


def write_sealed_sites(directory, keys, *agreements):
    write_sites(directory, *agreements, more='[site]\nkeys = "../sites.keys"\n')
    keys.save(directory / "sites.keys")
    return directory


def coordinator_sites(directory):
    return {name: CoordinatorSite(name, read_site_file(directory / name / "site.toml")) for name in NAMES}


def spec_of(directory, name="diff2", aggregation="tenseal", timeout=30.0):
    return JobSpec(own_noise(name, 2, aggregation), directory / "server", timeout=timeout)


def same_as_in_the_open(directory, tmp_path, name="diff2"):
    expected, _ = federated_run(own_noise(name, 2), tmp_path / "open")
    for site in NAMES:
        (path,) = (directory / site / "diff2-site").glob("*.npz")
        assert np.array_equal(np.load(path)["params"], expected.params.numpy())
    (folder,) = (directory / NAMES[0] / "diff2-site" / "runs").iterdir()
    assert Ledger.read(folder / "ledger.jsonl").releases == expected.ledger.releases
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["diff2", pytest.param("bvr", marks=pytest.mark.slow)])
def test_the_coordinator_trains_and_the_server_has_neither_model_nor_ledger(name, keys, tmp_path):
    spec = spec_of(tmp_path, name)
    directory = write_sealed_sites(tmp_path / "sites", keys, spec.agreement)
    relay_job(spec, in_process(coordinator_sites(directory)))
    same_as_in_the_open(directory, tmp_path, name)
    assert read_json(spec.directory / OUTCOME)["state"] == "done"
    assert {path.name for path in spec.directory.iterdir()} == {OUTCOME, PROGRESS, "result.json"}
    sentence = read_json(spec.directory / "result.json")["guarantee"]["sentence"]
    assert "The server sees ciphertexts" in sentence


def test_a_stopped_run_is_resumed_with_the_same_bytes(keys, tmp_path):
    spec = spec_of(tmp_path)
    directory = write_sealed_sites(tmp_path / "sites", keys, spec.agreement)
    sites, sums = coordinator_sites(directory), []

    def broken(payload):
        sums.append(read(payload).kind)
        if sums.count(SEALED) > 3:
            raise ConnectionError("gone")
        return sites["south"].answer(payload)

    answerers = {name: site.answer for name, site in sites.items()}
    relay_job(spec, InProcessTransport({**answerers, "south": broken}))
    outcome = read_json(spec.directory / OUTCOME)
    assert (outcome["state"], outcome["error"]) == ("stopped", "SitesMissing")
    assert isinstance(error_of(outcome), JobStopped)  # to be tried again, as a new job
    relay_job(spec, in_process(coordinator_sites(directory)))  # all processes are new
    assert read_json(spec.directory / OUTCOME)["state"] == "done"
    same_as_in_the_open(directory, tmp_path)


def test_a_ciphertext_that_is_none_stops_the_run(keys, tmp_path):
    spec = spec_of(tmp_path)
    directory = write_sealed_sites(tmp_path / "sites", keys, spec.agreement)
    sites = coordinator_sites(directory)

    def garbled(payload):
        answer = read(sites["south"].answer(payload))
        if answer.kind != CIPHERTEXTS:
            return write(answer)
        return write(Message(answer.kind, answer.fields, {"0": answer.arrays["0"][::-1]}))

    answerers = {name: site.answer for name, site in sites.items()}
    relay_job(spec, InProcessTransport({**answerers, "south": garbled}))
    outcome = read_json(spec.directory / OUTCOME)
    assert outcome["error"] == "BadAnswer"
    assert isinstance(error_of(outcome), BadAnswer)


def test_a_coordinator_without_keys(tmp_path):
    spec = spec_of(tmp_path)
    directory = write_sites(tmp_path / "sites", spec.agreement)
    with pytest.raises(SiteRefused, match=r"site\.toml"):
        relay_job(spec, in_process(coordinator_sites(directory)))
    assert read_json(spec.directory / OUTCOME)["error"] == "SiteRefused"


def test_a_coordinator_does_not_train_what_nobody_there_approved(keys, tmp_path):
    directory, spec = write_sealed_sites(tmp_path / "sites", keys), spec_of(tmp_path)
    with pytest.raises(SiteRefused, match="nobody at this site approved"):
        relay_job(spec, in_process(coordinator_sites(directory)))
    (*_, last) = lines(directory / "north" / "diff2-site" / "ledger.jsonl")
    assert last["agreement"] == spec.agreement.to_json()
    assert not (directory / "north" / "diff2-site" / "runs").exists()


def test_a_coordinator_that_is_gone(tmp_path):
    spec = spec_of(tmp_path)
    with pytest.raises(SitesMissing, match="'north'"):
        relay_job(spec, InProcessTransport({"south": lambda payload: b"", "north": 1 / 1}))


@pytest.mark.parametrize("answer", [Message("next", {}), Message("other", {}), Message("ended", {})])
def test_a_coordinator_that_answers_something_else(answer, tmp_path):
    with pytest.raises(BadAnswer):
        relay_job(spec_of(tmp_path), InProcessTransport(dict.fromkeys(NAMES, lambda _: write(answer))))


def test_a_site_that_does_not_coordinate_says_so(keys, tmp_path):
    directory = write_sealed_sites(tmp_path / "sites", keys)
    answer = read(coordinator_sites(directory)["south"].answer(write(Message(REPLIES, {}))))
    assert answer.kind == "refusal"
    assert "coordinates no run" in answer.fields["reason"]
    damaged = read(coordinator_sites(directory)["south"].answer(write(Message(COORDINATE, {"job": "{}"}))))
    assert "damaged" in damaged.fields["reason"]
    spec = spec_of(tmp_path)
    approve(directory / "south" / "diff2-site", spec.agreement)
    for members in (None, 3, "north"):
        garbled = Message(COORDINATE, {"job": spec.to_text(), "members": members})
        answer = read(coordinator_sites(directory)["south"].answer(write(garbled)))
        assert "list of names" in answer.fields["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["none", "tenseal"])
@pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning")
def test_the_simulator_gives_the_same_bytes(aggregation, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = spec_of(tmp_path, aggregation=aggregation)
    directory = write_sealed_sites(tmp_path / "sites", keys, spec.agreement)
    run_locally(spec, directory, simulate=True, restarts=1, start_timeout=300.0)
    if aggregation == "tenseal":
        same_as_in_the_open(directory, tmp_path)
    else:
        expected, _ = federated_run(own_noise("diff2", 2), tmp_path / "open")
        assert Ledger.read(spec.directory / "ledger.jsonl").releases == expected.ledger.releases
        assert file_digest(spec.directory / "model.safetensors") == model_digest(expected.model)
