"""A package: what goes to whom, and nothing else; provisioned, it trains on loopback and turns strangers away."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import yaml
from nvflare.lighter.provisioner import Provisioner
from typer.testing import CliRunner

from diff2._files import read_json
from diff2.cli.main import app
from diff2.errors import InvalidArgument
from diff2.federation.flare.follow import JobStopped, submit
from diff2.federation.flare.job import read_job
from diff2.federation.flare.launch import NEEDED, keep_needed_requests, read_kit, start_command
from diff2.federation.flare.package import check_directory, write_package
from diff2.federation.flare.processes import Processes
from diff2.federation.flare.provisioning import Parties, free_ports, harden, provision_locally
from diff2.federation.server import OUTCOME, PROGRESS
from diff2.federation.site.policy import read_site_file
from diff2.privacy import Ledger
from diff2.runfile.reader import read_run_file
from federated import NAMES, lines, write_tables

RUN = """\
[data]
target = "y"
task = "regression"
columns = ["x0", "x1", "x2"]
bounds = { x0 = [0, 5000], x1 = [0, 5000], x2 = [0, 5000], y = [0, 5000] }
[model]
hidden = [4]
[algorithm]
name = "diff2"
rounds = ROUNDS
restart_interval = 2
clip_gradient = 2.0
clip_smoothness = 3.0
[routine]
name = "gradient_descent"
learning_rate = 0.05
[privacy]
epsilon = 2.0
delta = 1e-3
[federation]
sites = ["north", "south", "east"]
timeout = 30
"""
START = 150.0  # seconds until things must be under way: two cores, shared by many
pytestmark = [
    pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning"),
    pytest.mark.filterwarnings("ignore:ssl_context:DeprecationWarning"),  # of a library that FLARE uses
]


def run_file(folder, text=RUN, rounds=2):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.toml"
    path.write_text(text.replace("ROUNDS", str(rounds)), encoding="utf-8")
    return path


def packaged(folder, with_kits=True, rounds=2, ports=None):
    port, admin_port = ports or free_ports(2)
    parties = Parties(NAMES, port=port, admin_port=admin_port)
    run = read_run_file(run_file(folder, rounds=rounds), None)
    return write_package(run, folder / "package", parties, with_kits=with_kits)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return packaged(tmp_path_factory.mktemp("package"))


def test_the_command_writes_one_folder_per_party(tmp_path):
    path, out = run_file(tmp_path), tmp_path / "package"
    command = ["federate", "package", str(path), "--out", str(out), "--server", "fl.example.org"]
    told = CliRunner().invoke(app, [*command, "--json"])
    assert told.exit_code == 0, told.output
    assert set(json.loads(told.output)) == {"server", "admin", *NAMES}
    project = (out / "project.yml").read_text()
    assert all(f"name: {name}" in project for name in ("fl.example.org", *NAMES))
    assert read_job(out / "admin" / "job" / "run").sites == NAMES
    for party in ("server", "admin", *(f"sites/{name}" for name in NAMES)):
        assert "diff2 federate" in (out / party / "README.md").read_text()
        assert (out / party / "run.toml").read_text() == path.read_text()
    for name in NAMES:
        assert read_site_file(out / "sites" / name / "site.toml").policy.epsilon == 2.0
    assert CliRunner().invoke(app, command).exit_code == 1  # it is not empty any more


def test_every_secret_is_in_one_folder(package):
    """A private key is in the folder of its party; the root's key is with whoever provisions."""
    root = package["server"].parent
    keys = {path.read_bytes(): path for path in root.rglob("*.key")}
    assert sorted(str(path.relative_to(root)) for path in keys.values()) == [
        "admin/kit/startup/client.key",
        "server/kit/startup/server.key",
        *(f"sites/{name}/kit/startup/client.key" for name in sorted(NAMES)),
    ]
    for folder in package.values():
        others = [key for key, path in keys.items() if folder not in path.parents]
        assert len(others) == len(NAMES) + 1
        held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert not any(key in held for key in others)
    state = json.loads(next((root / "authority").rglob("cert.json")).read_text())
    assert set(state) == {"root_cert", "root_pri_key"}
    kept = b"".join(path.read_bytes() for path in (root / "authority").rglob("*") if path.is_file())
    assert kept.count(b"BEGIN RSA PRIVATE KEY") == 1
    assert "private key of the root" in (root / "authority" / "README.md").read_text()
    handed_out = [path for folder in package.values() for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in handed_out if path.name == "cert.json"]


