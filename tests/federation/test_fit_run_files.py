"""Run files with [fit], and the commands on them, with sites in this process."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import diff2
from diff2 import FittedModel, InvalidArgument
from diff2.cli.main import app
from diff2.data import randhie
from diff2.federation.agreement import read_agreement
from diff2.federation.faults import SiteRefused
from diff2.federation.flare import local
from diff2.federation.flare.job import read_job
from diff2.federation.flare.package import write_package
from diff2.federation.flare.provisioning import Parties
from diff2.federation.from_run_file import agreement_of, job_from_run_file
from diff2.federation.server.job import read_job_spec, run_job
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.messages import Message, read, write
from diff2.runfile.fit import read_federated
from diff2.runfile.reader import read_run_file
from federated import in_process, lines
from fitted import few_trees, table
from fitted_sites import fit_agreement, fitted_here, schema_of, write_tables

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
EXAMPLE = Path(__file__).parents[2] / "experiments" / "diff2_experiments" / "sites" / "randhie.toml"
RUN = '[fit]\nepsilon = 8.0\ndelta = 1e-4\nschema = "people.toml"\n[federation]\nsites = ["north", "south"]\n'


def write_run(folder, text=RUN, kind="classes"):
    (folder / "people.toml").write_text(schema_of(kind).to_toml(), encoding="utf-8")
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return folder / "run.toml"


def without_processes(spec, sites, **options):
    """What ``run_locally`` does, without processes; the job goes through its text, as to FLARE."""
    spec = read_job_spec(spec.to_text())
    found = {name: site_from_file(name, read_site_file(sites / name / "site.toml")) for name in spec.sites}
    with few_trees():
        run_job(spec, in_process(found))
    return 1


def command(*words):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(word) for word in words])


class TestReading:
    def test_a_schema_may_stand_in_the_file_or_beside_it(self, tmp_path):
        beside = agreement_of(read_federated(write_run(tmp_path)))
        schema = (
            schema_of("classes").to_toml().replace("[target]", "[fit.target]").replace("[columns.", "[fit.columns.")
        )
        roles, _, parts = schema.replace("[file]", "[fit.file]").partition("\n\n")
        inline = RUN.replace('schema = "people.toml"', f"{roles}\n{parts}")
        assert agreement_of(read_federated(write_run(tmp_path, inline))) == beside
        assert beside == fit_agreement("classes", seed=None)
        assert beside.digest != fit_agreement("classes").digest

    def test_the_order_of_the_columns_survives_the_way_to_a_site(self):
        agreement = fit_agreement()
        found = read(write(Message("describe", {"agreement": agreement.to_json()}))).fields["agreement"]
        assert list(read_agreement(found).schema.columns) == list(agreement.schema.columns)
        assert read_agreement(json.loads(json.dumps(agreement.to_json()))) == agreement

    @pytest.mark.parametrize(
        ("old", "new", "match"),
        [
            ("delta = 1e-4", "", "needs the key 'delta'"),
            ("delta = 1e-4", 'delta = "auto"', "expected a number"),
            ("epsilon = 8.0", "epsilon = inf", "finite epsilon"),
            ("epsilon = 8.0", 'epsilon = 8.0\nunit = "person"', "unit"),
            ('schema = "people.toml"', "", "exactly one schema"),
            ('schema = "people.toml"', 'schema = "people.toml"\nclients = "hospital"', "exactly one schema"),
            ('schema = "people.toml"', 'schema = "nobody.toml"', "nobody.toml"),
            ("epsilon = 8.0", "epsilon = 8.0\nrounds = 5", "no key 'rounds'"),
            ('sites = ["north", "south"]', "", "needs the key 'sites'"),
            ("[federation]", '[federation]\ntrust = "sites"\nsecure_aggregation = "tenseal"', "for training"),
            ("[federation]", "[algorithm]\n[federation]", "unknown table 'algorithm'"),
            ("[federation]", "[data]\n[federation]", "one of file, files and builtin"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named_before_any_table_is_read(self, tmp_path, old, new, match):
        assert RUN.count(old) == 1
        with pytest.raises(InvalidArgument, match=match):
            agreement_of(read_federated(write_run(tmp_path, RUN.replace(old, new))))

    def test_training_says_what_reads_it(self, tmp_path):
        with pytest.raises(InvalidArgument, match="diff2 federate"):
            read_run_file(write_run(tmp_path))

    def test_sites_need_bounds_that_cannot_overflow(self):
        agreement = fit_agreement()
        wide = replace(agreement.schema.columns["income"], high=1e16)
        with pytest.raises(InvalidArgument, match="1e\\+15"):
            replace(agreement, schema=replace(agreement.schema, columns={"income": wide}))


class TestExample:
    def test_the_six_sites_of_the_rand_experiment(self, tmp_path):
        """The example as it stands, but for a seed: the bytes of diff2.fit on the whole table, and it verifies."""
        run = read_federated(EXAMPLE)
        spec, sites = job_from_run_file(run, tmp_path, seed=3)
        written = [folder for name in spec.sites for folder in (sites / name, sites / name / "records.csv")]
        assert all(not path.stat().st_mode & 0o077 for path in written)  # the records are their owner's alone
        without_processes(spec, sites)
        model = FittedModel.load(tmp_path)
        people = randhie.read_table()
        fifth = randhie.fifth_of(people[randhie.PERSON].numbers().astype(np.int64))
        people = people.take(np.flatnonzero(fifth != randhie.TEST_FIFTH))
        here = diff2.fit(people, run.schema, epsilon=1.0, delta=1e-5, unit="group", seed=3)
        assert here.ledger.model == model.ledger.model
        assert here.ledger.releases == model.ledger.releases
        assert command("verify", tmp_path).exit_code == 5  # it has a seed; all else agrees
        for name in spec.sites:
            kinds = [line["kind"] for line in lines(sites / name / "diff2-site" / "ledger.jsonl")]
            assert kinds == ["site", "run", *["answer"] * len(model.ledger.releases), "end"]


class TestCommands:
    @pytest.fixture(autouse=True)
    def no_processes(self, monkeypatch):
        monkeypatch.setattr(local, "run_locally", without_processes)

    def test_tables_of_this_machine_become_sites(self, tmp_path):
        columns = table()
        rows = zip(*(np.asarray(cells).tolist() for cells in columns.values()), strict=True)
        text = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)])
        (tmp_path / "people.csv").write_text(text + "\n", encoding="utf-8")
        run = write_run(tmp_path, RUN.replace("[federation]", '[data]\nfile = "people.csv"\n[federation]'))
        done = command("federate", "local", run, "--out", tmp_path / "out", "--seed", 0)
        assert done.exit_code == 0, done.output
        assert "fitted over sites" in done.output
        expected = fitted_here(fit_agreement("classes"))
        assert FittedModel.load(tmp_path / "out").ledger.model == expected.ledger.model
        document = json.loads((tmp_path / "out" / "result.json").read_text())
        assert [client["name"] for client in document["clients"]] == ["north", "south"]
        assert document["epsilon"] == pytest.approx(8.0, rel=1e-3)
        again = command("federate", "simulate", run, "--out", tmp_path / "out", "--seed", 0, "--resume", "--json")
        assert (again.exit_code, json.loads(again.stdout)["run"]) == (0, document["run"])

    def test_it_is_approved_in_plain_words_and_then_fitted(self, tmp_path):
        sites = write_tables(tmp_path / "sites", "epsilon = 8.0\ndelta = 1e-4")
        run = write_run(tmp_path, RUN.replace("epsilon = 8.0", 'epsilon = 8.0\nunit = "group"'), "regression")
        site = sites / "north" / "site.toml"
        shown = command("federate", "approve", run, "--site", site, "--check")
        assert shown.exit_code == 0, shown.output
        for words in ("age: 0 to 100", "sex: one of ['f', 'm']", "smoker: yes or no", "born: 1950-01-01 to 2005-01-01",
                      "regression: 0 to 10", "all records with the same 'person' together", "become 'other'",
                      "8, 0.0001, for the whole run", "the server adds it", "at most 512",
                      "bounded sums over them, without noise", "column 'age': of 215 values"):  # fmt: skip
            assert words in " ".join(shown.output.split()), (words, shown.output)
        assert not (sites / "north" / "diff2-site").exists()
        refused = command("federate", "local", run, "--sites", sites, "--out", tmp_path / "early")
        assert isinstance(refused.exception, SystemExit)
        assert "nobody at this site approved" in " ".join(refused.output.split())
        for name in ("north", "south"):
            assert command("federate", "approve", run, "--site", sites / name / "site.toml", "--yes").exit_code == 0
        done = command("federate", "local", run, "--sites", sites, "--out", tmp_path / "out")
        assert done.exit_code == 0, done.output
        checked = command("verify", tmp_path / "out")
        assert (checked.exit_code, "private as stated" in checked.output) == (0, True)
        ledger = command("federate", "ledger", site, "--json")
        assert json.loads(ledger.stdout)["epsilon"] == 8.0
        assert json.loads(ledger.stdout)["runs"][0]["algorithm"] == "fit"

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("low = 0 ", "low = 1 "), ('"m",', '"m", "d",'), ("nullable = true", "nullable = false"),
            ('groups = "person"', 'groups = "income2"'), ("[columns.income]", "[columns.incomes]"),
        ],
    )  # fmt: skip
    def test_the_hash_covers_whatever_a_column_means(self, tmp_path, old, new):
        run, before = write_run(tmp_path), agreement_of(read_federated(write_run(tmp_path)))
        text = (tmp_path / "people.toml").read_text()
        assert old in text
        (tmp_path / "people.toml").write_text(text.replace(old, new, 1))
        changed = agreement_of(read_federated(run))
        assert changed.digest != before.digest
        site = site_from_file("north", read_site_file(write_tables(tmp_path / "sites") / "north" / "site.toml"))
        site.approve(before)
        with pytest.raises(Exception, match="nobody at this site approved"):
            site.require_approved(changed)

    def test_a_package_holds_the_schema_and_pins_the_columns(self, tmp_path):
        run = read_federated(write_run(tmp_path))
        folders = write_package(run, tmp_path / "package", Parties(("north", "south"), "localhost", "a@b.c"))
        site = read_site_file(folders["north"] / "site.toml")
        assert (folders["north"] / "people.toml").exists()
        agreement = agreement_of(read_federated(folders["north"] / "run.toml"))
        assert agreement == read_job(folders["admin"] / "job" / "run").agreement
        pinned = {name for name, column in site.data.columns.items() if column.pinned}
        assert pinned == {*agreement.inputs, agreement.target} - {"born"}
        assert all(agreement.agrees(name, column) for name, column in site.data.columns.items() if column.pinned)


class TestPins:
    """A site may pin what its columns mean; a fit that says otherwise is refused without reading a record."""

    @pytest.mark.parametrize(
        ("pin", "agrees"),
        [
            ("age = { bounds = [0, 100] }", True), ("age = { bounds = [0, 99] }", False),
            ('age = { bounds = [0, 100], unit = "months" }', False),
            ("age = { bounds = [0, 100], missing = 3 }", False),
            ('sex = { classes = ["f", "m"] }', True), ('sex = { classes = ["m", "f"] }', False),
            ("sex = { bounds = [0, 1] }", False), ("smoker = { bounds = [0, 1] }", True),
            ('classes = { classes = ["low", "middle", "high"] }', True), ("classes = { bounds = [0, 2] }", False),
            ("born = { bounds = [0, 1] }", False), ("person = { bounds = [0, 1] }", True), ('age = "AGE"', True),
        ],
    )  # fmt: skip
    def test_a_column_means_what_the_site_says(self, pin, agrees, tmp_path):
        path = write_tables(tmp_path) / "north" / "site.toml"
        path.write_text(path.read_text().replace("[policy]", f"[data.columns]\n{pin}\n[policy]"))
        site, agreement = site_from_file("north", read_site_file(path)), fit_agreement("classes")
        site.approve(agreement)
        if agrees:
            site.require_approved(agreement)
        else:
            with pytest.raises(Exception, match="does not mean at this site"):
                site.require_approved(agreement)

    @pytest.mark.parametrize(
        ("policy", "match"),
        [
            ('algorithms = ["diff2"]', "algorithm 'fit'"), ("max_rounds = 511", "512 rounds"),
            ("max_epsilon_per_run = 7", "7 per run"), ("require_own_noise = true", "trust = 'sites'"),
            ('require_group_column = "person"', "protected together"), ("smallest_size = 209", "fewer records"),
        ],
    )  # fmt: skip
    def test_the_limits_of_a_policy_hold(self, policy, match, tmp_path):
        sites = write_tables(tmp_path / "sites", f"epsilon = inf\n{policy}")
        run = write_run(tmp_path)
        spec, _ = job_from_run_file(read_federated(run), tmp_path / "out", sites=sites)
        for name in spec.sites:
            site_from_file(name, read_site_file(sites / name / "site.toml")).approve(spec.agreement)
        with pytest.raises(SiteRefused, match=match):
            without_processes(spec, sites)
