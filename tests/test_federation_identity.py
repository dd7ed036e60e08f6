"""The seam: whatever algorithm asks, sites give the same bytes as clients in this process, under one seed."""

import pytest
import torch

from catalogue import CATALOGUE, PRIVATE, run
from federated import NAMES, agreement_of, federated_run, lines, make_sites, same_result


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_is_byte_identical_at_sites(name, tmp_path):
    here = run(name, budget=PRIVATE, seed=1, by_client=True)
    result, sites = federated_run(agreement_of(name), tmp_path)
    same_result(result, here)
    assert result.epsilon == here.epsilon
    assert result.plan.multipliers == here.plan.multipliers
    # Every site wrote down what it answered, and nothing was refused.
    for site in sites.values():
        kinds = [line["kind"] for line in lines(site.ledger.path)]
        assert kinds[:2] == ["site", "run"]
        assert kinds[-1] == "end"
        assert set(kinds[2:-1]) == {"answer"}
    assert set(sites) == set(NAMES)


def test_without_a_seed_runs_differ_and_are_private(tmp_path):
    agreement = agreement_of("bvr", seed=None)
    first, _ = federated_run(agreement, tmp_path / "first")
    second, _ = federated_run(agreement, tmp_path / "second")
    assert not torch.equal(first.params, second.params)
    assert first.ledger.guarantee().private


def test_a_run_that_was_killed_goes_on_with_the_same_bytes(tmp_path):
    here = run("bvr", budget=PRIVATE, seed=1, by_client=True)

    class Killed(Exception):
        pass

    def kill_in_round_5(exchange):
        if exchange.round == 5:
            raise Killed

    with pytest.raises(Killed):
        federated_run(agreement_of("bvr"), tmp_path, watch=kill_in_round_5)
    # The sites were restarted as well: all they have is their ledger.
    result, _ = federated_run(agreement_of("bvr"), tmp_path, make_sites(tmp_path / "sites"), resume=True)
    same_result(result, here)
    for name in NAMES:
        answered = [(r["round"], r["question"], r["step"]) for r in lines(tmp_path / "sites" / name / "ledger.jsonl")
                    if r["kind"] == "answer"]  # fmt: skip
        assert len(answered) == len(set(answered))