def modes(root):
    """The modes of folders, and of files, below and including a folder."""
    found = [root, *root.rglob("*")]
    of = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    return {of[path] for path in found if path.is_dir()}, {of[path] for path in found if path.is_file()}


def test_all_of_it_is_its_owners_alone(tmp_path):
    """Whatever the umask, and from the moment a file is there: nothing is loosened first."""
    before = os.umask(0)
    try:
        root = packaged(tmp_path)["server"].parent
        assert modes(root) == ({0o700}, {0o600, 0o700})
        assert not [path for path in root.rglob("*") if path.stat().st_mode & 0o100 and path.suffix not in ("", ".sh")]
        kits = provision_locally(tmp_path / "local", NAMES)
        assert modes(kits.server.parent.parent) == ({0o700}, {0o600, 0o700})
    finally:
        assert os.umask(before) == 0  # as it was


def test_files_are_created_with_these_modes_and_not_changed_to_them(tmp_path, monkeypatch):
    masks, make = [], Provisioner.provision

    def watch(*arguments):
        masks.append(os.umask(0o077))
        return make(*arguments)

    monkeypatch.setattr(Provisioner, "provision", watch)
    packaged(tmp_path)
    assert masks == [0o077]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A package for requests, the requests of all parties with their keys, and the package that answers them."""
    folder = tmp_path_factory.mktemp("requests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))  # FLARE keeps a record of requests there
        run = requested(folder, Parties(NAMES))
        command = ["federate", "package", str(run.path), "--out", str(folder / "package")]
        told = CliRunner().invoke(app, [*command, "--requests", str(folder / "sent")])
        assert told.exit_code == 0, told.output
    return folder


def requested(folder, parties, rounds=2):
    """Have all parties make their keys and send their requests; return the run."""
    run = read_run_file(run_file(folder, rounds=rounds), None)
    (folder / "sent").mkdir()
    for name, party in write_package(run, folder / "first", parties).items():
        request(party / "participant.yml", folder / "keys" / name)
        made = next((folder / "keys" / name).glob("*.request.zip"))
        shutil.copyfile(made, folder / "sent" / made.name)
    return run


def packaged_for_requests(folder, rounds, ports):
    """Write a package for requests, and make the kit of every party from it, as the party would."""
    parties = Parties(NAMES, port=ports[0], admin_port=ports[1])
    run = requested(folder, parties, rounds)
    folders = write_package(run, folder / "package", parties, requests=folder / "sent")
    for name, party in folders.items():
        own_kit(next(party.glob("*.signed.zip")), folder / "keys" / name, folder / "kits" / name).rename(party / "kit")
    return folders


def own_kit(signed, keys, out):
    """Make a kit as the party's README says; return it."""
    fingerprint = re.search(r"SHA256:[0-9A-F:]+", (signed.parent / "README.md").read_text()).group()
    nvflare("package", signed, "--request-dir", keys, "--fingerprint", fingerprint, "-w", out)
    return out / "diff2" / "prod_00" / signed.name.removesuffix(".signed.zip")


