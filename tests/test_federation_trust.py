"""Sites that add their own noise: how much it is, what it costs against whom, and what a site refuses to release."""

import itertools
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

import diff2
from catalogue import CATALOGUE, NO_NOISE, SAMPLED, SIZES, start_vector
from diff2.algorithms.fused import fusion_gain
from diff2.errors import InvalidArgument, LedgerError
from diff2.federation.faults import BadAnswer, SiteRefused
from diff2.federation.own_noise.shares import agreed_plan, weight_of
from diff2.federation.site.policy import Policy, read_site_file
from diff2.federation.wire.messages import Message, digest, read, write
from diff2.federation.wire.releases import AskedRelease
from diff2.federation.wire.requests import ANSWER, OPEN, Asked
from diff2.privacy import Ledger, ReleaseEntry
from diff2.privacy.accounting import gdp_epsilon
from diff2.privacy.trust import Trust
from diff2.questions.population import ALL, Batch
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from federated import (
    ANYTHING,
    NAMES,
    agreement_of,
    federated_run,
    lines,
    make_site,
    make_sites,
    same_result,
)
from trusted import Truth, recorded_run, shared, words

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")

RUN = "0123456789abcdef" * 2
START = start_vector()
NEXT = START + 0.01
C1, C2 = 2.0, 3.0  # of the catalogue
DRAWN = "fused, client, 2 of 3 drawn"
DEAR = SAMPLED - {"bvr", "dpsgd, fixed"}  # to price
SLOW = {False: [], True: [pytest.mark.slow]}


