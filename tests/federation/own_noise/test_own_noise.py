"""Sites that add their own noise: how much it is, what it costs against whom, and what a site refuses to release."""

import itertools
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import diff2
from catalogue import NO_NOISE, SIZES
from diff2 import Batch
from diff2.cohorts.draws import EXACT_SIZES
from diff2.errors import InvalidArgument, LedgerError
from diff2.federation.faults import BadAnswer, SiteRefused
from diff2.federation.own_noise.noise import TAIL
from diff2.federation.site.policy import Policy, read_site_file
from diff2.federation.wire.messages import Message, digest, read, write
from diff2.federation.wire.request import ANSWER, read_request
from diff2.privacy import Ledger
from diff2.privacy.accounting import gdp_epsilon
from diff2.privacy.trust import Trust
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from federated import (
    ANYTHING,
    C1,
    DEAR,
    LIKE_DIFF2,
    NAMES,
    NEXT,
    RUN,
    START,
    Truth,
    agreement_of,
    answer_labels,
    ask,
    difference,
    entries,
    federated_run,
    gradient,
    make_site,
    make_sites,
    open_run,
    opened,
    own_noise,
    recorded_run,
    refused,
    request,
    same_result,
    widened,
    words,
)
from stubs import is_normal

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")

DRAWN = "recursive, client, 2 of 3 drawn"


@pytest.fixture(scope="module", params=["clients", "records"])
def wide(request, tmp_path_factory):
    """One release with 20,001 coordinates: the noise of each site's answer, and the result of the run."""
    agreement = own_noise(diff2.DPGD(1, C1, routine=diff2.GradientDescent(0.05)), honest=2, weighting=request.param)
    agreement = widened(agreement)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        result, transport = recorded_run(agreement, tmp_path_factory.mktemp("wide"))
        truth = Truth(agreement)
    return {
        site: answer.arrays["steps"] * answer.fields["grid"] - truth.part(site, asked)
        for site, asked, answer in transport.exchanges
    }, result


class TestNoise:
    """Any H of the P sites together add the noise that the ledger counts on; all of them add P/H of its variance."""

    @pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
    @pytest.mark.parametrize("honest", [("north", "south"), ("north", "east"), ("south", "east"), NAMES])
    def test_of_honest_sites(self, wide, honest, factor, is_right):
        noise, result = wide
        total = sum(noise[site] for site in honest)
        scale = result.ledger.releases[0].noise_std * math.sqrt(len(honest) / 2)
        assert is_normal(total, scale * factor) == is_right

    def test_sites_are_independent(self, wide):
        noise, _ = wide
        for one, other in itertools.combinations(NAMES, 2):
            assert abs(np.corrcoef(noise[one], noise[other])[0, 1]) < 4 / math.sqrt(20_001)

    def test_the_estimate_knows_all_the_noise_and_the_ledger_what_it_counts_on(self, wide):
        _, result = wide
        entry = result.ledger.releases[0]
        population = result.plan.population
        assert entry.parties == 2
        assert entry.sensitivity == population.release(gradient(), 1).sensitivity * C1
        assert entry.noise_std == pytest.approx(entry.multiplier * entry.sensitivity, rel=1e-5)
        assert entry.noise_std >= entry.multiplier * entry.sensitivity
        assert result.history["noise_std"][0] == entry.noise_std
        assert result.history["estimate_std"][0] == pytest.approx(entry.noise_std * math.sqrt(3 / 2), rel=1e-12)

    def test_on_a_sites_own_mean_it_is_the_formula_of_the_notebook(self, wide):
        """xi_p ~ N(0, P^2/H sigma^2 C^2) on the mean of a site, where sites weigh alike."""
        noise, result = wide
        if result.plan.population.weighting == "clients":
            on_mean = 3 * noise["north"]
            expected = math.sqrt(3**2 / 2) * result.plan.sigma_1 * C1
            assert on_mean.std() == pytest.approx(expected, rel=0.02)

    def test_the_sum_is_exact(self, tmp_path):
        """The model moves by the sum of whole numbers of grid steps, and by nothing else."""
        agreement = own_noise("dpgd", honest=2)
        result, transport = recorded_run(agreement, tmp_path)
        last = [message for message in transport.exchanges if message[1].fields["parts"][0]["round"] == 7]
        total = sum(answer.arrays["steps"] for _, _, answer in last) * last[0][2].fields["grid"]
        params = torch.from_numpy(last[0][1].arrays["params"])
        assert torch.equal(result.params, params - 0.05 * torch.from_numpy(total))


