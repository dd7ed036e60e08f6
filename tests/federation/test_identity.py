"""The seam: whatever algorithm asks, sites give the same bytes as clients in this process, under one seed."""

import pytest
import torch

from catalogue import PRIVATE, run
from federated import (
    DEAR,
    LIKE_DIFF2,
    NAMES,
    Killed,
    agreement_of,
    answer_labels,
    entries,
    federated_run,
    killed_in,
    lines,
    make_sites,
    own_noise,
    same_result,
)


@pytest.mark.parametrize("name", entries(LIKE_DIFF2, DEAR - {"dpsgd, poisson", "dpsrm", "dpfedavg", "dpscaffold"}))
def test_every_algorithm_is_byte_identical_at_sites(name, tmp_path):
    expected = run(name, budget=PRIVATE, seed=1, by_client=True)
    result, sites = federated_run(agreement_of(name), tmp_path)
    same_result(result, expected)
    assert result.epsilon == expected.epsilon
    assert result.plan.multipliers == expected.plan.multipliers
    # Every site recorded what it answered, and refused nothing.
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


@pytest.mark.parametrize(
    ("agree", "name"), [(agreement_of, "bvr"), (own_noise, "bvr"), (own_noise, "srnsgd"), (own_noise, "recursive")]
)
def test_a_killed_run_is_resumed_with_the_same_bytes(agree, name, tmp_path):
    whole, _ = federated_run(agree(name), tmp_path / "whole")
    with pytest.raises(Killed):
        federated_run(agree(name), tmp_path, watch=killed_in(4))
    # The sites were restarted as well: all they have is their ledger.
    result, sites = federated_run(agree(name), tmp_path, make_sites(tmp_path / "sites"), resume=True)
    same_result(result, whole)
    for site in sites.values():
        answered = answer_labels(site.ledger.path)
        assert len(answered) == len(set(answered)) > 0
