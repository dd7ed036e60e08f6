"""Whose noise a site counts on: sites that it knows by name; and what its answers may cost against the server."""

from dataclasses import replace

import pytest

from catalogue import SIZES
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.among_sites import Column
from diff2.federation.site.policy import Policy, epsilon_against_server
from diff2.federation.site.site import Site
from diff2.federation.wire.request import OPEN
from federated import NAMES, RUN, agreement_of, engine_of, open_run, own_noise, records_of, refused, tell

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")

INVENTED = (*NAMES, *(f"site-{i}" for i in range(1000)))
BOUNDS = (-9.0, 9.0)
COLUMNS = {name: Column(bounds=BOUNDS) for name in ("x0", "x1", "x2", "y")}
MEANING = Encoding({f"x{i}": Scaling.of_input(BOUNDS) for i in range(3)}, "y", Scaling.of_target(BOUNDS), None)
PINNED = {"columns": ("x0", "x1", "x2"), "targets": ("y",)}
LIMITS = {"epsilon": 1.0, "delta": 1e-3, "require_own_noise": True}


def agreed(sites=NAMES, honest=None, **changes):
    found = own_noise("diff2", honest, seed=None, **changes)
    return replace(found, sites=sites, encoding=MEANING, privacy=replace(found.privacy, epsilon=1.0, delta=1e-5))


def site_with(directory, **policy):
    load = lambda agreement: records_of(0, agreement.grouped)  # noqa: E731
    return Site("north", load, Policy(**{**LIMITS, **policy}), directory, columns=COLUMNS)


def opened(site, agreement, sites=None, by_somebody=True):
    """What a site says to a run that somebody there has approved, or nobody."""
    sites = agreement.sites if sites is None else sites
    sizes = [*SIZES, *[8] * len(sites)][: len(sites)]
    if by_somebody:
        return open_run(site, agreement, sites=sites, sizes=sizes)
    fields = {"agreement": agreement.to_json(), "run": RUN, "sites": list(sites), "sizes": sizes}
    return tell(site, OPEN, **fields, engine=engine_of(agreement.model).name)


class TestInventedSites:
    """A server that invents 1,000 sites has each real one add a thousandth of the noise: epsilon 71 instead of 1."""

    def test_what_they_would_do(self):
        sizes = [*SIZES, *[8] * 1000]
        agreement = agreed(INVENTED)
        assert epsilon_against_server(agreement, agreement.plan(sizes)) == pytest.approx(71.43, abs=0.01)

    def test_they_are_not_in_the_agreement_that_was_approved(self, tmp_path):
        site = site_with(tmp_path)
        assert refused(opened(site, agreed(), INVENTED), "not those of the agreement")
        assert opened(site, agreed()).kind == "opened"

    def test_a_policy_that_approves_by_itself_counts_named_sites_only(self, tmp_path):
        site = site_with(tmp_path, **PINNED, sites=("south", "east"))
        assert refused(
            opened(site, agreed(INVENTED), by_somebody=False), "1003 honest sites; this site knows 3 of them"
        )
        assert opened(site, agreed(INVENTED, 3), by_somebody=False).kind == "opened"

    def test_a_policy_that_names_nobody_counts_on_the_site_itself(self, tmp_path):
        site = site_with(tmp_path, **PINNED)
        assert refused(opened(site, agreed(), by_somebody=False), "3 honest sites; this site knows 1 of them")
        assert opened(site, agreed(honest=1), by_somebody=False).kind == "opened"

    def test_names_in_the_policy_hold_also_where_somebody_approved_more(self, tmp_path):
        site = site_with(tmp_path, sites=("south",))
        assert refused(opened(site, agreed()), "3 honest sites; this site knows 2 of them")
        assert opened(site, agreed(honest=2)).kind == "opened"

    def test_the_price_against_the_server_is_limited(self, tmp_path):
        site = site_with(tmp_path, max_epsilon_against_server=1.0)
        assert refused(
            opened(site, agreed(INVENTED)), "the run costs epsilon=71.4304; the policy of this site allows 1"
        )
        assert refused(opened(site, agreed()), "the policy of this site allows 1")
        assert opened(site, agreed(honest=1)).kind == "opened"  # all of the noise at every site

    def test_where_the_server_adds_the_noise_that_price_is_infinite(self, tmp_path):
        agreement = replace(agreement_of("diff2", seed=None), encoding=MEANING)
        site = site_with(tmp_path, epsilon=3.0, require_own_noise=False, max_epsilon_against_server=50.0)
        assert refused(opened(site, agreement), "requires that sites add the noise")