@pytest.fixture(scope="module", params=["clients", "records"])
def wide(request, tmp_path_factory):
    """One release with 20,001 coordinates: the noise of each site's answer, and the result of the run."""
    agreement = shared(diff2.DPGD(1, C1, routine=diff2.GradientDescent(0.05)), honest=2, weighting=request.param)
    agreement = replace(agreement, model=replace(agreement.model, hidden=(4000,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        result, transport = recorded_run(agreement, tmp_path_factory.mktemp("wide"))
        truth = Truth(agreement)
    return {
        site: answer.arrays["steps"] * answer.fields["grid"] - truth.part(site, asked)
        for site, asked, answer in transport.shares
    }, result


class TestNoise:
    """Any H of the P shares together have the noise that the ledger counts on; all of them have P/H of its variance."""

    @pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
    @pytest.mark.parametrize("honest", [("north", "south"), ("north", "east"), ("south", "east"), NAMES])
    def test_of_honest_sites(self, wide, honest, factor, is_right):
        noise, result = wide
        total = sum(noise[site] for site in honest)
        scale = result.ledger.entries[0].noise_std * math.sqrt(len(honest) / 2)
        assert (scipy.stats.kstest(total, scipy.stats.norm(scale=scale * factor).cdf).pvalue > 0.01) == is_right

    def test_shares_are_independent(self, wide):
        noise, _ = wide
        for one, other in itertools.combinations(NAMES, 2):
            assert abs(np.corrcoef(noise[one], noise[other])[0, 1]) < 4 / math.sqrt(20_001)

    def test_the_estimate_knows_all_the_noise_and_the_ledger_what_it_counts_on(self, wide):
        _, result = wide
        entry = result.ledger.entries[0]
        population = result.plan.population
        assert entry.shares == 2
        assert entry.sensitivity == population.exposure(1).sensitivity * C1
        assert entry.noise_std == pytest.approx(entry.multiplier * entry.sensitivity, rel=1e-5)
        assert entry.noise_std >= entry.multiplier * entry.sensitivity
        assert result.history["noise_std"][0] == entry.noise_std
        assert result.history["estimate_std"][0] == pytest.approx(entry.noise_std * math.sqrt(3 / 2), rel=1e-12)

    def test_on_a_sites_own_mean_it_is_the_formula_of_the_notebook(self, wide):
        """xi_p ~ N(0, P^2/H sigma^2 C^2) on the mean of a site, where sites weigh alike."""
        noise, result = wide
        if result.plan.weighting == "clients":
            on_mean = 3 * noise["north"]
            expected = math.sqrt(3**2 / 2) * result.plan.sigma_1 * C1
            assert on_mean.std() == pytest.approx(expected, rel=0.02)

    def test_the_sum_is_exact(self, tmp_path):
        """The model moves by the sum of whole numbers of grid steps, and by nothing else."""
        agreement = shared("dpgd", honest=2)
        result, transport = recorded_run(agreement, tmp_path)
        last = [message for message in transport.shares if message[1].fields["round"] == 7]
        total = sum(answer.arrays["steps"] for _, _, answer in last) * last[0][2].fields["grid"]
        params = torch.from_numpy(last[0][1].arrays["params"])
        assert torch.equal(result.params, params - 0.05 * torch.from_numpy(total))


class TestVarianceOfEstimates:
    """Adam, fused and recursive estimates need the variance of all the noise."""

    def test_differences_add_up(self, tmp_path):
        result, _ = federated_run(shared("diff2", honest=1), tmp_path)
        squares = [3 * entry.noise_std**2 for entry in result.ledger.entries]
        found = result.history["estimate_std"] ** 2
        expected = [sum(squares[r - r % 3 : r + 1]) for r in range(7)]
        assert np.allclose(found, expected, rtol=1e-12, atol=0)

    def test_fused(self, tmp_path):
        result, _ = federated_run(shared("fused", honest=2), tmp_path)
        variance, expected = math.inf, []
        for r in range(1, 8):
            for entry in (entry for entry in result.ledger.entries if entry.round == r):
                real = 3 / 2 * entry.noise_std**2
                if entry.purpose == "difference":
                    variance += real
                else:
                    gain = fusion_gain(variance, real)
                    variance = real if gain == 1 else (1 - gain) * variance
            expected.append(variance)
        assert np.allclose(result.history["estimate_std"] ** 2, expected, rtol=1e-12, atol=0)

    def test_recursive(self, tmp_path):
        alone, _ = federated_run(shared("recursive", honest=1), tmp_path / "one")
        first = alone.ledger.entries[0]
        assert alone.history["estimate_std"][0] == pytest.approx(math.sqrt(3) * first.noise_std, rel=1e-9)

    def test_a_tree(self, tmp_path):
        result, _ = federated_run(shared("srnsgd", honest=1), tmp_path)
        first, second = result.ledger.entries[:2]
        assert result.history["estimate_std"][0] == pytest.approx(math.sqrt(3) * first.noise_std, rel=1e-12)
        # The sum of both leaves carries the noise of the root alone, and is divided by two.
        assert result.history["estimate_std"][1] == pytest.approx(math.sqrt(3) * second.noise_std / 2, rel=1e-12)

    def test_a_single_site_adds_all_of_it_and_no_more(self, tmp_path):
        agreement = shared("bvr", honest=2)
        result, transport = recorded_run(agreement, tmp_path)
        local = [entry for entry in result.ledger.entries if entry.purpose == "local"]
        assert {entry.shares for entry in local} == {1}
        for _, asked, answer in transport.shares:
            entry = next(
                entry for entry in result.ledger.entries
                if entry.stream == (asked.fields["round"], asked.fields["purpose"], asked.fields["step"])
            )  # fmt: skip
            assert answer.fields["noise_std"] == entry.noise_std / math.sqrt(entry.shares)


class TestPrices:
    @pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW[name in DEAR]) for name in CATALOGUE])
    def test_every_algorithm_runs_at_its_price(self, name, tmp_path):
        if name == DRAWN:
            pytest.skip("is refused; see TestSettings")
        result, sites = federated_run(shared(name, honest=2), tmp_path)
        theirs = [site.ledger.epsilon_against_server(next(iter(site.ledger.runs))) for site in sites.values()]
        guarantee = result.ledger.guarantee()
        assert result.epsilon <= 2.0 * (1 + 1e-6)
        # What the server's ledger says of the site that is exposed most, that site's own ledger says, too.
        assert max(theirs) == pytest.approx(guarantee.epsilon_of_one, rel=1e-4)
        assert guarantee.epsilon_of_one >= result.epsilon * (1 - 1e-9)
        assert all(entry.shares <= 2 for entry in result.ledger.entries)
        assert Ledger.read(tmp_path / "server" / "ledger.jsonl").entries == result.ledger.entries

    @pytest.mark.parametrize("honest", [1, 2, 3])
    def test_against_the_server_one_share_counts(self, honest, tmp_path):
        """All rounds are full Gaussian releases: mu against the server is sqrt(H) times the plan's."""
        result, sites = federated_run(shared("diff2", honest=honest), tmp_path)
        mu = result.plan.mu
        assert result.ledger.epsilon_of_one() == pytest.approx(gdp_epsilon(mu * math.sqrt(honest), 1e-3), rel=1e-9)
        assert result.epsilon == pytest.approx(gdp_epsilon(mu, 1e-3), rel=1e-9)
        for name, size in zip(NAMES, SIZES, strict=True):  # a record of a larger site weighs less: 1 / (3 n_p)
            own = sites[name].ledger.epsilon_against_server(next(iter(sites[name].ledger.runs)))
            assert own == pytest.approx(gdp_epsilon(mu * math.sqrt(honest) * 4 / size, 1e-3), rel=1e-4)

    def test_noise_chosen_on_the_way_is_priced_by_its_limit(self, tmp_path):
        result, sites = federated_run(shared("drift", honest=2), tmp_path)
        limit = gdp_epsilon(result.plan.mu * math.sqrt(2), 1e-3)
        assert result.ledger.epsilon_of_one() == pytest.approx(limit, rel=1e-9)
        for site in sites.values():
            assert site.ledger.epsilon_against_server(next(iter(site.ledger.runs))) >= limit * (1 - 1e-9)

    def test_of_a_run_under_way_it_is_its_limit_as_well(self):
        header = {"adjacency": "replace-one", "budget": {"delta": 1e-3}, "filter_mu": 1.0, "trust": {}}
        ledger = Ledger(header)
        ledger.record(ReleaseEntry(1, "gradient", "gaussian", 1.0, 1.0, 100.0, 100.0, 3, shares=4))
        assert ledger.epsilon() == gdp_epsilon(1.0, 1e-3)
        assert ledger.epsilon_of_one() == gdp_epsilon(2.0, 1e-3)

    def test_without_own_noise_it_is_infinite(self, tmp_path):
        _, sites = federated_run(agreement_of("diff2"), tmp_path)
        assert sites["north"].ledger.epsilon_against_server(next(iter(sites["north"].ledger.runs))) == math.inf

    def test_the_noise_that_counts_is_that_of_a_trusted_server(self, tmp_path):
        here, _ = federated_run(agreement_of("dpgd"), tmp_path / "server")
        there, _ = federated_run(shared("dpgd", honest=2), tmp_path / "sites")
        assert [e._replace(shares=1) for e in there.ledger.entries] == here.ledger.entries

    def test_a_line_must_say_who_shares_its_noise(self, tmp_path):
        federated_run(shared("diff2", honest=2), tmp_path)
        path = tmp_path / "server" / "ledger.jsonl"
        found = path.read_text().splitlines()
        fields = json.loads(found[1])
        for wrong in ({k: v for k, v in fields.items() if k != "shares"}, {**fields, "shares": 0}):
            path.write_text("\n".join([found[0], json.dumps(wrong), *found[2:]]) + "\n")
            with pytest.raises(LedgerError, match="line 2"):
                Ledger.read(path)


