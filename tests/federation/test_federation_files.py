"""Site files, run files of a federation, the records of a site, and the commands."""

import json
import math

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from diff2 import InvalidArgument
from diff2.cli.main import app
from diff2.data.scaling import Scaling
from diff2.federation.agreement import read_agreement
from diff2.federation.flare import local
from diff2.federation.from_run_file import job_from_run_file, public_agreement, site_names
from diff2.federation.server.job import run_job
from diff2.federation.site.policy import Policy, read_site_file
from diff2.federation.site.records import load_records
from diff2.federation.site.site import site_from_file
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from federated import in_process

RUN = """
[data]
target = "visits"
task = "regression"
columns = ["age", "income"]
bounds = { age = [0, 100], visits = [0, 20] }
[model]
hidden = [3]
[algorithm]
name = "diff2"
rounds = 5
restart_interval = 3
clip_gradient = 1.0
clip_smoothness = 2.0
[routine]
name = "gradient_descent"
learning_rate = 0.1
[privacy]
epsilon = 2.0
delta = 1e-3
[federation]
sites = ["north", "south"]
timeout = 20
"""
TABLES = {
    "north": pandas.DataFrame({"age": [20, 40, 60, 80], "income": [0.1, 0.2, 0.3, 0.4], "visits": [1, 2, 3, 4]}),
    "south": pandas.DataFrame(
        {"ALTER": [30, 50, 70], "income": [0.3, 0.2, 0.1], "visits": [0, 5, 25], "age": [9, 9, 9]}
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning", "ignore::diff2.WeakDeltaWarning")


def write_run(folder, text=RUN):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def write_sites(folder, policy="epsilon = 2.0\ndelta = 1e-3"):
    for name, table in TABLES.items():
        (folder / name).mkdir(parents=True)
        table.to_csv(folder / name / "table.csv", index=False)
        columns = '[data.columns]\nage = "ALTER"\n' if name == "south" else ""
        text = f'[data]\nfile = "table.csv"\n{columns}[policy]\n{policy}\n'
        (folder / name / "site.toml").write_text(text, encoding="utf-8")
    return folder


def site_file(folder, text):
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestSiteFile:
    def test_it_is_read(self, tmp_path):
        text = """
        [site]
        directory = "kept"
        [data]
        file = "a.csv"
        columns = { age = "ALTER" }
        [policy]
        epsilon = 3
        delta = 1e-6
        smallest_size = 100
        algorithms = ["diff2", "dpgd"]
        reported_size = 1000
        """
        site = read_site_file(site_file(tmp_path, text))
        assert site.policy == Policy(3.0, 1e-6, 100, ("diff2", "dpgd"), ("mlp",), 1000)
        assert site.directory == tmp_path / "kept"
        assert dict(site.data.columns) == {"age": "ALTER"}

    def test_private_by_default(self, tmp_path):
        site = read_site_file(site_file(tmp_path, '[data]\nfile = "a.csv"\n[policy]\nepsilon = 1\n'))
        assert site.policy.delta == 1e-5

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('[data]\nfile = "a"', r"\[policy\] is missing"),
            ("[policy]\nepsilon = 1", r"\[data\] is missing"),
            ("[data]\n[policy]\nepsilon = 1", "either file"),
            ('[data]\nfile = "a"\nentry_point = "b:c"\n[policy]\nepsilon = 1', "either file"),
            ('[data]\nentry_point = "b"\n[policy]\nepsilon = 1', "module:function"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 0', "epsilon > 0"),
            ('[data]\nfile = "a"\n[policy]\ndelta = 1e-5', "needs the key 'epsilon'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nepsilom = 2', "did you mean 'epsilon'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nalgorithms = ["dif2"]', "did you mean 'diff2'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nsmallest_size = 9\nreported_size = 8', "reported_size >= 9"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\n[polic]', "did you mean 'policy'"),
            ("epsilon = 1", "unknown table"),
            ("[data", "not a TOML file"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, text, match):
        with pytest.raises(InvalidArgument, match=match):
            read_site_file(site_file(tmp_path, text))

    def test_there_must_be_one(self, tmp_path):
        with pytest.raises(InvalidArgument, match="no site file"):
            read_site_file(tmp_path / "site.toml")


class TestRecords:
    """From the site's table to the encoding that was agreed."""

    def records(self, folder, name):
        agreement = public_agreement(read_run_file(write_run(folder)))
        return load_records(read_site_file(folder / "sites" / name / "site.toml"), agreement)

    def test_columns_have_other_names_and_public_ranges_hold(self, tmp_path):
        write_sites(tmp_path / "sites")
        client = self.records(tmp_path, "south").client
        expected = Scaling.of_input((0, 100)).encode(np.array([30.0, 50, 70]))
        assert torch.equal(client.inputs[:, 0], torch.as_tensor(expected, dtype=torch.float32))  # not its own "age"
        assert client.targets.flatten().tolist() == [0.0, 0.25, 1.0]  # 25 visits are clipped to 20

    def test_parquet(self, tmp_path):
        write_sites(tmp_path / "sites")
        before = self.records(tmp_path, "north")
        folder = tmp_path / "sites" / "north"
        TABLES["north"].to_parquet(folder / "table.parquet")
        (folder / "site.toml").write_text('[data]\nfile = "table.parquet"\n[policy]\nepsilon = 1\n')
        after = self.records(tmp_path, "north")
        assert torch.equal(before.client.inputs, after.client.inputs)
        assert torch.equal(before.client.targets, after.client.targets)

    @pytest.mark.parametrize("function", ["table", "arrays"])
    def test_an_entry_point(self, tmp_path, monkeypatch, function):
        write_sites(tmp_path / "sites")
        before = self.records(tmp_path, "north")
        (tmp_path / "hospital.py").write_text(
            "import numpy, pandas\n"
            "frame = pandas.DataFrame({'age': [20, 40, 60, 80], 'income': [.1, .2, .3, .4], 'visits': [1, 2, 3, 4]})\n"
            "def table(): return frame\n"
            "def arrays(): return ((frame[['age', 'income']].to_numpy() - [50, 0]) / [50, 1], "
            "frame[['visits']].to_numpy() / 20)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        text = f'[data]\nentry_point = "hospital:{function}"\n[policy]\nepsilon = 1\n'
        (tmp_path / "sites" / "north" / "site.toml").write_text(text)
        after = self.records(tmp_path, "north")
        assert torch.allclose(before.client.inputs, after.client.inputs)
        assert torch.allclose(before.client.targets, after.client.targets)

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('file = "missing.csv"', "no file"),
            ('file = "missing.npz"', "no file"),
            ('entry_point = "nowhere:load"', "cannot be found"),
            ('file = "table.csv"\ncolumns = { age = "AGE" }', "no column 'AGE'"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path, text, match):
        write_sites(tmp_path / "sites")
        (tmp_path / "sites" / "north" / "site.toml").write_text(f"[data]\n{text}\n[policy]\nepsilon = 1\n")
        with pytest.raises(InvalidArgument, match=match):
            self.records(tmp_path, "north")

    def test_arrays_must_have_the_agreed_shape_and_hold_no_objects(self, tmp_path):
        write_sites(tmp_path / "sites")
        folder = tmp_path / "sites" / "north"
        (folder / "site.toml").write_text('[data]\nfile = "a.npz"\n[policy]\nepsilon = 1\n')
        np.savez(folder / "a.npz", inputs=np.zeros((4, 3)), targets=np.zeros((4, 1)))
        with pytest.raises(InvalidArgument, match="shape"):
            self.records(tmp_path, "north")
        np.savez(folder / "a.npz", inputs=np.array([object()] * 4), targets=np.zeros((4, 1)))
        with pytest.raises(InvalidArgument, match="no arrays"):
            self.records(tmp_path, "north")


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
        for name in ("model.pt", "ledger.jsonl"):
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "train" / name).read_bytes()
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


def test_a_policy_of_infinity_is_written_as_a_number(tmp_path):
    path = site_file(tmp_path, '[data]\nfile = "a"\n[policy]\nepsilon = inf\n')
    assert read_site_file(path).policy.epsilon == math.inf