def test_a_site_may_require_others_that_it_knows(tmp_path):
    site = site_with(tmp_path, sites=("south", "west"), min_honest_sites=3)
    assert refused(opened(site, agreed(honest=2)), "2 of the sites of the run are named")
    assert opened(site, agreed((*NAMES, "west"), honest=2)).kind == "opened"


def test_fewer_sites_than_agreed_or_in_another_order_are_refused(tmp_path):
    site = site_with(tmp_path)
    assert refused(opened(site, agreed(), NAMES[:2]), "not those of the agreement")
    assert refused(opened(site, agreed(), NAMES[::-1]), "not those of the agreement")
    assert opened(site, replace(agreed(), minimum_sites=2), NAMES[:2]).kind == "opened"


class TestAutomaticApproval:
    """``[policy]`` names columns and targets: runs on these need nobody's approval, within its limits."""

    def check(self, directory, agreement, reason=None, **policy):
        site = site_with(directory, **{**PINNED, "sites": ("south", "east"), **policy})
        answer = opened(site, agreement, by_somebody=False)
        assert refused(answer, reason) if reason else answer.kind == "opened"

    def test_within(self, tmp_path):
        self.check(tmp_path, agreed(), max_rounds=7, max_epsilon_per_run=1.0)

    @pytest.mark.parametrize(
        "changes",
        [
            {"encoding": replace(MEANING, inputs={**MEANING.inputs, "hiv": Scaling.of_input((0.0, 1.0))})},
            {"encoding": replace(MEANING, target="hiv")},
            {"encoding": replace(MEANING, inputs={"x0": MEANING.inputs["x0"], "y": MEANING.inputs["x1"]}, target="x1")},
            {"group_column": "person"},
        ],
    )
    def test_other_columns_need_approval(self, tmp_path, changes):
        self.check(tmp_path, replace(agreed(), **changes), "nobody at this site approved")

    @pytest.mark.parametrize(
        "meaning",
        [
            replace(MEANING, inputs={**MEANING.inputs, "x1": Scaling.of_input((-9.0, 8.0))}),
            replace(MEANING, inputs={**MEANING.inputs, "x1": Scaling.of_input(BOUNDS, 3.0)}),
            replace(MEANING, inputs={**MEANING.inputs, "x1": Scaling.of_input(BOUNDS, None, "years")}),
            replace(MEANING, inputs={**MEANING.inputs, "x1": Scaling(0.0, 8.0, *BOUNDS)}),
            replace(MEANING, target_scaling=Scaling.of_target((0.0, 9.0))),
            replace(MEANING, target_scaling=None, classes=(0, 1)),
        ],
    )
    def test_columns_mean_what_the_site_says(self, tmp_path, meaning):
        self.check(tmp_path, replace(agreed(), encoding=meaning), "does not mean at this site")

    def test_a_column_without_a_meaning_needs_approval(self, tmp_path):
        site = Site("north", lambda _: records_of(0), Policy(**LIMITS, **PINNED), tmp_path, columns={"x0": Column("X")})
        assert refused(opened(site, agreed(), by_somebody=False), "nobody at this site approved")

    @pytest.mark.parametrize(
        ("policy", "reason"),
        [
            ({"max_rounds": 6}, "has 7 rounds; the policy of this site allows 6"),
            ({"max_epsilon_per_run": 0.9}, "allows 0.9 per run"),
            ({"algorithms": ("dpgd",)}, "algorithm 'diff2'"),
            ({"require_group_column": "person"}, "same 'person' are protected together"),
        ],
    )
    def test_limits_hold_with_and_without_approval(self, tmp_path, policy, reason):
        self.check(tmp_path / "by itself", agreed(), reason, **policy)
        assert refused(opened(site_with(tmp_path, **policy), agreed()), reason)
