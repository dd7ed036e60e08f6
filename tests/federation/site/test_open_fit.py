"""What a site answers in a fit: listed statistics, in order, within the agreed budget by its own ledger; no more."""

import math
from dataclasses import replace

import numpy as np
import pytest

from diff2 import Budget
from diff2.federation.site.ledger import read_site_ledger
from diff2.federation.site.open_fit import OpenFit
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.request import ANSWER, CLOSE, DESCRIBE, OPEN, StatisticRequest
from diff2.fitting.columns import uniform_column
from diff2.fitting.preparation import Preparation
from diff2.fitting.statistics import ClassShares, Design, MeanResidual, Residuals, TargetMean, WhiteningMoment
from diff2.planning import filter as filter_module
from diff2.planning.filter import Filter
from diff2.privacy.accounting import gdp_epsilon
from federated import RUN, lines, refused, tell
from fitted_sites import NAMES, fit_agreement, of_hospitals, sites_of, write_tables

AGREEMENT = fit_agreement(seed=None, epsilon=2.0)
OWN = replace(AGREEMENT, trust=replace(AGREEMENT.trust, noise="sites"))
MU = Filter(Budget(2.0, 1e-4)).mu
MEAN = TargetMean(0.0, 10.0)
SIZES = [215, 185]
POLICY = "epsilon = 4.0\ndelta = 1e-3"


def open_fit(site, agreement=AGREEMENT, run=RUN, **changes):
    fields = {"agreement": agreement.to_json(), "run": run, "sites": list(NAMES), "sizes": SIZES, "records": SIZES,
              "engine": "table"}  # fmt: skip
    return tell(site, OPEN, **{**fields, **changes})


@pytest.fixture
def site(tmp_path):
    found = sites_of(write_tables(tmp_path, POLICY), AGREEMENT, OWN)["north"]
    assert open_fit(found).kind == "opened"
    return found


def again(site, tmp_path, agreement=AGREEMENT):
    """The same site after a restart."""
    found = sites_of(tmp_path)["north"]
    assert open_fit(found, agreement).kind == "opened"
    return found


def ask(site, statistic=MEAN, number=1, mu=MU / 10, run=RUN):
    request = StatisticRequest(run, number, 1 / mu, statistic, 0)
    return read(site.answer(write(request.message(request.packed()))))


class TestOnce:
    def test_the_same_request_gets_the_same_bytes_also_after_a_restart(self, site, tmp_path):
        first = ask(site)
        assert first.kind == ANSWER
        assert ask(site, ClassShares(1), 2).kind == "refusal"  # of other columns
        assert ask(site, TargetMean(0.0, 5.0), 2).kind == ANSWER
        for one in (site, again(site, tmp_path)):
            repeated = ask(one)
            assert repeated.arrays["value"].tobytes() == first.arrays["value"].tobytes()
        assert [line["kind"] for line in lines(site.ledger.path)].count("answer") == 2

    @pytest.mark.parametrize(
        ("statistic", "mu"),
        [(TargetMean(0.0, 9.0), MU / 10), (MEAN, MU / 11), (TargetMean(0.0, 10.0, "other"), MU / 10)],
    )
    def test_another_request_under_its_number_is_refused(self, site, statistic, mu):
        assert ask(site).kind == ANSWER
        assert ask(site, statistic, 1, mu).kind == "refusal"

    @pytest.mark.parametrize("number", [0, 2, 512, 10**9])
    def test_numbers_follow_each_other(self, site, number):
        assert refused(ask(site, number=number), "out of order")

    def test_the_same_statistic_under_the_next_number_is_a_second_release(self, site):
        assert ask(site, mu=MU * 0.8).kind == ANSWER
        assert refused(ask(site, number=2, mu=MU * 0.8), "more than is left")
        assert ask(site, number=2, mu=MU * 0.59).kind == ANSWER

    def test_a_complete_fit_is_not_answered(self, site):
        ask(site)
        tell(site, CLOSE, run=RUN)
        assert refused(ask(site, number=2), "complete")