class TestVarianceOfEstimates:
    """Adam and recursive estimates need the variance of all the noise."""

    def test_differences_add_up(self, tmp_path):
        result, _ = federated_run(own_noise("diff2", honest=1), tmp_path)
        squares = [3 * entry.noise_std**2 for entry in result.ledger.releases]
        found = result.history["estimate_std"] ** 2
        expected = [sum(squares[r - r % 3 : r + 1]) for r in range(7)]
        assert np.allclose(found, expected, rtol=1e-12, atol=0)

    def test_recursive(self, tmp_path):
        alone, _ = federated_run(own_noise("recursive", honest=1), tmp_path / "one")
        first = alone.ledger.releases[0]
        assert alone.history["estimate_std"][0] == pytest.approx(math.sqrt(3) * first.noise_std, rel=1e-9)

    def test_a_tree(self, tmp_path):
        result, _ = federated_run(own_noise("srnsgd", honest=1), tmp_path)
        first, second = result.ledger.releases[:2]
        assert result.history["estimate_std"][0] == pytest.approx(math.sqrt(3) * first.noise_std, rel=1e-12)
        # The sum of both leaves carries the noise of the root alone, and is divided by two.
        assert result.history["estimate_std"][1] == pytest.approx(math.sqrt(3) * second.noise_std / 2, rel=1e-12)

    def test_a_single_site_adds_all_of_it_and_no_more(self, tmp_path):
        agreement = own_noise("bvr", honest=2)
        result, transport = recorded_run(agreement, tmp_path)
        local = [entry for entry in result.ledger.releases if entry.purpose == "local"]
        assert {entry.parties for entry in local} == {1}
        for _, asked, answer in transport.exchanges:
            question = read_request(asked, len(START), torch.float64).question
            label = (question.round, question.purpose, question.step)
            entry = next(entry for entry in result.ledger.releases if entry.label == label)
            assert answer.fields["noise_std"] == entry.noise_std / math.sqrt(entry.parties)


