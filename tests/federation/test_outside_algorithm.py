"""An algorithm that is defined outside of the library, here, is priced, trained and federated from its declaration."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from catalogue import PRIVATE, SIZES, STEP, run
from diff2 import Algorithm, Estimate, Question, Smoothness
from diff2.algorithms import ALGORITHMS
from diff2.federation.faults import SiteRefused
from diff2.federation.wire.request import ANSWER
from diff2.privacy import Ledger
from diff2.routines import Routine
from federated import (
    APART,
    agreement_of,
    ask,
    difference,
    federated_run,
    gradient,
    opened,
    own_noise,
    refused,
    same_result,
)


@dataclass(frozen=True)
class RootSmoothness(Smoothness):
    """A radius rule of its own: it grows with the square root of the distance."""

    def radius(self, params, previous):
        return super().radius(params, previous) / math.sqrt(max(float((params - previous).norm()), 1e-300))


@dataclass(frozen=True)
class Anchored(Algorithm):
    """Two releases per round: a coarse gradient ("anchor"), and how it changed since the last round ("drift")."""

    rounds: int
    clip_gradient: float
    clip_drift: float
    routine: Routine

    name = "anchored"
    radii = ("clip_gradient", "clip_drift")

    def shares(self):
        return {"anchor": 2.0, "drift": 1.0}

    def questions(self, round, population):
        yield Question.gradient(self.clip_gradient, "anchor")
        if round > 1:
            yield Question.difference(RootSmoothness(self.clip_drift), "drift")

    def init(self, params, population):
        return {"previous": params, "estimate": torch.zeros_like(params, dtype=torch.float64)}

    def estimate(self, state, round):
        anchor, *drift = round.questions
        found = round.release(round.ask(anchor, round.params))
        value, variance = found.value, found.variance
        if drift:
            moved = round.release(round.ask(drift[0], round.params, state["previous"]))
            value = (value + state["estimate"] + moved.value) / 2
            variance = (variance + moved.variance) / 4
        return Estimate(value, variance), {"previous": round.params, "estimate": value}


@pytest.fixture(scope="module", autouse=True)
def _known():
    ALGORITHMS.register(Anchored)
    yield
    del ALGORITHMS._known["anchored"]


ALGORITHM = Anchored(5, 2.0, 1.5, STEP)
TRUSTS = {"server": (), "sites": ("sites",), "two honest sites": ("sites", 2)}


def test_sites_give_the_same_bytes_as_one_process(tmp_path):
    expected = run(ALGORITHM, budget=PRIVATE, seed=1, by_client=True)
    result, _ = federated_run(agreement_of(ALGORITHM), tmp_path)
    same_result(result, expected)
    assert [release.purpose for release in result.ledger.releases] == ["anchor", *["anchor", "drift"] * 4]


@pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)
def test_it_costs_what_was_planned(trust, tmp_path):
    result, _ = federated_run(agreement_of(ALGORITHM, trust=trust), tmp_path)
    assert torch.isfinite(result.params).all()
    assert result.epsilon == pytest.approx(2.0, rel=1e-6)
    shares = dict.fromkeys(ALGORITHM.shares(), 0.0)
    for release in result.ledger.releases:
        shares[release.purpose] += release.multiplier**-2
    assert shares["anchor"] == pytest.approx(2 * shares["drift"])
    assert {release.parties for release in result.ledger.releases} == {(*trust, 3)[1] if trust else 1}


@pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)
def test_the_ledgers_of_server_and_sites_hold_the_same_releases(trust, tmp_path):
    result, sites = federated_run(agreement_of(ALGORITHM, trust=trust), tmp_path)
    releases = Ledger.read(tmp_path / "server" / "ledger.jsonl").releases
    assert releases == result.ledger.releases
    weights = result.plan.population.weights(range(3))
    for site, weight in zip(sites.values(), weights, strict=True):
        (run_id,) = site.ledger.runs
        answers = site.ledger.answers(run_id)
        assert [answer.release.label for answer in answers] == [release.label for release in releases]
        for answer, release in zip(answers, releases, strict=True):
            own = answer.release
            names = ("mechanism", "multiplier", "noise_std", "rounding", "parties", "sha256")
            noise = {name: getattr(release, name) for name in names}
            if trust:  # the site's own part: its noise, and how far its own records can move it
                assert own.noise_std == release.noise_std / math.sqrt(release.parties)
                assert own.sensitivity == pytest.approx(release.sensitivity * weight / max(weights), rel=1e-12)
                own = own._replace(sensitivity=release.sensitivity)
                assert answer.multiplier == release.multiplier
            else:
                assert (own.mechanism, own.multiplier, own.noise_std) == ("none", 0.0, 0.0)
            assert own._replace(**noise) == release


def radius(factor=1.5):
    return factor * math.sqrt(APART)


@pytest.mark.parametrize("agree", [agreement_of, own_noise])
@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (gradient(), "does not ask this site for a gradient with purpose 'gradient'"),
        (gradient(purpose="anchor", step=1), "does not ask"),
        (gradient(purpose="anchor", round=6), "in round 6"),
        (gradient(purpose="anchor", radius=2.01), "the agreed rule allows 2"),
        (difference(purpose="drift", round=1, radius=radius()), "in round 1"),
        (difference(purpose="drift", radius=radius(1.51)), "asks for the radius"),
        (difference(purpose="anchor", radius=radius()), "does not ask this site for a difference"),
    ],
)
def test_a_question_that_it_does_not_declare_is_refused(agree, question, reason, tmp_path):
    agreement = agree(ALGORITHM)
    multipliers = agreement.plan(SIZES).multipliers if agree is own_noise else {}
    site = opened(tmp_path, agreement)
    assert refused(ask(site, question, multipliers.get(question.purpose, 9.0 if multipliers else 0.0)), reason)
    for declared in (gradient(purpose="anchor"), difference(purpose="drift", radius=radius())):
        assert ask(site, declared, multipliers.get(declared.purpose, 0.0)).kind == ANSWER


def test_a_site_that_does_not_know_it_refuses(tmp_path):
    agreement = agreement_of(ALGORITHM)
    del ALGORITHMS._known["anchored"]
    try:
        with pytest.raises(SiteRefused, match="got 'anchored'"):
            federated_run(agreement, tmp_path)
    finally:
        ALGORITHMS.register(Anchored)


def test_what_it_asks_beyond_its_declaration_never_leaves_the_server(tmp_path):
    class Greedy(Anchored):
        def estimate(self, state, round):
            return super().estimate(state, replace(round, questions=(Question.gradient(9.0, "anchor"),)))

    greedy = Greedy(5, 2.0, 1.5, STEP)
    with pytest.raises(SiteRefused, match="the agreed rule allows 2"):
        federated_run(agreement_of(greedy), tmp_path)
    assert Ledger.resume(tmp_path / "server" / "ledger.jsonl").releases == []