class TestGuarantee:
    def sentence(self, directory, honest, name="diff2", **changes):
        result, _ = federated_run(shared(name, honest, seed=None, **changes), directory)
        assert result.ledger.guarantee().private
        return result.guarantee

    def test_it_says_who_is_trusted_with_what(self, tmp_path):
        text = self.sentence(tmp_path, 2)
        for part in (
            "at least 2 of the 3 sites",
            "trusted to add the noise as agreed and to keep it secret",
            "the server is trusted to pass on nothing but sums",
            "Against the server itself",
            "epsilon 3.0556 instead",
            "satisfy (2, 0.001)-differential privacy",
        ):
            assert part in text
        assert "server that adds the noise is trusted" not in text

    def test_all_sites(self, tmp_path):
        assert "all 3 sites, which add the noise themselves, are trusted" in self.sentence(tmp_path, None)

    def test_poisson_batches_are_drawn_by_the_sites(self, tmp_path):
        assert "which draw the batches and add the noise themselves" in self.sentence(tmp_path, None, "dpsgd, poisson")

    def test_as_data(self, tmp_path):
        result, _ = federated_run(shared("diff2", honest=2), tmp_path)
        fields = result.ledger.guarantee().to_json()
        assert (fields["noise"], fields["sites"], fields["honest"]) == ("sites", 3, 2)
        assert "NOT PRIVATE, because the noise came from a seed" in fields["sentence"]
        assert "noise" not in federated_run(agreement_of("diff2"), tmp_path / "other")[0].ledger.guarantee().to_json()


