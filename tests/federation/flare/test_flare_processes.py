"""The federation on NVIDIA FLARE: the simulator, and real server and site processes on 127.0.0.1, also when they die.

Every test stops what it started, within its time.
"""

import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from bad_site import VARIABLE
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.collab.api.context import set_call_context

from catalogue import CATALOGUE, PRIVATE, SAMPLED, diff2_with, run
from diff2 import FittedModel
from diff2._files import read_json
from diff2.federation.faults import BadAnswer, SiteRefused
from diff2.federation.flare import local
from diff2.federation.flare.follow import JobStopped
from diff2.federation.flare.job import CLASSES, FlareSite, write_job
from diff2.federation.flare.local import run_locally, start_simulator
from diff2.federation.flare.processes import Processes
from diff2.federation.server import OUTCOME, PROGRESS
from diff2.federation.server.job import JobSpec
from diff2.federation.wire.messages import Message, read, write
from diff2.privacy import Ledger
from diff2.training.model_file import file_digest, model_digest
from federated import NAMES, agreement_of, answer_labels, lines, write_sites
from fitted_sites import fit_agreement, fitted_fully, sites_of, write_tables

LONG = diff2_with(rounds=120)
START = 150.0  # seconds a job has to get under way: two cores, shared by many
pytestmark = pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning")  # of a library that FLARE uses


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """All processes of a test are gone when it is over."""
    mine = psutil.Process()
    before = {child.pid for child in mine.children(recursive=True)}
    yield
    left = [child for child in mine.children(recursive=True) if child.pid not in before]
    assert not [child for child in left if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def path_of_bad_sites(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def spec_of(name, directory, timeout=60.0, **options):
    return JobSpec(agreement_of(name), directory, timeout=timeout, **options)


def same_in_one_process(spec, name):
    """What the job left is what the same run gives in one process."""
    expected = run(name, budget=PRIVATE, seed=1, by_client=True)
    assert file_digest(spec.directory / "model.safetensors") == model_digest(expected.model)
    assert Ledger.read(spec.directory / "ledger.jsonl").releases == expected.ledger.releases


def no_answer_was_given_twice(sites):
    for name in NAMES:
        labels = answer_labels(sites / name / "diff2-site" / "ledger.jsonl")
        assert len(labels) == len(set(labels)) > 0


def simulate_all(names, tmp_path, timeout):
    """Run one spec after the other in one job of the simulator."""
    specs = {name: spec_of(name, tmp_path / "runs" / str(i)) for i, name in enumerate(names)}
    sites = write_sites(tmp_path / "sites", *(spec.agreement for spec in specs.values()))
    job = write_job(tmp_path / "job", list(specs.values()), start_timeout=START)
    with Processes() as processes:
        start_simulator(processes, job, tmp_path, NAMES, sites)
        deadline = time.monotonic() + timeout
        last = list(specs.values())[-1].directory / OUTCOME
        while not last.exists() and time.monotonic() < deadline and not processes.ended():
            time.sleep(0.5)
    for name, spec in specs.items():
        assert read_json(spec.directory / OUTCOME)["state"] == "done", name
        same_in_one_process(spec, name)


@pytest.mark.slow
def test_the_simulator_gives_the_same_bytes(tmp_path):
    simulate_all(["diff2", "diff2, groups", "recursive", "diff2, client, 2 of 3 in turn"], tmp_path, 200)


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_the_simulator_gives_the_same_bytes_for_every_algorithm(sampled, tmp_path):
    simulate_all([name for name in CATALOGUE if (name in SAMPLED) == sampled], tmp_path, 550)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diff2", "bvr"])
def test_real_processes_give_the_same_bytes(name, tmp_path):
    spec, heard = spec_of(name, tmp_path / "run"), set()
    sites = write_sites(tmp_path / "sites", spec.agreement)

    def listening(report):
        for process in psutil.Process().children(recursive=True):
            heard.update(c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN)

    assert run_locally(spec, sites, simulate=False, restarts=0, start_timeout=START, report=listening) == 1
    same_in_one_process(spec, name)
    no_answer_was_given_twice(sites)
    assert heard == {"127.0.0.1"}  # nobody else can reach them
    for line in lines(sites / "south" / "diff2-site" / "ledger.jsonl")[1:]:
        assert (line["caller"], line["submitter"], len(line["job"])) == ("server", "admin@diff2.local", 36)


@pytest.mark.slow
def test_real_processes_fit_the_same_model(tmp_path):
    agreement = fit_agreement("classes")
    spec, sites = JobSpec(agreement, tmp_path / "run"), write_tables(tmp_path / "sites")
    sites_of(sites, agreement)
    assert run_locally(spec, sites, simulate=False, restarts=0, start_timeout=START) == 1
    assert FittedModel.load(tmp_path / "run").ledger.model == fitted_fully(agreement).ledger.model
    for line in lines(sites / "south" / "diff2-site" / "ledger.jsonl")[1:]:
        assert (line["caller"], line["submitter"]) == ("server", "admin@diff2.local")


def test_a_job_holds_no_code_and_only_classes_that_sites_allow(tmp_path):
    job = write_job(tmp_path, [spec_of("diff2", tmp_path / "run")], start_timeout=START)
    files = sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file())
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    paths = re.findall(r'"path": "([^"]*)"', "".join((job / file).read_text() for file in files))
    assert len(paths) == 4
    assert all(path.startswith(CLASSES) for path in paths)


def test_a_site_answers_the_server_and_nobody_else(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFF2_SITE", str(write_sites(tmp_path / "sites", agreement_of("diff2"))))
    site, question = FlareSite(), write(Message("describe", {"agreement": agreement_of("diff2").to_json()}))
    kinds = {}
    context = FLContext()
    context.put(ReservedKey.RUN_NUM, "job 7", private=True, sticky=False)
    context.put(FLContextKey.JOB_META, {"submitter_name": "ada"}, private=True, sticky=False)
    for caller in ("server", "south"):
        app = SimpleNamespace(name="north", get_prop=lambda name: context)
        set_call_context(SimpleNamespace(caller=caller, app=app))
        kinds[caller] = read(site.ask(question)).kind
        site.ask(b"")
    set_call_context(None)
    assert kinds == {"server": "description", "south": "refusal"}
    last = lines(tmp_path / "sites" / "north" / "diff2-site" / "ledger.jsonl")[-1]
    assert (last["kind"], last["caller"], last["job"], last["submitter"]) == ("refusal", "server", "job 7", "ada")


class Killer(threading.Thread):
    """Kills a process with -9, or only its descendants, once the run has reached a round."""

    def __init__(self, spec, victim, round=10, whole=True):
        super().__init__(daemon=True)
        self.spec, self.victim, self.round, self.whole = spec, victim, round, whole
        self.processes, self.killed = None, []

    def started(self, processes):
        self.processes = processes
        if not self.is_alive() and not self.killed:
            self.start()

    def run(self):
        while (read_json(self.spec.directory / PROGRESS) or {}).get("round", 0) < self.round:
            time.sleep(0.05)
        root = psutil.Process(self.processes.pid(self.victim))
        self.killed = [*root.children(recursive=True), *([root] if self.whole else [])]
        for process in self.killed:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["south", "server"])
def test_a_run_is_resumed_after_kill_9(victim, tmp_path):
    spec = JobSpec(agreement_of(LONG), tmp_path / "run", timeout=20.0)
    sites = write_sites(tmp_path / "sites", spec.agreement)
    killer, heard = Killer(spec, victim), []
    jobs = run_locally(
        spec, sites, simulate=False, restarts=2, start_timeout=START, started=killer.started, report=heard.append
    )
    assert killer.killed
    assert jobs == 2
    assert [report.number for report in heard if "stopped" in report.progress] == [1]
    same_in_one_process(spec, LONG)
    no_answer_was_given_twice(sites)


@pytest.mark.slow
def test_a_killed_job_process_of_a_site_stops_the_job_and_a_new_one_resumes(tmp_path):
    """Only the process of the job dies; the site itself lives on."""
    spec = JobSpec(agreement_of(LONG), tmp_path / "run", timeout=20.0)
    sites = write_sites(tmp_path / "sites", spec.agreement)
    killer = Killer(spec, "south", whole=False)
    jobs = run_locally(spec, sites, simulate=False, restarts=2, start_timeout=START, started=killer.started)
    assert killer.killed
    assert jobs == 2
    same_in_one_process(spec, LONG)


def misbehaving(tmp_path, monkeypatch, how):
    """Sites of which 'south' misbehaves in round 4."""
    sites = write_sites(tmp_path / "sites", agreement_of("diff2"))
    monkeypatch.setenv(VARIABLE, str(sites / "south" / "records.npz"))
    text = f'[data]\nentry_point = "bad_site:{how}"\n[policy]\nepsilon = inf\n'
    (sites / "south" / "site.toml").write_text(text, encoding="utf-8")
    return sites


@pytest.mark.slow
@pytest.mark.parametrize("how", ["not_a_number", "too_short", "too_long"])
def test_garbage_stops_the_run_at_once_and_it_is_resumed_when_mended(how, tmp_path, monkeypatch):
    sites, spec = misbehaving(tmp_path, monkeypatch, how), spec_of("diff2", tmp_path / "run", timeout=20.0)
    with pytest.raises(BadAnswer, match="'south'"):
        run_locally(spec, sites, simulate=False, restarts=3, start_timeout=START)
    assert len(list((spec.directory / "flare").iterdir())) == 1  # it is not tried again by itself
    assert [entry.round for entry in Ledger.resume(spec.directory / "ledger.jsonl").releases] == [1, 2, 3]
    if how == "not_a_number":
        (sites / "south" / "site.toml").write_text('[data]\nfile = "records.npz"\n[policy]\nepsilon = inf\n')
        run_locally(spec, sites, simulate=False, restarts=0, start_timeout=START)
        same_in_one_process(spec, "diff2")


@pytest.mark.slow
def test_a_site_that_never_answers_costs_the_timeout_and_a_new_job(tmp_path, monkeypatch):
    sites, spec = misbehaving(tmp_path, monkeypatch, "silent"), spec_of("diff2", tmp_path / "run", timeout=8.0)
    heard = []
    assert run_locally(spec, sites, simulate=False, restarts=1, start_timeout=START, report=heard.append) == 2
    stopped = [report.progress["stopped"] for report in heard if "stopped" in report.progress]
    assert len(stopped) == 1
    assert "'south' within 8 s" in stopped[0]
    same_in_one_process(spec, "diff2")


@pytest.mark.slow
def test_messages_delivered_twice_change_nothing(tmp_path, monkeypatch):
    sites, spec = misbehaving(tmp_path, monkeypatch, "heard_twice"), spec_of("diff2", tmp_path / "run")
    run_locally(spec, sites, simulate=False, restarts=0, start_timeout=START)
    assert "ask" in (sites / "south" / "heard-twice").read_text(encoding="utf-8").split()
    no_answer_was_given_twice(sites)
    same_in_one_process(spec, "diff2")


@pytest.mark.slow
def test_a_job_does_not_begin_with_too_few_sites(tmp_path, monkeypatch):
    """One site's process ends at once: no job is submitted, and nothing is waited for."""
    sites = write_sites(tmp_path / "sites", agreement_of("diff2"))
    started = Processes.start

    def broken(self, name, command, **options):
        return started(self, name, ["false"] if name == "south" else command, **options)

    monkeypatch.setattr(Processes, "start", broken)
    with pytest.raises(JobStopped, match=r"of 3 sites are connected.*ended: south"):
        run_locally(spec_of("diff2", tmp_path / "run"), sites, simulate=False, restarts=0, start_timeout=START)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.slow
def test_a_site_that_refuses_is_not_asked_again(tmp_path):
    sites = write_sites(tmp_path / "sites", agreement_of("diff2"))
    (sites / "east" / "site.toml").write_text('[data]\nfile = "records.npz"\n[policy]\nepsilon = 1.0\n')
    with pytest.raises(SiteRefused, match="'east': the run is seeded"):
        run_locally(spec_of("diff2", tmp_path / "run"), sites, simulate=False, restarts=3, start_timeout=START)
    refusals = [line for line in lines(sites / "east" / "diff2-site" / "ledger.jsonl") if line["kind"] == "refusal"]
    assert len(refusals) == 1


@pytest.mark.parametrize(("cores", "sites", "threads"), [(2, 6, "1"), (16, 3, "5"), (None, 3, "1")])
def test_sites_on_one_machine_share_its_cores(cores, sites, threads, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert local._threads(sites) == {"OMP_NUM_THREADS": threads}
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert local._threads(sites) == {}  # the user's own choice