class TestBudget:
    """A filter at the site, of its own: it mirrors the server's."""

    def test_prices_add_up_over_restarts(self, site, tmp_path):
        for number in range(1, 5):
            assert ask(site, number=number, mu=MU / 2 * (1 - 1e-9)).kind == ANSWER
            site = again(site, tmp_path)
        assert refused(ask(site, number=5, mu=MU / 100), "more than is left")

    @pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, 1e-320, "1", None, True])
    def test_a_price_that_is_none_is_refused(self, site, multiplier):
        request = StatisticRequest(RUN, 1, 2.0, MEAN, 0).message(StatisticRequest(RUN, 1, 2.0, MEAN, 0).packed())
        fields = {**request.fields, "multiplier": multiplier if multiplier != math.inf else "inf"}
        assert tell(site, "ask", **fields).kind == "refusal"
        assert not site.ledger.answers(RUN)

    def test_there_are_at_most_so_many_as_noise_on_whole_numbers_was_priced_for(self, site, monkeypatch):
        monkeypatch.setattr(filter_module, "MOST_RELEASES", 3)
        assert [ask(site, number=number, mu=MU / 100).kind for number in (1, 2, 3)] == [ANSWER] * 3
        assert refused(ask(site, number=4, mu=MU / 100), "more than is left")

    def test_a_fit_costs_its_whole_budget_from_its_first_answer_on(self, site, tmp_path):
        assert (site.ledger.epsilon, site.ledger.delta) == (0.0, 0.0)
        ask(site, mu=MU / 1000)
        assert (site.ledger.epsilon, read_site_ledger(site.ledger.path).epsilon) == (2.0, 2.0)
        for run, spent in (("a" * 32, 4.0), ("b" * 32, 4.0)):
            opened = open_fit(site, run=run)
            if run[0] == "a":
                assert ask(site, run=run).kind == ANSWER
            else:
                assert refused(opened, "epsilon=6")
            assert site.ledger.epsilon == spent


class TestNoise:
    def test_every_number_of_an_answer_has_noise_of_its_own(self, tmp_path, monkeypatch):
        """One noise for the three numbers of a mean over classes gave their exact differences away."""
        agreement = replace(fit_agreement("classes", seed=None, epsilon=2.0), trust=OWN.trust)
        site = sites_of(write_tables(tmp_path, POLICY), agreement)["north"]
        assert open_fit(site, agreement).kind == "opened"
        columns = tuple(uniform_column(*pair) for pair in agreement.schema.bounds)
        preparation = Preparation(columns, agreement.schema.widths, agreement.schema.nullable)
        model = Residuals(Design(preparation, 0.1, 0.0), np.zeros((preparation.width + 1, 3)), np.zeros(3))
        assert refused(ask(site, MeanResidual(model, 2.0)), "another kind")
        monkeypatch.setattr("diff2.fitting.travelling.ONLY_FOR", {})
        assert refused(ask(site, MeanResidual(model, 2.0)), "cannot be computed")
        monkeypatch.setattr("diff2.fitting.travelling.dimension_of", lambda statistic, schema: 3)
        assert refused(ask(site, MeanResidual(model, 2.0)), "an error at the site")

    @pytest.mark.parametrize(("again", "same"), [(MEAN, True), (TargetMean(0.0, 10.0 + 1e-9), False)])
    def test_an_older_copy_of_the_ledger_gives_no_second_value_under_the_same_noise(self, tmp_path, again, same):
        """Their difference would be exact; the site does not remember that it has answered."""
        site = sites_of(write_tables(tmp_path, POLICY), OWN)["north"]
        open_fit(site, OWN)
        old, answers = site.ledger.path.read_bytes(), []
        for statistic in (MEAN, again):
            site.ledger.path.write_bytes(old)
            answers.append(ask(site, statistic))
            site = sites_of(tmp_path)["north"]
            open_fit(site, OWN)
        value = site._runs[RUN]._table.total(MEAN, 1 / 400)
        noise = [one.arrays["steps"] - np.rint(value / one.fields["grid"]) for one in answers]
        assert (abs(noise[0][0] - noise[1][0]) < 2**20) == same  # of a deviation of 2^32


