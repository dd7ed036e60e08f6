"""Run files of a federation, and the commands on them, with sites in this process."""

import json

import pytest
from typer.testing import CliRunner

from diff2 import InvalidArgument
from diff2.cli.main import app
from diff2.federation.agreement import read_agreement
from diff2.federation.faults import SiteRefused
from diff2.federation.flare import local
from diff2.federation.from_run_file import job_from_run_file, public_agreement, site_names
from diff2.federation.server.job import run_job
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.messages import Message, read, write
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from federated import in_process, lines
from federation_tables import RUN, TABLES, write_run, write_sites
from stubs import untimed

pytestmark = pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning", "ignore::diff2.WeakDeltaWarning")


class TestRunFile:
    def test_columns_keep_their_order_on_the_way_to_a_site(self, tmp_path):
        """The order of the model's inputs; fields of a message are sorted by name."""
        text = RUN.replace('["age", "income"]', '["income", "age"]')
        agreement = public_agreement(read_run_file(write_run(tmp_path, text)))
        found = read(write(Message("describe", {"agreement": agreement.to_json()}))).fields["agreement"]
        assert list(read_agreement(found).encoding.inputs) == ["income", "age"]

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


def approve_at(sites, run):
    for name in TABLES:
        done = command("federate", "approve", run, "--site", sites / name / "site.toml", "--yes")
        assert done.exit_code == 0, done.output


