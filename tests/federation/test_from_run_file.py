"""Run files of a federation, and the commands on them, with sites in this process."""

import json

import pytest
from typer.testing import CliRunner

from diff2 import InvalidArgument
from diff2.cli.main import app
from diff2.federation.agreement import read_agreement
from diff2.federation.flare import local
from diff2.federation.from_run_file import job_from_run_file, public_agreement, site_names
from diff2.federation.server.job import run_job
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from federated import in_process
from federation_tables import RUN, TABLES, write_run, write_sites
from stubs import untimed

pytestmark = pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning", "ignore::diff2.WeakDeltaWarning")


class TestRunFile:
    def test_the_agreement_needs_no_table(self, tmp_path):
        run = read_run_file(write_run(tmp_path))
        agreement = public_agreement(run)
        assert list(agreement.encoding.inputs) == ["age", "income"]
        assert read_agreement(json.loads(json.dumps(agreement.to_json()))) == agreement
        assert run.federation.sites == ("north", "south")

    @pytest.mark.parametrize(
        ("old", "new", "match"),
        [
            ('columns = ["age", "income"]', "", "needs the key 'columns'"),
            ('task = "regression"', 'task = "regression"\nscale = "data"', "not possible at sites"),
            ('task = "regression"', 'task = "regression"\nholdout = 0.2', "holdout"),
            ('sites = ["north", "south"]', "", "needs the key 'sites'"),
            ("timeout = 20", "timeout = 20\n[run]\nmetrics_every = 1", "metrics_every"),
        ],
    )
    def test_what_sites_cannot_do_is_refused(self, tmp_path, old, new, match):
        run = read_run_file(write_run(tmp_path, RUN.replace(old, new)))
        with pytest.raises(InvalidArgument, match=match):
            job_from_run_file(run, tmp_path / "out", sites=write_sites(tmp_path / "sites"))

    @pytest.mark.parametrize(
        ("new", "match"),
        [
            ('sites = ["north", "north"]', "twice"),
            ('sites = ["a b"]', "names of letters"),
            ('sites = ["server"]', "'server'"),
            ("timeout = 0", "timeout > 0"),
            ("restarts = -1", "restarts >= 0"),
            ('sites = ["a"]\nminimum_sites = 2', "more than the 1 sites"),
            ("site = 1", "did you mean 'sites'"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, new, match):
        text = RUN[: RUN.index("[federation]")] + f"[federation]\n{new}\n"
        with pytest.raises(InvalidArgument, match=match):
            read_run_file(write_run(tmp_path, text))

    def test_it_cannot_be_trained_without_the_sites(self, tmp_path):
        with pytest.raises(InvalidArgument, match="diff2 federate"):
            train_run_file(read_run_file(write_run(tmp_path)), tmp_path / "out")
        with pytest.raises(InvalidArgument, match="--sites"):
            job_from_run_file(read_run_file(write_run(tmp_path)), tmp_path / "out")
        with pytest.raises(InvalidArgument, match="every site needs one"):
            job_from_run_file(read_run_file(write_run(tmp_path)), tmp_path / "out", sites=tmp_path)


def test_names_of_sites_are_kept_where_they_can_be():
    assert site_names(["north.csv", "south.csv"]) == ("north", "south")
    assert site_names(["server", "a"]) == ("site-1", "site-2")
    assert site_names(["ä", "b"]) == ("site-1", "site-2")


def without_processes(spec, sites, **options):
    """What ``run_locally`` does, without processes."""
    found = {name: site_from_file(name, read_site_file(sites / name / "site.toml")) for name in spec.sites}
    run_job(spec, in_process(found))
    return 1


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


class TestCommands:
    @pytest.fixture(autouse=True)
    def no_processes(self, monkeypatch):
        monkeypatch.setattr(local, "run_locally", without_processes)

    def test_sites_with_their_own_files(self, tmp_path):
        run, sites = write_run(tmp_path), write_sites(tmp_path / "sites")
        done = command("federate", "simulate", run, "--out", tmp_path / "out", "--sites", sites, "--json")
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert [client["name"] for client in document["clients"]] == ["north", "south"]
        assert document["guarantee"]["private"] is True
        shown = json.loads(command("federate", "ledger", sites / "south" / "site.toml", "--json").stdout)
        assert (shown["site"], shown["epsilon"], shown["runs"][0]["answers"]) == ("south", 2.0, 5)
        assert shown["runs"][0]["complete"] is True
        status = json.loads(command("federate", "status", tmp_path / "out", "--json").stdout)
        assert (status["round"], status["outcome"]["state"]) == (5, "done")
        for words in (["ledger", sites / "south" / "site.toml"], ["status", tmp_path / "out"]):
            assert "south" in command("federate", *words).stdout
        # A second run would cost as much again, and the sites agreed to one.
        again = command("federate", "local", run, "--out", tmp_path / "second", "--sites", sites)
        assert again.exit_code == 1
        assert "in total" in again.output

    def test_clients_of_the_data_become_sites_and_give_the_same_bytes(self, tmp_path):
        for name in TABLES:
            TABLES["north"].to_csv(tmp_path / f"{name}.csv", index=False)
        text = RUN.replace("[data]", '[data]\nfiles = ["north.csv", "south.csv"]')
        run = write_run(tmp_path, text)
        done = command("federate", "local", run, "--out", tmp_path / "out", "--seed", 3)
        assert done.exit_code == 0, done.output
        assert "NOT PRIVATE" in done.stdout
        assert command("train", run, "--out", tmp_path / "train", "--seed", 3).exit_code == 0
        assert (tmp_path / "out" / "model.pt").read_bytes() == (tmp_path / "train" / "model.pt").read_bytes()
        (mine, *_), (theirs, *_) = lines = [untimed(tmp_path / out / "ledger.jsonl") for out in ("out", "train")]
        assert lines[0][1:] == lines[1][1:]
        assert mine | {"run_file": theirs["run_file"]} == theirs
        again = command("federate", "local", run, "--out", tmp_path / "out", "--seed", 3)
        assert again.exit_code == 1
        assert "not empty" in again.output
        resumed = command("federate", "local", run, "--out", tmp_path / "out", "--seed", 3, "--resume")
        assert resumed.exit_code == 0, resumed.output

    def test_there_must_be_something_to_show(self, tmp_path):
        assert command("federate", "status", tmp_path).exit_code == 1
        write_sites(tmp_path / "sites")
        assert (
            "not taken part in any run yet"
            in command("federate", "ledger", tmp_path / "sites" / "north" / "site.toml").output
        )