class TestWhatTheServerSees:
    @pytest.mark.parametrize("name", ["diff2", "recursive", "diff2, telescoped"])
    def test_no_value_without_noise(self, name, tmp_path):
        agreement = shared(name, honest=2, seed=None)
        _, transport = recorded_run(agreement, tmp_path)
        sent = b"".join(part for _, asked, answer in transport.messages for part in (asked, answer))
        truth = Truth(agreement)
        found, noise = words(sent), []
        for site, asked, answer in transport.shares:
            assert set(answer.arrays) == {"steps"}
            assert set(answer.fields) == {"request", "grid", "noise_std", "together"}
            index, grid = NAMES.index(site), answer.fields["grid"]
            value = truth.part(site, asked)
            weight = weight_of(truth.population, index, ALL, 1)
            rounded = np.rint(value / grid)
            for hidden in (value, value / weight, value * 3, rounded * grid, rounded.astype(np.int64)):
                assert hidden.tobytes() not in sent
                assert not any(one.tobytes() in found for one in hidden if one != 0)
            off = (answer.arrays["steps"] - rounded) * grid / answer.fields["noise_std"]
            assert np.abs(off).min() > 1e-9  # of all answers together, by chance with probability 1e-6
            assert 0.3 < np.std(off) < 2.1  # 21 values: by chance in four of a million runs
            noise.extend(off)
        assert abs(np.mean(np.square(noise)) - 1) < 6 * math.sqrt(2 / len(noise))

    @pytest.mark.parametrize("kind", ["gradient", "difference"])
    def test_a_plain_question_is_refused(self, kind, tmp_path):
        site = opened(tmp_path, shared("diff2"))
        previous = None if kind == "gradient" else START
        asked = Asked(kind, RUN, 1 if kind == "gradient" else 2, NEXT, 0.01, previous)
        assert refused(site, asked.message(), "the sites add the noise")

    def test_and_a_release_where_the_server_adds_it(self, tmp_path):
        site = opened(tmp_path, agreement_of("diff2"))
        assert refused(site, gradient().message(), "the server adds the noise")


def opened(directory, agreement, index=0, policy=ANYTHING):
    site = make_site(index, directory, policy)
    fields = {"agreement": agreement.to_json(), "run": RUN, "sites": list(NAMES), "sizes": list(SIZES)}
    answer = read(site.answer(write(Message(OPEN, fields))))
    assert answer.kind == "opened", answer.fields
    return site


def multiplier(name="diff2", purpose="gradient"):
    return agreed_plan(shared(name), SIZES).multipliers[purpose]


def gradient(purpose="gradient", step=0, factor=1.0, round=1, name="diff2", params=START, radius=C1, batch=ALL, **more):
    z = multiplier(name, "difference" if purpose == "difference" else "gradient") if name == "diff2" else 1.0
    leaves = more.pop("leaves", 0)
    question = Asked("gradient", RUN, round, params, radius, batch=batch, **more)
    return AskedRelease(purpose, step, z * factor, ((1.0, question),), leaves)


def difference(round=2, factor=1.0, params=NEXT, weight=1.0):
    radius = C2 * float((params - START).norm())
    question = Asked("difference", RUN, round, params, radius, START)
    return AskedRelease("difference", 0, multiplier(purpose="difference") * factor, ((weight, question),))


def ask(site, asked):
    return site.answer(write(asked.message()))


def refused(site, message, part):
    answer = read(site.answer(write(message)))
    assert answer.kind == "refusal", answer
    assert part in answer.fields["reason"]
    return True