class TestPrices:
    @pytest.mark.parametrize("name", entries(DEAR, LIKE_DIFF2))
    def test_every_algorithm_runs_at_its_price(self, name, tmp_path):
        if name == DRAWN:
            pytest.skip("is refused; see TestSettings")
        result, sites = federated_run(own_noise(name, honest=2), tmp_path)
        theirs = [site.ledger.epsilon_against_server(next(iter(site.ledger.runs))) for site in sites.values()]
        guarantee = result.ledger.guarantee()
        assert result.epsilon <= 2.0 * (1 + 1e-6)
        # What the server's ledger says of the site that is exposed most, that site's own ledger says, too.
        assert max(theirs) == pytest.approx(guarantee.epsilon_of_one, rel=1e-4)
        assert guarantee.epsilon_of_one >= result.epsilon * (1 - 1e-9)
        assert all(entry.parties <= 2 for entry in result.ledger.releases)
        assert Ledger.read(tmp_path / "server" / "ledger.jsonl").releases == result.ledger.releases

    @pytest.mark.parametrize("honest", [1, 2, 3])
    def test_against_the_server_the_noise_of_one_site_counts(self, honest, tmp_path):
        """All rounds are full Gaussian releases: mu against the server is sqrt(H) times the plan's."""
        result, sites = federated_run(own_noise("diff2", honest=honest), tmp_path)
        mu = math.sqrt(sum(release.multiplier**-2 for release in result.plan.releases))
        assert result.ledger.epsilon_of_one() == pytest.approx(gdp_epsilon(mu * math.sqrt(honest), 1e-3), rel=1e-9)
        assert result.epsilon == pytest.approx(gdp_epsilon(mu, 1e-3), rel=1e-9)
        for name, size in zip(NAMES, SIZES, strict=True):  # a record of a larger site weighs less: 1 / (3 n_p)
            own = sites[name].ledger.epsilon_against_server(next(iter(sites[name].ledger.runs)))
            assert own == pytest.approx(gdp_epsilon(mu * math.sqrt(honest) * 4 / size, 1e-3), rel=1e-4)

    def test_without_own_noise_it_is_infinite(self, tmp_path):
        _, sites = federated_run(agreement_of("diff2"), tmp_path)
        assert sites["north"].ledger.epsilon_against_server(next(iter(sites["north"].ledger.runs))) == math.inf

    def test_the_noise_that_counts_is_that_of_a_trusted_server(self, tmp_path):
        here, _ = federated_run(agreement_of("dpgd"), tmp_path / "server")
        there, _ = federated_run(own_noise("dpgd", honest=2), tmp_path / "sites")
        for site, server in zip(there.ledger.releases, here.ledger.releases, strict=True):
            assert site._replace(parties=1, noise_std=0.0) == server._replace(noise_std=0.0, sha256="")
            assert site.noise_std == pytest.approx(server.noise_std, rel=1e-8)  # the grid is another

    def test_a_line_must_say_how_many_add_its_noise(self, tmp_path):
        federated_run(own_noise("diff2", honest=2), tmp_path)
        path = tmp_path / "server" / "ledger.jsonl"
        found = path.read_text().splitlines()
        fields = json.loads(found[1])
        for wrong in ({k: v for k, v in fields.items() if k != "parties"}, {**fields, "parties": 0}):
            path.write_text("\n".join([found[0], json.dumps(wrong), *found[2:]]) + "\n")
            with pytest.raises(LedgerError, match="line 2"):
                Ledger.read(path)


class TestGuarantee:
    def sentence(self, directory, honest, name="diff2", policy=ANYTHING, **changes):
        sites = make_sites(directory / "sites", policy)
        result, _ = federated_run(own_noise(name, honest, seed=None, **changes), directory, sites)
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
        text = self.sentence(tmp_path, None, "dpsgd, poisson", replace(ANYTHING, reported_size=15))
        assert "which draw the batches and add the noise themselves" in text
        assert "adding or removing any one record, among at most 45 of 3 clients" in text

    def test_poisson_batches_at_a_site_that_tells_its_exact_size_are_not_private(self, tmp_path):
        result, _ = federated_run(own_noise("dpsgd, poisson", None, seed=None), tmp_path)
        assert result.ledger.guarantee().leaks == (EXACT_SIZES,)

    def test_as_data(self, tmp_path):
        result, _ = federated_run(own_noise("diff2", honest=2), tmp_path)
        fields = result.ledger.guarantee().to_json()
        assert (fields["noise"], fields["sites"], fields["min_honest_sites"]) == ("sites", 3, 2)
        assert "NOT PRIVATE, because the noise came from a seed" in fields["sentence"]
        assert "noise" not in federated_run(agreement_of("diff2"), tmp_path / "other")[0].ledger.guarantee().to_json()


class TestWhatTheServerSees:
    @pytest.mark.parametrize("name", ["diff2", "recursive"])
    def test_no_value_without_noise(self, name, tmp_path):
        agreement = own_noise(name, honest=2, seed=None)
        _, transport = recorded_run(agreement, tmp_path)
        sent, truth = transport.bytes, Truth(agreement)
        found, noise = words(sent), []
        for site, asked, answer in transport.exchanges:
            assert set(answer.arrays) == {"steps"}
            assert set(answer.fields) == {"request", "grid", "noise_std", "together"}
            grid, value, weight = answer.fields["grid"], truth.part(site, asked), truth.weight(site)
            rounded = np.rint(value / grid)
            for hidden in (value, value / weight, value * 3, rounded * grid, rounded.astype(np.int64)):
                assert hidden.tobytes() not in sent
                assert not any(one.tobytes() in found for one in hidden if one != 0)
            off = (answer.arrays["steps"] - rounded) * grid / answer.fields["noise_std"]
            assert np.abs(off).min() > 1e-9  # of all answers together, by chance with probability 1e-6
            assert 0.3 < np.std(off) < 2.1  # 21 values: by chance in four of a million runs
            noise.extend(off)
        assert abs(np.mean(np.square(noise)) - 1) < 6 * math.sqrt(2 / len(noise))