class TestRequests:
    """Keys are made where they are used; the organiser gets requests and returns certificates."""

    def test_no_private_key_but_the_roots_is_in_the_package(self, place):
        held = {path: path.read_bytes() for path in (place / "package").rglob("*") if path.is_file()}
        for path in list(held):
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    held |= {path / name: archive.read(name) for name in archive.namelist()}
        secret = [path.relative_to(place / "package") for path, data in held.items() if b"PRIVATE KEY" in data]
        assert [str(path) for path in secret] == ["authority/rootCA.key"]
        assert len(list((place / "keys").rglob("*.key"))) == len(NAMES) + 2
        assert modes(place / "package") == ({0o700}, {0o600})

    @pytest.mark.parametrize("name", ["server", "north"])
    def test_a_party_makes_its_kit_from_its_key_and_the_answer(self, place, name, monkeypatch):
        monkeypatch.setenv("HOME", str(place))
        party = place / "package" / ("sites/north" if name == "north" else name)
        kit = read_kit(own_kit(next(party.glob("*.signed.zip")), place / "keys" / name, place / "kits" / name))
        assert kit.role == ("site" if name == "north" else name)
        key = next((kit.path / "startup").glob("*.key"))
        assert key.read_bytes() == next((place / "keys" / name).glob("*.key")).read_bytes()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"name": "localhost", "type": "server", "default_host": "localhost"}, "asks for"),
            ({"type": "admin", "role": "lead", "name": "north@diff2.local"}, "asks for"),
            ({"org": "another"}, "asks for"),
            (None, "no request"),
        ],
    )
    def test_a_request_for_anything_else_is_not_signed(self, place, tmp_path, monkeypatch, change, message):
        monkeypatch.setenv("HOME", str(tmp_path))
        shutil.copytree(place / "sent", tmp_path / "sent")
        sent = tmp_path / "sent" / "north.request.zip"
        sent.unlink()
        if change is not None:
            fields = yaml.safe_load((place / "first" / "sites" / "north" / "participant.yml").read_text())
            fields["participants"][0] |= change
            (tmp_path / "participant.yml").write_text(yaml.safe_dump(fields))
            request(tmp_path / "participant.yml", tmp_path / "key")
            next((tmp_path / "key").glob("*.request.zip")).rename(sent)
        run = read_run_file(run_file(tmp_path), None)
        with pytest.raises(InvalidArgument, match=message):
            write_package(run, tmp_path / "package", Parties(NAMES), requests=tmp_path / "sent")
        assert not (tmp_path / "package").exists()

    def test_keys_are_made_here_or_there(self, tmp_path):
        with pytest.raises(InvalidArgument, match="leave one of the two out"):
            write_package(
                read_run_file(run_file(tmp_path), None),
                tmp_path / "out",
                Parties(NAMES),
                with_kits=True,
                requests=tmp_path,
            )


