"""A fit over sites: the same bytes as in one process, and a folder that verifies."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import diff2_here
from diff2 import Budget, FittedModel, Ledger, LedgerError, PrivacyLeakWarning
from diff2.errors import PrivacyLeakError
from diff2.federation.faults import BadAnswer, SiteRefused, SitesMissing
from diff2.federation.server.job import JobSpec, run_job
from diff2.federation.wire.messages import write
from diff2.fitting.cohort import ClientTable
from diff2.fitting.saving import ARRAYS, PREPARATION, SCHEMA
from diff2.fitting.travelling import Unpacked
from diff2.fitting.trees import TREE_SHARE
from diff2.planning.filter import Filter
from diff2.planning.verify import verify
from diff2.privacy import BoundedMean, Release
from diff2.privacy.accounting import gdp_epsilon
from diff2.privacy.lines import read_release
from diff2.privacy.mechanism import noise_scale
from diff2.tables.encode import encode
from diff2.tables.kinds import Number
from federated import Killed, Recorder, in_process, killed_in, lines
from fitted import table
from fitted_sites import (
    NAMES,
    ROWS,
    fit_agreement,
    fitted_at_sites,
    fitted_here,
    of_hospitals,
    sites_of,
    write_tables,
)
from stubs import is_normal

OWN = ("sites",)
MU = Filter(Budget(8.0, 1e-4)).mu


def same_model(one, other):
    assert one.ledger.releases == other.ledger.releases
    assert one.ledger.model == other.ledger.model  # a hash of schema, preparation and all arrays
    assert one.health == other.health


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("regression", {}),
        ("classes", {"unit": "group"}),
        ("counts", {"weighting": "clients", "score": False}),
        ("regression", {"unit": "client", "epsilon": 100.0}),
    ],
    ids=["records", "people", "weighted", "clients"],
)
def test_sites_give_the_bytes_of_one_process(kind, settings, tmp_path):
    agreement = fit_agreement(kind, **settings)
    expected = fitted_here(agreement, directory=tmp_path / "here")
    expected.save(tmp_path / "here")
    model, sites = fitted_at_sites(agreement, tmp_path)
    same_model(model, expected)
    for file in (SCHEMA, PREPARATION):
        assert (tmp_path / "server" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
    arrays, others = (load_file(tmp_path / place / ARRAYS) for place in ("server", "here"))  # metadata have no order
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: a.tobytes() for n, a in others.items()}
    for site in sites.values():
        kinds = [line["kind"] for line in lines(site.ledger.path)]
        assert kinds == ["site", "run", *["answer"] * len(model.ledger.releases)]


def test_sites_give_the_bytes_of_one_process_with_a_curve(tmp_path, monkeypatch):
    monkeypatch.setattr("diff2.fitting.regression.MOST_SHARE", -1.0)  # however few trees there are
    monkeypatch.setattr("diff2.fitting.curve.MOST_SHARE", 0.01)
    monkeypatch.setattr("diff2.fitting.curve.tail_ratio", lambda mass, sizes: 2.0)
    agreement = fit_agreement("regression")
    model, _ = fitted_at_sites(agreement, tmp_path)
    same_model(model, fitted_here(agreement))
    assert {"tails", "curve", "curve weights"} <= {one.purpose for one in model.ledger.releases}


def test_without_a_seed_it_is_private_and_verifies(tmp_path):
    model, _ = fitted_at_sites(fit_agreement("classes", seed=None, epsilon=1.0), tmp_path)
    assert model.guarantee.private
    assert model.guarantee.client_sizes == tuple(int((table()["hospital"] == name).sum()) for name in NAMES)
    found = diff2_here("verify", tmp_path / "server")
    assert "private as stated: epsilon 1" in found.stdout
    assert "checked      the model" in found.stdout
    again = FittedModel.load(tmp_path / "server")
    np.testing.assert_array_equal(again.predict(table()), model.predict(table()))


@pytest.mark.parametrize("trust", [(), OWN], ids=["server", "sites"])
def test_a_killed_fit_is_resumed_with_the_same_bytes(trust, tmp_path):
    agreement = fit_agreement("classes", trust=trust)
    whole, _ = fitted_at_sites(agreement, tmp_path / "whole")
    with pytest.raises(Killed):
        fitted_at_sites(agreement, tmp_path, watch=killed_in(5))
    # The sites were restarted as well: all they have is their ledger.
    model, sites = fitted_at_sites(agreement, tmp_path, sites=sites_of(tmp_path / "sites"))
    same_model(model, whole)
    for site in sites.values():
        answers = [line for line in lines(site.ledger.path) if line["kind"] == "answer"]
        assert [line["release"]["round"] for line in answers] == list(range(1, len(model.ledger.releases) + 1))
    again, _ = fitted_at_sites(agreement, tmp_path, sites=sites_of(tmp_path / "sites"))
    same_model(again, whole)


class TestOwnNoise:
    def test_there_are_no_trees_and_their_share_goes_to_the_rest(self, tmp_path):
        model, _ = fitted_at_sites(fit_agreement(trust=OWN), tmp_path)
        purposes = {release.purpose for release in model.ledger.releases}
        assert not purposes & {"structure", "leaves", "leaf weights", "residuals"}
        prices = [1 / release.multiplier for release in model.ledger.releases]
        here = fitted_here(fit_agreement())
        gram, theirs = (
            next(release for release in one.ledger.releases if release.purpose == "gram") for one in (model, here)
        )
        assert theirs.multiplier / gram.multiplier == pytest.approx(1 / math.sqrt(1 - 2 * TREE_SHARE), rel=0.001)
        assert math.hypot(*prices) == pytest.approx(MU, rel=1e-6)

    @pytest.mark.parametrize("honest", [1, 2])
    def test_the_ledger_counts_on_the_noise_of_honest_sites(self, honest, tmp_path):
        agreement = fit_agreement("classes", trust=("sites", honest), seed=None)
        model, sites = fitted_at_sites(agreement, tmp_path)
        assert {release.parties for release in model.ledger.releases} == {honest}
        assert "private as stated" in diff2_here("verify", tmp_path / "server").stdout
        for site in sites.values():
            (run,) = site.ledger.runs
            price = site.ledger.epsilon_against_server(run)
            assert agreement.settings.epsilon < price * 1.01 < math.inf or honest == 1
            for answer, release in zip(site.ledger.answers(run), model.ledger.releases, strict=True):
                assert answer.multiplier == release.multiplier
                assert answer.release.noise_std == pytest.approx(release.noise_std / math.sqrt(honest))

    def test_a_fit_that_stops_early_costs_its_whole_budget_against_the_server_too(self, tmp_path):
        agreement = fit_agreement("classes", trust=OWN, seed=None)
        with pytest.raises(Killed):
            fitted_at_sites(agreement, tmp_path, watch=killed_in(2))
        found = Ledger.read(tmp_path / "server" / "ledger.jsonl").guarantee()
        assert found.epsilon == pytest.approx(8.0, rel=1e-6)
        assert found.epsilon_of_one == pytest.approx(gdp_epsilon(MU * math.sqrt(2), 1e-4), rel=1e-6)

    @pytest.mark.parametrize(
        ("line", "change"),
        [
            (0, {"trust": {"noise": "sites", "min_honest_sites": 1, "secure_aggregation": "none", "sites": 2}}),
            (0, {"trust": None}), (2, {"parties": 1}), (2, {"parties": 3}),
        ],
    )  # fmt: skip
    def test_how_many_parties_add_the_noise_is_verified(self, line, change, tmp_path):
        fitted_at_sites(fit_agreement("classes", trust=OWN), tmp_path)
        path = tmp_path / "server" / "ledger.jsonl"
        text = path.read_text(encoding="utf-8").splitlines()
        fields = {**json.loads(text[line]), **change}
        if "parties" in change:  # as a liar would write it
            release = read_release({key: fields[key] for key in Release._fields})
            fields["noise_std"] = noise_scale(BoundedMean(None, release, release.rounding), release.multiplier,
                                              release.parties)[0]  # fmt: skip
        path.write_text("\n".join([*text[:line], json.dumps(fields), *text[line + 1 :], ""]), encoding="utf-8")
        with pytest.raises(LedgerError, match=f"line {line + 1}: .*(planned|parties|trust)"):
            verify(path)

    def test_the_server_sees_noise_of_the_stated_size(self, tmp_path):
        """The parts of both sites less what they are without noise, in units of the deviation that they state."""
        agreement, left = fit_agreement("classes", trust=OWN), []
        recorder = Recorder(sites_of(write_tables(tmp_path / "sites"), agreement))
        fitted_at_sites(agreement, tmp_path, recorder)
        exact = {}
        for name, chosen in of_hospitals().items():
            exact[name] = ClientTable(encode(chosen, replace(agreement.schema, clients=None, groups=None)), "record")
        unpacked = {name: Unpacked(agreement.schema) for name in NAMES}
        for name, asked, answer in recorder.exchanges:
            if "statistic" in asked.fields and "steps" in answer.arrays:
                statistic, _ = unpacked[name].statistic(asked.fields["statistic"], asked.arrays)
                part = exact[name].total(statistic, 1 / ROWS)
                left.append((answer.arrays["steps"] * answer.fields["grid"] - part) / answer.fields["noise_std"])
        noise = np.concatenate(left)
        assert len(noise) > 10_000
        assert is_normal(noise, 1.0)
        assert not is_normal(noise, 0.95)
        assert not is_normal(noise, 1.05)


class TestFaults:
    def test_a_fit_starts_with_fewer_sites_where_that_is_agreed(self, tmp_path):
        agreement = fit_agreement("classes", minimum_sites=1)
        north = {"north": sites_of(write_tables(tmp_path / "sites"), agreement)["north"]}
        run_job(JobSpec(agreement, tmp_path / "server"), in_process(north))
        assert FittedModel.load(tmp_path / "server").guarantee.client_sizes == (215,)

    def test_what_was_read_off_the_data_is_said(self, tmp_path):
        agreement = fit_agreement("classes")
        columns = {**agreement.schema.columns, "age": Number(0, 100, source="data")}
        agreement = replace(agreement, schema=replace(agreement.schema, columns=columns))
        with pytest.warns(PrivacyLeakWarning, match="column 'age'"):
            model, _ = fitted_at_sites(agreement, tmp_path)
        assert any("'age'" in one for one in model.guarantee.leaks)
        strict = replace(agreement, settings=replace(agreement.settings, strict=True))
        with pytest.raises(PrivacyLeakError, match="strict"):
            fitted_at_sites(strict, tmp_path, sites=sites_of(tmp_path / "sites", strict))

    def test_a_site_that_is_missing_stops_the_fit(self, tmp_path):
        agreement = fit_agreement("classes")
        sites = sites_of(write_tables(tmp_path / "sites"), agreement)
        with pytest.raises(SitesMissing, match="'south'"):
            fitted_at_sites(agreement, tmp_path, in_process({"north": sites["north"]}), sites)

    def test_a_fit_that_nobody_approved_is_refused(self, tmp_path):
        sites = sites_of(write_tables(tmp_path / "sites"), fit_agreement("classes"))
        with pytest.raises(SiteRefused, match="nobody at this site approved"):
            fitted_at_sites(fit_agreement("classes", epsilon=9.0), tmp_path, sites=sites)

    @pytest.mark.parametrize(
        ("value", "match"),
        [
            (lambda value: value * 1e6, "longer than its bound"), (lambda value: value[:-1], "with shape"),
            (lambda value: value * np.nan, "not finite"), (lambda value: value.astype(np.float32), "not finite"),
        ],
    )  # fmt: skip
    def test_an_answer_that_cannot_be_right_stops_it(self, value, match, tmp_path):
        agreement = fit_agreement("classes")
        sites = sites_of(write_tables(tmp_path / "sites"), agreement)

        def fault(message):
            return write(replace(message, arrays={"value": value(message.arrays["value"])}))

        with pytest.raises(BadAnswer, match=match):
            fitted_at_sites(agreement, tmp_path, Recorder(sites, fault), sites)