def multiplier(name="diff2", purpose="gradient"):
    return own_noise(name).plan(SIZES).multipliers[purpose]


Z1, Z2 = multiplier(), multiplier(purpose="difference")


def leaf(j, leaves=4, **changes):
    return gradient(round=j + 1, batch=Batch(part=(j, leaves)), step=j, leaves=leaves, **changes)


class TestOnce:
    """A second answer to the same request would be a second sample of the noise; to a changed one, its removal."""

    def test_the_same_release_gets_the_same_bytes(self, tmp_path):
        agreement = own_noise("diff2", seed=None)
        payloads = [write(request(question, z).message()) for question, z in ((gradient(), Z1), (difference(), Z2))]
        site = opened(tmp_path, agreement)
        first, second = map(site.answer, payloads)
        assert read(first).kind == read(second).kind == ANSWER
        assert site.answer(payloads[0]) == first
        again = opened(tmp_path, agreement)  # restarted
        assert again.answer(payloads[1]) == second
        assert again.answer(payloads[0]) == first
        assert len(answer_labels(site.ledger.path)) == 2

    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize(
        ("changed", "factor", "weight"),
        [
            (gradient(params=NEXT), 1.0, 1.0),
            (gradient(radius=C1 / 2), 1.0, 1.0),
            (gradient(remember=True), 1.0, 1.0),
            (gradient(), 2.0, 1.0),
            (gradient(), 1.0, 0.5),
        ],
    )
    def test_a_changed_one_is_refused(self, tmp_path, changed, factor, weight, restarted):
        agreement = own_noise("diff2", seed=None)
        site = opened(tmp_path, agreement)
        assert ask(site, gradient(), Z1).kind == ANSWER
        if restarted:
            site = opened(tmp_path, agreement)
        assert refused(ask(site, changed, Z1 * factor, weight=weight), "answered already")

    def test_a_lost_ledger_takes_the_noise_with_it(self, tmp_path):
        site = opened(tmp_path, own_noise("diff2", seed=None))
        first = ask(site, gradient(), Z1)
        site.ledger.path.unlink()
        again = ask(opened(tmp_path, own_noise("diff2", seed=None)), gradient(), Z1)
        assert not np.array_equal(first.arrays["steps"], again.arrays["steps"])

    def test_an_older_copy_of_the_ledger_gets_other_noise_for_another_question(self, tmp_path):
        """With the same noise the two answers are apart by the difference of the sums, here 0.011 deviations."""
        agreement = own_noise("diff2", seed=None)
        site = opened(tmp_path, agreement)
        older = site.ledger.path.read_bytes()
        first = ask(site, gradient(), Z1)
        site.ledger.path.write_bytes(older)
        second = ask(opened(tmp_path, agreement), gradient(params=NEXT), Z1)
        apart = np.linalg.norm(first.arrays["steps"] - second.arrays["steps"]) / 2**32
        assert apart > 1.0  # of 21 coordinates, about the root of 42; below 1 once in 10^13

    @pytest.mark.parametrize("changed", range(4))
    def test_an_older_copy_of_the_ledger_inside_a_tree_gets_other_noise_for_another_value(self, tmp_path, changed):
        """Red with noise by node alone: apart by the difference of the values, 0.001 to 0.005 deviations of a node."""
        agreement, z = own_noise("srnsgd, 4 batches", seed=None), multiplier("srnsgd, 4 batches")
        site, copies, first = opened(tmp_path, agreement), [], []
        for j in range(4):
            copies.append(site.ledger.path.read_bytes())
            first.append(ask(site, leaf(j), z).arrays["steps"])
        site.ledger.path.write_bytes(copies[changed])
        site = opened(tmp_path, agreement)
        again = [
            ask(site, leaf(j, params=NEXT if j == changed else START), z).arrays["steps"] for j in range(changed, 4)
        ]
        sums, others = np.cumsum(first, 0), np.cumsum([*first[:changed], *again], 0)
        for count in range(changed, 4):
            assert np.linalg.norm(sums[count] - others[count]) / 2**32 > 1.0

    def test_a_tree_goes_on_after_a_restart_and_not_without_its_first_leaves(self, tmp_path):
        agreement, z = own_noise("srnsgd, 4 batches", seed=None), multiplier("srnsgd, 4 batches")
        site = opened(tmp_path, agreement)
        started = site.ledger.path.read_bytes()
        first = [ask(site, leaf(j), z).arrays["steps"] for j in range(2)]
        rest = [ask(opened(tmp_path, agreement), leaf(j), z).arrays["steps"] for j in (1, 2, 3)]
        assert np.array_equal(rest[0], first[1])
        # Two nodes beside each other, then one above them: the noise of the four is gone again.
        assert np.linalg.norm(first[0] + sum(rest)) / 2**32 < math.sqrt(21) + TAIL
        site.ledger.path.write_bytes(started)
        assert refused(ask(opened(tmp_path, agreement), leaf(1), z), "lacks leaves")

    def test_the_key_is_the_sites_own(self, tmp_path):
        one, other = (opened(tmp_path / place, own_noise("diff2", seed=None)) for place in ("one", "other"))
        answers = [ask(site, gradient(), Z1).arrays["steps"] for site in (one, other)]
        assert not np.array_equal(*answers)
        assert (tmp_path / "one" / "north" / f"{RUN}.key").stat().st_mode & 0o777 == 0o600