class TestOnce:
    """A second answer to the same question would be a second sample of the noise; to a changed one, its removal."""

    def test_the_same_release_gets_the_same_bytes(self, tmp_path):
        site = opened(tmp_path, shared("diff2", seed=None))
        first, second = ask(site, gradient()), ask(site, difference())
        assert read(first).kind == read(second).kind == ANSWER
        assert ask(site, gradient()) == first
        again = opened(tmp_path, shared("diff2", seed=None))  # restarted
        assert ask(again, difference()) == second
        assert ask(again, gradient()) == first
        assert [line["kind"] for line in lines(site.ledger.path)].count("answer") == 2

    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize(
        "changed", [gradient(params=NEXT), gradient(radius=C1 / 2), gradient(factor=2.0), gradient(remember=True)]
    )
    def test_a_changed_one_is_refused(self, tmp_path, changed, restarted):
        site = opened(tmp_path, shared("diff2", seed=None))
        assert read(ask(site, gradient())).kind == ANSWER
        if restarted:
            site = opened(tmp_path, shared("diff2", seed=None))
        assert refused(site, changed.message(), "answered already")

    def test_a_changed_weight_is_refused(self, tmp_path):
        site = opened(tmp_path, shared("diff2"))
        ask(site, gradient())
        ask(site, difference())
        assert refused(site, difference(weight=0.5).message(), "answered already")

    def test_a_lost_ledger_takes_the_noise_with_it(self, tmp_path):
        site = opened(tmp_path, shared("diff2", seed=None))
        first = read(ask(site, gradient()))
        site.ledger.path.unlink()
        again = read(ask(opened(tmp_path, shared("diff2", seed=None)), gradient()))
        assert not np.array_equal(first.arrays["steps"], again.arrays["steps"])

    def test_the_key_is_the_sites_own(self, tmp_path):
        one, other = (opened(tmp_path / place, shared("diff2", seed=None)) for place in ("one", "other"))
        assert ask(one, gradient()) != ask(other, gradient())
        assert (tmp_path / "one" / "north" / f"{RUN}.key").stat().st_mode & 0o777 == 0o600

    def test_the_line_is_written_before_the_answer_leaves(self, tmp_path, monkeypatch):
        site = opened(tmp_path, shared("diff2"))
        monkeypatch.setattr(site.ledger, "record", lambda line: 1 / 0)
        assert read(ask(site, gradient())).kind == "refusal"