def nvflare(*words):
    """Run FLARE's own command, as a party does."""
    done = subprocess.run([sys.executable, "-m", "nvflare.cli", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def request(participant, folder):
    """``nvflare cert request``, in this process."""
    from nvflare.tool.cert.cert_commands import handle_cert_request

    handle_cert_request(SimpleNamespace(participant=str(participant), output_dir=str(folder)))


def test_no_site_file_is_in_another_folder(package):
    assert [name for name, folder in package.items() if list(folder.rglob("site.toml"))] == list(NAMES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('target = "y"', 'file = "here.csv"\ntarget = "y"'), "describes columns only"),
        (lambda text: text.split("[federation]")[0], "expected either files"),
        (lambda text: text.replace('columns = ["x0", "x1", "x2"]', ""), "columns"),
        (lambda text: text + "[run]\nmetrics_every = 1\n", "metrics_every"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_is_written(change, message, tmp_path):
    path = run_file(tmp_path, change(RUN))
    with pytest.raises(InvalidArgument, match=message):
        write_package(read_run_file(path, None), tmp_path / "package", Parties(NAMES))
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("directory", ["/srv/run", "../run", "a/../../b", ""])
def test_the_run_lives_below_the_servers_kit(directory):
    with pytest.raises(InvalidArgument, match="below the server's kit"):
        check_directory(directory)


def test_a_kit_is_recognised(package, tmp_path):
    found = {name: read_kit(folder / "kit") for name, folder in package.items()}
    assert [found[name][1:] for name in ("server", "admin", "north")] == [
        ("server", "localhost", "diff2"),
        ("admin", "admin@diff2.local", ""),
        ("site", "north", "north"),
    ]
    with pytest.raises(InvalidArgument, match="not a startup kit"):
        read_kit(tmp_path)
    with pytest.raises(InvalidArgument, match="admin"):
        start_command(found["admin"])
    with pytest.raises(InvalidArgument, match="with the admin's kit"):
        submit(package["admin"] / "job" / "run", found["north"])


def test_join_wants_a_site_file_for_a_site_and_none_for_the_server(package):
    run = partial(CliRunner().invoke, app)
    told = run(["federate", "join", str(package["north"] / "kit")])
    assert (told.exit_code, "--site SITE.toml" in told.output) == (1, True)
    site = str(package["north"] / "site.toml")
    told = run(["federate", "join", str(package["server"] / "kit"), "--site", site])
    assert (told.exit_code, "has no records" in told.output) == (1, True)


def test_a_kit_is_hardened_once_and_what_the_site_has_set_stays(tmp_path):
    kit = packaged(tmp_path)["north"] / "kit"
    harden(kit, kit)
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == ["diff2.federation.flare.job.", "nvflare.collab.runtime."]
    assert resources["allow_log_streaming"] is False
    permissions = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
    assert {role: (p["shell_commands"], p["byoc"]) for role, p in permissions.items()} == {"lead": ("none", "none")}
    (kit / "local" / "authorization.json").write_text("{}")
    harden(kit, kit)
    assert (kit / "local" / "authorization.json").read_text() == "{}"


def test_a_site_answers_no_request_that_reads_its_files(monkeypatch):
    """FLARE's own list has such requests; what is left of it does not, and every name we keep is one of FLARE's."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    before = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", list(before))
    keep_needed_requests()
    left = {type(one).__name__ for one in ClientRequestProcessors.request_processors}
    assert left == NEEDED
    taken = {type(one).__name__ for one in before} - left
    assert {"ShellCommandProcessor", "ConfigureSiteLogProcessor", "ConfigureJobLogProcessor"} <= taken


class Deployment:
    """A packaged federation on loopback, every party started from its own folder by ``diff2 federate join``."""

    def __init__(self, folder, processes, rounds, make=packaged):
        self.ports = free_ports(2)
        self.folders, self.processes = make(folder, rounds=rounds, ports=self.ports), processes
        self.run = self.folders["server"] / "kit" / "runs" / "run"
        tables = write_tables(folder / "tables")
        for name in NAMES:
            (tables / name / "records.csv").rename(self.folders[name] / "records.csv")
            approve = [self.folders[name] / "run.toml", "--site", self.folders[name] / "site.toml", "--yes"]
            done = CliRunner().invoke(app, ["federate", "approve", *map(str, approve)])
            assert done.exit_code == 0, done.output
        for name in ("server", *NAMES):
            self.join(name)

    def join(self, name, folder=None, as_name=None):
        folder = folder or self.folders[name]
        site = [] if name == "server" else ["--site", str(folder / "site.toml")]
        command = [sys.executable, "-m", "diff2", "federate", "join", str(folder / "kit"), *site]
        environment = {"OMP_NUM_THREADS": "1"}
        self.processes.start(as_name or name, command, log=folder / "join.log", environment=environment)

    def submit(self, **options):
        kit = read_kit(self.folders["admin"] / "kit")
        return submit(self.folders["admin"] / "job" / "run", kit, start_timeout=START, **options)

    def session(self):
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        kit = read_kit(self.folders["admin"] / "kit")
        return new_secure_session(kit.name, str(kit.path), timeout=30.0)


@pytest.mark.slow
def test_a_provisioned_package_trains_and_turns_strangers_away(tmp_path):
    with Processes() as processes:
        deployment, heard = Deployment(tmp_path / "one", processes, rounds=2), []
        assert deployment.submit(restarts=0, report=heard.append) == 1
        assert read_json(deployment.run / OUTCOME)["state"] == "done"
        assert [entry.round for entry in Ledger.read(deployment.run / "ledger.jsonl").releases] == [1, 2]
        assert heard[-1].progress["round"] == 2
        assert heard[-1].progress["sites"] == dict.fromkeys(NAMES, 2)

        # A kit of another project, for a site of the same name and at the same address: its certificate is not ours.
        other = packaged(tmp_path / "other", ports=deployment.ports)["north"]
        write_tables(tmp_path / "more")
        (tmp_path / "more" / "north" / "records.csv").rename(other / "records.csv")
        session = deployment.session()
        assert {client.name for client in session.get_system_info().client_info} == set(NAMES)
        (other / "kit" / "startup" / "fed_client.json").write_text(
            (other / "kit" / "startup" / "fed_client.json").read_text().replace('"north"', '"stranger"')
        )
        deployment.join("north", folder=other, as_name="stranger")
        log, deadline = other / "join.log", time.monotonic() + 90
        while "certificate" not in log.read_text().lower() and time.monotonic() < deadline:
            time.sleep(1)
        assert "certificate" in log.read_text().lower()  # the two do not accept each other's
        assert {client.name for client in session.get_system_info().client_info} == set(NAMES)
        assert not (other / "diff2-site" / "ledger.jsonl").exists()

        # An admin cannot read a site's files.
        for file in ("local/resources.json", "join.log"):
            assert "class_allow_list" not in str(session.cat_target("north", file=file))
        session.close()


@pytest.mark.slow
def test_a_package_for_requests_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with Processes() as processes:
        deployment = Deployment(tmp_path / "one", processes, rounds=2, make=packaged_for_requests)
        assert deployment.submit(restarts=0) == 1
        assert read_json(deployment.run / OUTCOME)["state"] == "done"
    for line in lines(deployment.folders["north"] / "diff2-site" / "ledger.jsonl")[1:]:
        assert (line["caller"], line["submitter"], len(line["job"])) == ("server", "admin@diff2.local", 36)


@pytest.mark.slow
def test_a_killed_server_is_noticed_at_once(tmp_path):
    with Processes() as processes:
        deployment = Deployment(tmp_path, processes, rounds=4000)

        def report(attempt):
            if attempt.progress.get("round", 0) >= 5:
                root = psutil.Process(processes.pid("server"))
                for process in [*root.children(recursive=True), root]:
                    process.kill()

        with pytest.raises(JobStopped, match="the server cannot be reached any more"):
            deployment.submit(restarts=0, report=report)


@pytest.mark.slow
def test_submit_resumes_with_a_new_job_after_a_site_was_killed(tmp_path):
    rounds, killed = 400, []  # enough to be still running when progress is seen from afar
    with Processes() as processes:
        deployment = Deployment(tmp_path, processes, rounds)

        def report(attempt):
            if attempt.progress.get("round", 0) >= 5 and not killed:
                root = psutil.Process(processes.pid("south"))
                killed.extend([*root.children(recursive=True), root])
                for process in killed:
                    process.kill()
                processes.ended()
                deployment.join("south", as_name="south, again")

        try:
            assert deployment.submit(restarts=4, report=report) > 1
        except JobStopped as error:
            pytest.fail(f"{error}: {(deployment.run / PROGRESS).read_text()}")
        assert killed
        assert read_json(deployment.run / OUTCOME)["state"] == "done"
        entries = Ledger.read(deployment.run / "ledger.jsonl").releases
        assert [entry.round for entry in entries] == list(range(1, rounds + 1))