class TestASiteHoldsToThePlan:
    """The noise is the site's to give: it computes the plan itself, and answers what is in it."""

    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory):
        return opened(tmp_path_factory.mktemp("site"), own_noise("diff2"))

    @pytest.mark.parametrize(
        ("question", "factor", "reason"),
        [
            (gradient(), 0.999, "noise multiplier"),
            (gradient(step=1), 1.0, "does not ask this site"),
            (gradient(purpose="difference"), 1.0, "does not ask this site"),
            (gradient(purpose="anything"), 1.0, "does not ask this site"),
            (gradient(radius=C1 * 1.01), 1.0, "radius"),
            (gradient(), 0.0, "the sites add the noise"),
        ],
    )
    def test_is_refused(self, site, question, factor, reason):
        assert refused(ask(site, question, Z1 * factor), reason)

    def test_more_noise_is_given(self, tmp_path):
        assert ask(opened(tmp_path, own_noise("diff2")), gradient(), 1.5 * Z1).kind == ANSWER

    def test_none_is_given_where_the_server_adds_it(self, tmp_path):
        assert refused(ask(opened(tmp_path, agreement_of("diff2")), gradient(), Z1), "the server adds the noise")

    def test_what_was_amplified_by_sampling_is_not_asked_of_all_records(self, tmp_path):
        assert refused(ask(opened(tmp_path, own_noise("dpsgd, fixed")), gradient(), 1.0), "does not ask this site")

    def test_two_releases_are_not_about_one_draw(self, tmp_path):
        """A batch drawn once and released twice is not amplified twice: each step draws its own, and answers once."""
        z, site = multiplier("bvr", "local"), opened(tmp_path, own_noise("bvr"), index=1)
        step = {"round": 1, "batch": Batch(clients=(1,), size=2), "purpose": "local"}
        first, second = (ask(site, difference(step=k, **step), z) for k in (2, 3))
        assert first.kind == second.kind == ANSWER
        assert refused(ask(site, difference(step=4, **step), z), "does not ask")
        assert refused(ask(site, difference(step=2, params=START + 1, radius=0.01, **step), z), "answered already")

    @pytest.mark.parametrize("restarted", [False, True])
    def test_the_nodes_of_a_tree_have_one_scale(self, tmp_path, restarted):
        agreement, z = own_noise("srnsgd"), multiplier("srnsgd")
        site = opened(tmp_path, agreement)

        assert ask(site, leaf(0, 2), z).kind == ANSWER
        if restarted:
            site = opened(tmp_path, agreement)
        assert refused(ask(site, leaf(1, 2, radius=C1 / 2), z), "same noise")
        assert refused(ask(site, leaf(1, 2), 2 * z), "same noise")
        assert refused(ask(site, gradient(round=2, batch=Batch(part=(1, 2)), step=0, leaves=2), z), "does not ask")
        assert ask(site, leaf(1, 2), z).kind == ANSWER