class TestASiteHoldsToThePlan:
    """The noise is the site's to give: it computes the plan itself, and answers what is in it."""

    def test_less_noise(self, tmp_path):
        site = opened(tmp_path, shared("diff2"))
        assert refused(site, gradient(factor=0.999).message(), "noise multiplier")
        assert read(ask(site, gradient(factor=1.5))).kind == ANSWER

    def test_a_step_more(self, tmp_path):
        site = opened(tmp_path, shared("diff2"))
        assert read(ask(site, gradient())).kind == ANSWER
        assert refused(site, gradient(step=1).message(), "no more are answered")
        again = opened(tmp_path, shared("diff2"))
        assert refused(again, gradient(step=1).message(), "no more are answered")

    def test_another_purpose(self, tmp_path):
        site = opened(tmp_path, shared("diff2"))
        assert refused(site, gradient(purpose="difference").message(), "0 releases of kind 'difference'")
        assert refused(site, gradient(purpose="anything").message(), "0 releases")

    def test_a_larger_radius(self, tmp_path):
        assert refused(opened(tmp_path, shared("diff2")), gradient(radius=C1 * 1.01).message(), "radius")

    def test_what_was_amplified_by_sampling_is_not_asked_of_all_records(self, tmp_path):
        site = opened(tmp_path, shared("dpsgd, fixed"))
        assert refused(site, gradient(name="dpsgd", batch=ALL).message(), "does not ask this site")

    def test_two_releases_are_not_about_one_draw(self, tmp_path):
        """A batch drawn once and released twice is not amplified twice."""
        agreement = shared("bvr")
        z = agreed_plan(agreement, SIZES).multipliers["local"]
        site = opened(tmp_path, agreement, index=1)
        batch, radius = Batch(clients=(1,), size=2), C2 * float((NEXT - START).norm())

        def local(step, drawn):
            question = Asked("difference", RUN, 1, NEXT, radius, START, batch, drawn)
            return AskedRelease("local", step, z, ((1.0, question),))

        assert read(ask(site, local(2, 2))).kind == ANSWER
        assert refused(site, local(3, 2).message(), "is about the batch of step 2")
        assert read(ask(site, local(3, 3))).kind == ANSWER

    def test_noise_chosen_on_the_way_stays_within_its_limit(self, tmp_path):
        agreement = shared("drift")
        z = agreed_plan(agreement, SIZES).mu ** -1  # all of the budget in one release
        site = opened(tmp_path, agreement)
        asked = AskedRelease("gradient", 0, z * 1.01, ((1.0, Asked("gradient", RUN, 1, START, C1)),))
        assert read(ask(site, asked)).kind == ANSWER
        second = AskedRelease("gradient", 0, z * 5, ((1.0, Asked("gradient", RUN, 2, START, C1)),))
        assert refused(site, second.message(), "agreed were")
        assert refused(opened(tmp_path, agreement), second.message(), "agreed were")
        cheap = AskedRelease("gradient", 0, z * 50, ((1.0, Asked("gradient", RUN, 2, START, C1)),))
        assert read(ask(site, cheap)).kind == ANSWER

    @pytest.mark.parametrize("restarted", [False, True])
    def test_the_nodes_of_a_tree_have_one_scale(self, tmp_path, restarted):
        agreement = shared("srnsgd")
        z = agreed_plan(agreement, SIZES).multipliers["gradient"]

        def leaf(j, **changes):
            part = Batch(part=(j, 2))
            question = Asked("gradient", RUN, j + 1, START, changes.pop("radius", C1), batch=part)
            return AskedRelease("gradient", j, z * changes.pop("factor", 1.0), ((1.0, question),), 2)

        site = opened(tmp_path, agreement)
        assert read(ask(site, leaf(0))).kind == ANSWER
        if restarted:
            site = opened(tmp_path, agreement)
        assert refused(site, leaf(1, radius=C1 / 2).message(), "same noise")
        assert refused(site, leaf(1, factor=2.0).message(), "same noise")
        assert refused(site, leaf(1)._replace(step=0).message(), "not about")
        assert read(ask(site, leaf(1))).kind == ANSWER

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"multiplier": 0.0}, "multiplier"),
            ({"multiplier": "large"}, "finite number"),
            ({"multiplier": math.inf}, "finite number"),
            ({"purpose": 3}, "purpose"),
            ({"parts": []}, "questions"),
            ({"parts": "all"}, "questions"),
            ({"parts": [3]}, "not one"),
            ({"leaves": -1}, "leaves"),
            ({"step": 0.5}, "step"),
            ({"round": 2}, "another run or round"),
        ],
    )
    def test_a_release_that_is_malformed(self, tmp_path, change, reason):
        site = opened(tmp_path, shared("diff2"))
        message = gradient().message()
        assert refused(site, replace(message, fields={**message.fields, **change}), reason)

    def test_questions_about_different_draws(self, tmp_path):
        first, second = Asked("gradient", RUN, 1, START, C1), Asked("gradient", RUN, 1, START, C1, step=1)
        asked = AskedRelease("gradient", 0, 10.0, ((0.5, first), (0.5, second)))
        assert refused(opened(tmp_path, shared("diff2")), asked.message(), "drawn once")
        with pytest.raises(InvalidArgument, match="different params"):
            AskedRelease("gradient", 0, 10.0, ((0.5, first), (0.5, first._replace(params=NEXT)))).message()


class TestASiteThatLies:
    """The server, or whoever adds shares, takes only what can be one."""

    @pytest.mark.parametrize(
        ("name", "change", "reason"),
        [
            ("grid", lambda f, a: ({**f, "grid": f["grid"] * 2}, a), "on the grid"),
            ("noise", lambda f, a: ({**f, "noise_std": f["noise_std"] / 2}, a), "with noise of deviation"),
            ("request", lambda f, a: ({**f, "request": digest(b"")}, a), "another question"),
            ("floats", lambda f, a: (f, {"steps": a["steps"] * 1.0}), "not whole numbers"),
            ("shape", lambda f, a: (f, {"steps": a["steps"][:-1]}), "shape"),
            ("name", lambda f, a: (f, {"value": a["steps"]}), "shape"),
            ("length", lambda f, a: (f, {"steps": a["steps"] * 1000}), "longer than clipping and noise allow"),
            ("largest", lambda f, a: (f, {"steps": np.full_like(a["steps"], 2**62)}), "longer"),
        ],
    )
    def test_is_found_out(self, name, change, reason, tmp_path):
        def fault(answer):
            return write(Message(ANSWER, *change(answer.fields, answer.arrays)))

        with pytest.raises(BadAnswer, match=f"'south'.*{reason}"):
            recorded_run(shared("diff2"), tmp_path, fault)