class TestOpening:
    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            ({"sizes": [214, 185]}, "not the one it reported"), ({"records": [214, 185]}, "cannot be right"),
            ({"records": [216, 185]}, "cannot be right"),
            ({"records": [215, 184]}, "cannot be right"), ({"records": [215]}, "as long as sizes"),
            ({"records": None}, "as long as sizes"), ({"records": [215, "185"]}, "whole number"),
            ({"engine": "loop"}, "the engine 'table'"), ({"sites": ["south", "north"]}, "in its order"),
        ],
    )  # fmt: skip
    def test_what_the_server_states_is_checked(self, site, changes, part):
        assert refused(open_fit(site, run="c" * 32, **changes), part)

    def test_it_describes_units_and_records(self, tmp_path):
        agreement = fit_agreement("classes", unit="group")
        site = sites_of(write_tables(tmp_path), agreement)["north"]
        found = tell(site, DESCRIBE, agreement=agreement.to_json()).fields
        assert (found["size"], found["records"]) == (len(np.unique(of_hospitals()["north"]["person"])), 215)

    def test_it_fits_the_first_records_where_it_reports_so_many(self, tmp_path):
        site = sites_of(write_tables(tmp_path, "epsilon = inf\nreported_size = 100"), AGREEMENT)["north"]
        assert tell(site, DESCRIBE, agreement=AGREEMENT.to_json()).fields["size"] == 100
        assert open_fit(site, sizes=[100, 185], records=[100, 185]).kind == "opened"
        assert ask(site).kind == ANSWER

    def test_a_table_that_changed_is_another_run(self, site, tmp_path):
        ask(site)
        path = tmp_path / "north" / "table.csv"
        text = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([text[0], text[2], text[1], *text[3:]]) + "\n", encoding="utf-8")
        assert refused(open_fit(sites_of(tmp_path)["north"]), "with other records")


class TestOwnNoise:
    @pytest.fixture
    def own(self, tmp_path):
        found = sites_of(write_tables(tmp_path, POLICY), OWN)["north"]
        assert open_fit(found, OWN).kind == "opened"
        return found

    def test_the_answer_says_its_noise_and_the_ledger_its_price(self, own):
        answer = ask(own, mu=MU / 2)
        assert set(answer.arrays) == {"steps"}
        assert answer.fields["together"] == list(NAMES)
        (line,) = own.ledger.answers(RUN)
        sensitivity = 10.0 / 400
        assert answer.fields["noise_std"] == pytest.approx(sensitivity * 2 / MU / math.sqrt(2), rel=1e-6)
        assert line.release.multiplier == pytest.approx(2 / MU / math.sqrt(2), rel=1e-6)
        assert own.ledger.epsilon_against_server(RUN) > 1.0

    def test_a_lost_ledger_takes_the_key_with_it(self, own, tmp_path):
        """A site that lost its ledger: the noise of the same number must not come off."""
        first = ask(own).arrays["steps"]
        (tmp_path / "north" / "diff2-site" / "ledger.jsonl").unlink()
        other = sites_of(tmp_path)["north"]
        assert open_fit(other, OWN).kind == "opened"
        assert ask(other).arrays["steps"] != first  # it has taken a new key

    def test_no_scores_leave(self, own, monkeypatch):
        """Where sites add the noise the server sees their parts: exact sums of candidates would have none."""
        monkeypatch.setattr(StatisticRequest, "is_choice", property(lambda request: True))
        assert refused(ask(own), "nobody sees exact scores")
        assert not own.ledger.answers(RUN)

    def test_a_policy_may_limit_what_a_fit_costs_against_the_server(self, tmp_path):
        price = gdp_epsilon(MU * math.sqrt(2), 1e-4)
        for limit, kind in ((price * 1.001, "opened"), (price * 0.999, "refusal")):
            folder = write_tables(tmp_path / str(limit), f"{POLICY}\nmax_epsilon_against_server = {limit}")
            assert open_fit(sites_of(folder, OWN)["north"], OWN).kind == kind


def test_an_open_fit_takes_no_sealed_request():
    with pytest.raises(Exception, match="not be sealed"):
        OpenFit.read(object.__new__(OpenFit), Message("ask", {}), sealed=True)


def test_no_warning_tells_of_a_record(site):
    """A deviation of zero divides by zero, and zero by zero where a value is the centre; here warnings are errors."""
    schema = AGREEMENT.schema
    columns = tuple(uniform_column(one.low, one.high)._replace(deviation=0.0) for one in schema.numeric)
    assert ask(site, WhiteningMoment(Preparation(columns, schema.widths, schema.nullable))).kind == ANSWER


def test_the_answer_is_the_bounded_sum(site):
    """By hand: the mean target of its usable records, less the middle, times its share of all records."""
    value = ask(site).arrays["value"]
    targets = np.asarray(of_hospitals()["north"]["regression"], dtype=float)
    assert value == pytest.approx([(np.clip(targets, 0, 10) - 5).sum() / 400])