class TestApproval:
    """A site takes part in what somebody there has read, and in nothing else."""

    def submit(self, folder, sites, text=RUN):
        folder.mkdir()
        spec, _ = job_from_run_file(read_run_file(write_run(folder, text)), folder / "out", sites=sites)
        without_processes(spec, sites)
        return spec.agreement

    def test_a_job_about_other_columns_than_were_read_is_refused(self, tmp_path):
        """Three hospitals read about age and income; the job that is submitted asks about income and HIV."""
        sites, run = write_sites(tmp_path / "sites"), write_run(tmp_path)
        approve_at(sites, run)
        other = RUN.replace('["age", "income"]', '["income", "hiv"]').replace("age = [0, 100]", "hiv = [0, 1]")
        with pytest.raises(SiteRefused, match="'north': nobody at this site approved"):
            self.submit(tmp_path / "job", sites, other)
        *_, last = lines(sites / "north" / "diff2-site" / "ledger.jsonl")
        assert [column["column"] for column in last["agreement"]["encoding"]["inputs"]] == ["income", "hiv"]
        assert self.submit(tmp_path / "as read", sites).sites == ("north", "south")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("age = [0, 100]", "age = [0, 99]"),
            ("income = [0, 1]", "income = [-1, 1]"),
            ("visits = [0, 20] }", "visits = [0, 20] }\nmissing = { age = 3 }"),
            ("visits = [0, 20] }", 'visits = [0, 20] }\nunits = { age = "months" }'),
            ('target = "visits"', 'target = "visits"\ngroup_column = "person"'),
            ("epsilon = 2.0", "epsilon = 1.9"),
            ("delta = 1e-3", "delta = 1e-4"),
            ("rounds = 5", "rounds = 4"),
            ("hidden = [3]", "hidden = [4]"),
            ("clip_gradient = 1.0", "clip_gradient = 2.0"),
            ("learning_rate = 0.1", "learning_rate = 0.2"),
            ('sites = ["north", "south"]', 'sites = ["south", "north"]'),
            ('sites = ["north", "south"]', 'sites = ["north", "south", "mallory"]'),
            ('sites = ["north", "south"]', 'sites = ["north", "south"]\nminimum_sites = 1'),
            ('sites = ["north", "south"]', 'sites = ["north", "south"]\ntrust = "sites"'),
            ("[federation]", '[run]\ndtype = "float64"\n[federation]'),
            ("[federation]", '[run]\nengine = "loop"\n[federation]'),
            ("[federation]", "[run]\nseed = 1\n[federation]"),
        ],
    )
    def test_the_hash_covers_whatever_decides_what_leaves(self, tmp_path, old, new):
        assert RUN.count(old) == 1
        sites, text = write_sites(tmp_path / "sites", "epsilon = inf"), RUN.replace(old, new)
        (sites / "mallory").mkdir()
        (sites / "mallory" / "site.toml").write_text((sites / "north" / "site.toml").read_text())
        approve_at(sites, write_run(tmp_path))
        with pytest.raises(SiteRefused, match="nobody at this site approved"):
            self.submit(tmp_path / "job", sites, text)

    def test_it_is_shown_in_plain_words(self, tmp_path):
        text = RUN.replace("visits = [0, 20] }", 'visits = [0, 20] }\nunits = { age = "years" }')
        sites = write_sites(tmp_path / "sites")
        site = sites / "south" / "site.toml"
        shown = command("federate", "approve", write_run(tmp_path, text), "--site", site, "--check")
        assert shown.exit_code == 0, shown.output
        for words in ("age: 0 to 100 in years", "visits: 0 to 20", "each record", "2, 0.001, for the whole run",
                      "rounds = 5", "north, south", "the server adds it", "clipped sums over them, without noise",
                      "column 'visits': 1 of 3 values are outside"):  # fmt: skip
            assert words in " ".join(shown.output.split()), words
        assert not (sites / "south" / "diff2-site").exists()
        own = command("federate", "approve", write_run(tmp_path, text + 'trust = "sites"\n'), "--site", site, "--check")
        assert "every site adds its own" in own.output
        assert "epsilon is at most about" in " ".join(own.output.split())

    def test_somebody_must_agree(self, tmp_path):
        run, site = write_run(tmp_path), write_sites(tmp_path / "sites") / "north" / "site.toml"
        told = command("federate", "approve", run, "--site", site)
        assert (told.exit_code, "--yes" in told.output) == (1, True)
        assert not (site.parent / "diff2-site").exists()

    @pytest.mark.parametrize(
        ("old", "new", "match"),
        [
            ("epsilon = 2.0", "epsilon = 1.0", "allows epsilon=1"),
            ('file = "table.csv"', 'file = "table.csv"\ncolumns = { age = "AGE" }', "no column 'AGE'"),
            ('file = "table.csv"', 'file = "table.csv"\ncolumns.age = { bounds = [0, 120] }', "'age' does not mean"),
            ("epsilon = 2.0", "epsilon = 2.0\nsmallest_size = 5", "fewer records"),
            ("epsilon = 2.0", "epsilon = 2.0\nmin_honest_sites = 3", "which requires 3"),
            ("epsilon = 2.0", "epsilon = 2.0\nmax_epsilon_against_server = 9", "sites add the noise"),
        ],
    )
    def test_what_the_site_would_refuse_is_found_there(self, tmp_path, old, new, match):
        run, site = write_run(tmp_path), write_sites(tmp_path / "sites") / "north" / "site.toml"
        site.write_text(site.read_text().replace(old, new))
        told = command("federate", "approve", run, "--site", site, "--yes")
        assert (told.exit_code, match in " ".join(told.output.split())) == (1, True), told.output
        assert not (site.parent / "diff2-site").exists()

    @pytest.mark.parametrize(("reported", "is_approved"), [(3, False), (4, True), (6, True)])
    def test_poisson_batches_need_a_bound_of_the_number_of_records(self, tmp_path, reported, is_approved):
        """The first records are used: of more than the bound, removing one makes room for another, and moves twice."""
        algorithm = 'name = "dpsgd"\nrounds = 2\nbatch_size = 2\nclip_gradient = 1.0\nsampling = "poisson"\n'
        start, end = RUN.index("[algorithm]"), RUN.index("[routine]")
        run = write_run(tmp_path, f"{RUN[:start]}[algorithm]\n{algorithm}{RUN[end:]}")
        site = write_sites(tmp_path / "sites", f"epsilon = 2.0\ndelta = 1e-3\nreported_size = {reported}") / "north"
        told = command("federate", "approve", run, "--site", site / "site.toml", "--yes")
        assert (told.exit_code == 0) == is_approved, told.output
        assert is_approved or "more records than reported_size" in " ".join(told.output.split())


class TestCommands:
    @pytest.fixture(autouse=True)
    def no_processes(self, monkeypatch):
        monkeypatch.setattr(local, "run_locally", without_processes)

    def test_sites_with_their_own_files(self, tmp_path):
        run, sites = write_run(tmp_path), write_sites(tmp_path / "sites")
        approve_at(sites, run)
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
        told = command("federate", "approve", run, "--site", sites / "south" / "site.toml", "--yes")
        assert (told.exit_code, "in total" in " ".join(told.output.split())) == (1, True), told.output
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
        written = [*(tmp_path / "out" / "sites").iterdir(), *(tmp_path / "out" / "sites").rglob("records.npz")]
        assert [path.stat().st_mode & 0o777 for path in written] == [0o700] * 2 + [0o600] * 2  # were 0755, 0644
        assert command("train", run, "--out", tmp_path / "train", "--seed", 3).exit_code == 0
        assert len({(tmp_path / out / "model.safetensors").read_bytes() for out in ("out", "train")}) == 1
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