class TestPolicy:
    def test_a_site_may_demand_its_own_noise(self, tmp_path):
        policy = replace(ANYTHING, require_own_noise=True)
        with pytest.raises(SiteRefused, match="demands that sites add the noise themselves"):
            federated_run(agreement_of("diff2"), tmp_path / "server", make_sites(tmp_path / "a", policy))
        result, _ = federated_run(shared("diff2"), tmp_path / "sites", make_sites(tmp_path / "b", policy))
        assert torch.isfinite(result.params).all()

    def test_in_its_file(self, tmp_path):
        text = '[data]\nfile = "x.csv"\n[policy]\nepsilon = 1.0\nrequire_own_noise = true\n'
        (tmp_path / "site.toml").write_text(text)
        assert read_site_file(tmp_path / "site.toml").policy == Policy(epsilon=1.0, require_own_noise=True)


class TestSettings:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"noise": "nobody"}, "trust"),
            ({"noise": "sites", "honest": 0}, "honest"),
            ({"noise": "server", "honest": 2}, "trust='sites'"),
            ({"noise": "server", "secure_aggregation": "tenseal"}, "trust='sites'"),
            ({"noise": "sites", "secure_aggregation": "hope"}, "secure_aggregation"),
        ],
    )
    def test_what_makes_no_sense(self, fields, message):
        with pytest.raises(InvalidArgument, match=message):
            Trust(**fields)

    def test_more_honest_sites_than_there_are(self, tmp_path):
        with pytest.raises(InvalidArgument, match=r"at most the number of sites, 3, got 4"):
            federated_run(shared("diff2", honest=4), tmp_path)

    def test_without_noise_there_is_nothing_to_share(self, tmp_path):
        with pytest.raises(InvalidArgument, match="finite epsilon"):
            federated_run(shared("diff2", budget=NO_NOISE), tmp_path)

    def test_clients_drawn_in_secret(self, tmp_path):
        with pytest.raises(InvalidArgument, match="round_robin"):
            federated_run(shared(DRAWN), tmp_path)

    def test_a_site_refuses_the_same(self, tmp_path):
        for agreement, reason in ((shared(DRAWN), "round_robin"), (shared("diff2", honest=4), "at most the number")):
            fields = {"agreement": agreement.to_json(), "run": RUN, "sites": list(NAMES), "sizes": list(SIZES)}
            assert refused(make_site(0, tmp_path), Message(OPEN, fields), reason)

    def test_in_a_run_file(self, tmp_path):
        text = (
            '[data]\ncolumns = ["x"]\ntarget = "y"\ntask = "regression"\nbounds = { x = [0, 1], y = [0, 1] }\n'
            '[algorithm]\nname = "dpgd"\nrounds = 3\nclip_gradient = 1.0\n'
            '[routine]\nname = "gradient_descent"\nlearning_rate = 0.1\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n'
            '[federation]\nsites = ["a", "b", "c"]\ntrust = "sites"\nhonest = %s\n'
        )
        (tmp_path / "run.toml").write_text(text % 2)
        run = read_run_file(tmp_path / "run.toml")
        assert run.federation.who == Trust("sites", 2)
        with pytest.raises(InvalidArgument, match="federate"):
            train_run_file(run, tmp_path / "out")
        (tmp_path / "run.toml").write_text(text % 4)
        with pytest.raises(InvalidArgument, match="at most the number of sites"):
            read_run_file(tmp_path / "run.toml")


def test_a_seeded_run_is_the_same_every_time_and_not_private(tmp_path):
    first, _ = federated_run(shared("bvr", honest=2), tmp_path / "first")
    second, _ = federated_run(shared("bvr", honest=2), tmp_path / "second")
    same_result(first, second)
    assert not first.ledger.guarantee().private
    other, _ = federated_run(shared("bvr", honest=2, seed=2), tmp_path / "other")
    assert not torch.equal(first.params, other.params)


@pytest.mark.parametrize("name", ["bvr", "srnsgd", "recursive"])
def test_a_run_that_was_killed_goes_on_with_the_same_bytes(name, tmp_path):
    whole, _ = federated_run(shared(name), tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill_in_round_4(exchange):
        if exchange.round == 4:
            raise Killed

    with pytest.raises(Killed):
        federated_run(shared(name), tmp_path, watch=kill_in_round_4)
    result, sites = federated_run(shared(name), tmp_path, make_sites(tmp_path / "sites"), resume=True)
    same_result(result, whole)
    for site in sites.values():
        found = [line for line in lines(site.ledger.path) if line["kind"] == "answer"]
        assert len({(line["round"], line["question"], line["step"]) for line in found}) == len(found)
