"""Sealed runs where the server calls and sites answer: the lead says what to ask, and keeps model and ledger."""

import numpy as np
import pytest
import torch

from diff2.federation.faults import BadAnswer, SiteRefused, SitesMissing
from diff2.federation.flare import local as here
from diff2.federation.sealed import relay
from diff2.federation.sealed.keys import CIPHERTEXTS, SEALED, SiteKeys
from diff2.federation.sealed.relay import LeadingSite, carry_out_through_lead
from diff2.federation.server.order import OUTCOME, PROGRESS, Order, read_json
from diff2.federation.site.policy import read_site_file
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.transport import InProcessTransport
from diff2.privacy import Ledger
from federated import NAMES, federated_run, write_sites
from trusted import shared

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")


@pytest.fixture(scope="module")
def keys():
    return SiteKeys.generate()


def write_sealed_sites(directory, keys):
    write_sites(directory)
    keys.save(directory / "sites.keys")
    for name in NAMES:
        path = directory / name / "site.toml"
        path.write_text(path.read_text() + '[site]\nkeys = "../sites.keys"\n')
    return directory


def leading_sites(directory):
    return {name: LeadingSite(name, read_site_file(directory / name / "site.toml")) for name in NAMES}


def order_of(directory, name="diff2", aggregation="tenseal", timeout=30.0):
    return Order(shared(name, 2, aggregation), NAMES, directory / "server", timeout=timeout)


def transport_of(sites):
    return InProcessTransport({name: site.answer for name, site in sites.items()})


def same_as_in_the_open(directory, tmp_path, name="diff2"):
    expected, _ = federated_run(shared(name, 2), tmp_path / "open")
    for site in NAMES:
        (path,) = (directory / site / "diff2-site").glob("*.npz")
        assert np.array_equal(np.load(path)["params"], expected.params.numpy())
    (lead,) = (directory / NAMES[0] / "diff2-site" / "runs").iterdir()
    assert Ledger.read(lead / "ledger.jsonl").entries == expected.ledger.entries
    assert (lead / "model.pt").exists()


@pytest.mark.parametrize("name", ["diff2", "bvr"])
def test_the_lead_trains_and_the_server_has_neither_model_nor_ledger(name, keys, tmp_path):
    directory = write_sealed_sites(tmp_path / "sites", keys)
    order = order_of(tmp_path, name)
    carry_out_through_lead(order, transport_of(leading_sites(directory)))
    same_as_in_the_open(directory, tmp_path, name)
    assert read_json(order.directory / OUTCOME)["state"] == "done"
    assert {path.name for path in order.directory.iterdir()} == {OUTCOME, PROGRESS, "result.json"}
    sentence = read_json(order.directory / "result.json")["guarantee"]["sentence"]
    assert "The server sees ciphertexts" in sentence


def test_a_run_that_stopped_goes_on_to_the_same_bytes(keys, tmp_path):
    directory, order = write_sealed_sites(tmp_path / "sites", keys), order_of(tmp_path)
    sites, sums = leading_sites(directory), []

    def broken(payload):
        sums.append(read(payload).kind)
        if sums.count(SEALED) > 3:
            raise ConnectionError("gone")
        return sites["south"].answer(payload)

    answerers = {name: site.answer for name, site in sites.items()}
    carry_out_through_lead(order, InProcessTransport({**answerers, "south": broken}))
    outcome = read_json(order.directory / OUTCOME)
    assert (outcome["state"], outcome["error"]) == ("stopped", "SitesMissing")
    assert isinstance(here.stopped(outcome), here.JobStopped)  # to be tried again, as a new job
    carry_out_through_lead(order, transport_of(leading_sites(directory)))  # all processes are new
    assert read_json(order.directory / OUTCOME)["state"] == "done"
    same_as_in_the_open(directory, tmp_path)


def test_a_ciphertext_that_is_none_stops_the_run(keys, tmp_path):
    directory, order = write_sealed_sites(tmp_path / "sites", keys), order_of(tmp_path)
    sites = leading_sites(directory)

    def garbled(payload):
        answer = read(sites["south"].answer(payload))
        if answer.kind != CIPHERTEXTS:
            return write(answer)
        return write(Message(answer.kind, answer.fields, {"0": answer.arrays["0"][::-1]}))

    answerers = {name: site.answer for name, site in sites.items()}
    carry_out_through_lead(order, InProcessTransport({**answerers, "south": garbled}))
    outcome = read_json(order.directory / OUTCOME)
    assert outcome["error"] == "BadAnswer"
    assert isinstance(here.stopped(outcome), BadAnswer)


def test_a_lead_without_keys(tmp_path):
    directory, order = write_sites(tmp_path / "sites"), order_of(tmp_path)
    with pytest.raises(SiteRefused, match=r"site\.toml"):
        carry_out_through_lead(order, transport_of(leading_sites(directory)))
    assert read_json(order.directory / OUTCOME)["error"] == "SiteRefused"


def test_a_lead_that_is_gone(tmp_path):
    order = order_of(tmp_path)
    with pytest.raises(SitesMissing, match="'north'"):
        carry_out_through_lead(order, InProcessTransport({"south": lambda payload: b"", "north": 1 / 1}))


@pytest.mark.parametrize("answer", [Message("next", {}), Message("other", {}), Message("led", {})])
def test_a_lead_that_answers_something_else(answer, tmp_path):
    with pytest.raises(BadAnswer):
        carry_out_through_lead(order_of(tmp_path), InProcessTransport(dict.fromkeys(NAMES, lambda _: write(answer))))


def test_who_does_not_lead_says_so(keys, tmp_path):
    directory = write_sealed_sites(tmp_path / "sites", keys)
    answer = read(leading_sites(directory)["south"].answer(write(Message(relay.HEARD, {}))))
    assert answer.kind == "refusal"
    assert "leads no run" in answer.fields["reason"]
    damaged = read(leading_sites(directory)["south"].answer(write(Message(relay.LEAD, {"order": "{}"}))))
    assert "damaged" in damaged.fields["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["none", "tenseal"])
@pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning")
def test_the_simulator_gives_the_same_bytes(aggregation, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    directory, order = write_sealed_sites(tmp_path / "sites", keys), order_of(tmp_path, aggregation=aggregation)
    here.run_here(order, directory, simulate=True, restarts=1, start_timeout=300.0)
    if aggregation == "tenseal":
        same_as_in_the_open(directory, tmp_path)
    else:
        expected, _ = federated_run(shared("diff2", 2), tmp_path / "open")
        assert Ledger.read(order.directory / "ledger.jsonl").entries == expected.ledger.entries
        state = torch.load(order.directory / "model.pt", weights_only=True)
        assert torch.equal(torch.cat([part.reshape(-1) for part in state.values()]), expected.params)