class TestASiteThatLies:
    """The server, or whoever adds the answers, takes only what can be one."""

    @pytest.mark.parametrize(
        ("name", "change", "reason"),
        [
            ("grid", lambda f, a: ({**f, "grid": f["grid"] * 2}, a), "on the grid"),
            ("noise", lambda f, a: ({**f, "noise_std": f["noise_std"] / 2}, a), "with noise of standard deviation"),
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
            recorded_run(own_noise("diff2"), tmp_path, fault)


class TestPolicy:
    def test_a_site_may_demand_its_own_noise(self, tmp_path):
        policy = replace(ANYTHING, require_own_noise=True)
        with pytest.raises(SiteRefused, match="requires that sites add the noise themselves"):
            federated_run(agreement_of("diff2"), tmp_path / "server", make_sites(tmp_path / "a", policy))
        result, _ = federated_run(own_noise("diff2"), tmp_path / "sites", make_sites(tmp_path / "b", policy))
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
            ({"noise": "sites", "min_honest_sites": 0}, "min_honest_sites"),
            ({"noise": "server", "min_honest_sites": 2}, "trust='sites'"),
            ({"noise": "server", "secure_aggregation": "tenseal"}, "trust='sites'"),
            ({"noise": "sites", "secure_aggregation": "hope"}, "secure_aggregation"),
        ],
    )
    def test_what_makes_no_sense(self, fields, message):
        with pytest.raises(InvalidArgument, match=message):
            Trust(**fields)

    def test_more_honest_sites_than_there_are(self, tmp_path):
        with pytest.raises(InvalidArgument, match=r"at most the number of sites, 3, got 4"):
            federated_run(own_noise("diff2", honest=4), tmp_path)

    def test_without_noise_there_is_nothing_to_share(self, tmp_path):
        with pytest.raises(InvalidArgument, match="finite epsilon"):
            federated_run(own_noise("diff2", budget=NO_NOISE), tmp_path)

    def test_clients_drawn_in_secret(self, tmp_path):
        with pytest.raises(InvalidArgument, match="round_robin"):
            federated_run(own_noise(DRAWN), tmp_path)

    def test_a_site_refuses_the_same(self, tmp_path):
        for agreement, reason in (
            (own_noise(DRAWN), "round_robin"),
            (own_noise("diff2", honest=4), "at most the number"),
        ):
            assert refused(open_run(make_site(0, tmp_path), agreement), reason)

    def test_in_a_run_file(self, tmp_path):
        text = (
            '[data]\ncolumns = ["x"]\ntarget = "y"\ntask = "regression"\nbounds = { x = [0, 1], y = [0, 1] }\n'
            '[algorithm]\nname = "dpgd"\nrounds = 3\nclip_gradient = 1.0\n'
            '[routine]\nname = "gradient_descent"\nlearning_rate = 0.1\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n'
            '[federation]\nsites = ["a", "b", "c"]\ntrust = "sites"\nmin_honest_sites = %s\n'
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
    first, _ = federated_run(own_noise("bvr", honest=2), tmp_path / "first")
    second, _ = federated_run(own_noise("bvr", honest=2), tmp_path / "second")
    same_result(first, second)
    assert not first.ledger.guarantee().private
    other, _ = federated_run(own_noise("bvr", honest=2, seed=2), tmp_path / "other")
    assert not torch.equal(first.params, other.params)
