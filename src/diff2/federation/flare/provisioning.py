"""Provisioning: startup kits with certificates, made by FLARE, and secure settings for each party's own kit.

All of it is its owner's alone (0700, 0600). What is kept to admit parties later holds the root's private key and no
other. FLARE's jobs and snapshots, by default in the temporary folder of the machine, go to a given folder.

Or every party makes its key and a request with ``nvflare cert request``, and keeps the key. The organiser signs
requests here. The party makes its kit with ``nvflare package``. So no private key but the root's is ever at the
organiser's.
"""

import contextlib
import io
import json
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import owner_only, write_json
from ...errors import InvalidArgument
from .job import CLASSES

ADMIN = "admin@diff2.local"
SERVER = "localhost"  # the name in its certificate, and the only address it listens on
ORGANISATION = "diff2"  # of server and admin; each site is its own
PROJECT = "diff2"
ROLE = "lead"  # of the admin: may submit jobs and follow them
AUTHORITY = """\
# The authority of this federation

This folder holds the private key of the root certificate (`{key}`), and no other private key.
Whoever has it can admit servers, sites and admins. It goes to nobody. Keep it off the machines of the federation, and
delete it if nobody is to be admitted later.
"""


class Kits(NamedTuple):
    """The folders of the startup kits."""

    server: Path
    admin: Path
    sites: dict[str, Path]


class Parties(NamedTuple):
    """Who takes part, under which names, and the address of the server."""

    sites: tuple[str, ...]
    server: str = SERVER  # its host name: in its certificate, and where sites connect to
    admin: str = ADMIN
    port: int = 8002
    admin_port: int = 8003

    @property
    def names(self) -> dict[str, str]:
        """From the name of a party's folder to its name in certificates."""
        return {"server": self.server, "admin": self.admin, **{site: site for site in self.sites}}


def project_description(parties: Parties) -> dict[str, Any]:
    """Return FLARE's provisioning input: a server, one participant per site, and an admin, who submits jobs."""
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "training with differential privacy over sites that keep their records",
        "participants": [
            {
                "name": parties.server,
                "type": "server",
                "org": ORGANISATION,
                "default_host": parties.server,
                "fed_learn_port": parties.port,
                "admin_port": parties.admin_port,
            },
            *({"name": site, "type": "client", "org": re.sub(r"[^A-Za-z0-9_]", "_", site)} for site in parties.sites),
            {"name": parties.admin, "type": "admin", "org": ORGANISATION, "role": ROLE},
        ],
        "builders": [
            {
                "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }


def participant_description(parties: Parties, name: str) -> dict[str, Any]:
    """Return the input of ``nvflare cert request`` for one party."""
    project = project_description(parties)
    return {"name": project["name"], "participants": [one for one in project["participants"] if one["name"] == name]}


def provision(workspace: Path, project: dict[str, Any], parties: Parties) -> Kits:
    """Run FLARE's provisioning: one startup kit per party, and the root key, all in ``workspace``.

    FLARE would keep a copy of every party's private key beside the root's.
    """
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    root, state = workspace / project["name"] / "prod_00", workspace / project["name"] / "state" / "cert.json"
    with contextlib.redirect_stdout(io.StringIO()), owner_only():
        workspace.mkdir(parents=True, exist_ok=True)
        Provisioner(str(workspace), prepare_builders(project)).provision(prepare_project(project))
        kept = {
            name: text
            for name, text in json.loads(state.read_text(encoding="utf-8")).items()
            if name.startswith("root_")
        }
        write_json(state, kept)
        (workspace / "README.md").write_text(AUTHORITY.format(key=state.relative_to(workspace)), encoding="utf-8")
    for script in root.rglob("*.sh"):
        script.chmod(0o700)  # FLARE lets everybody execute them
    return Kits(root / parties.server, root / parties.admin, {site: root / site for site in parties.sites})


def provision_locally(workspace: Path, sites: Sequence[str]) -> Kits:
    """Make startup kits for a server and its sites on this machine."""
    port, admin_port = free_ports(2)
    parties = Parties(tuple(sites), port=port, admin_port=admin_port)
    kits = provision(workspace, project_description(parties), parties)
    for kit in (kits.server, *kits.sites.values()):
        harden(kit, workspace)
    return kits


@owner_only()
def harden(kit: Path, storage: Path) -> None:
    """Write secure settings to a kit's folder ``local``, unless the party has written its own.

    Only the classes of our jobs may be instantiated, no logs are streamed, and FLARE's files go to ``storage``. Nobody,
    whatever their role, may read a site's files or send it code.
    """
    (kit / "transfer").mkdir(exist_ok=True)
    if not (kit / "local" / "resources.json").exists():
        _set_resources(kit, storage)
    permissions = kit / "local" / "authorization.json"
    if not permissions.exists() and (kit / "startup" / "fed_client.json").exists():
        fields = json.loads(permissions.with_name("authorization.json.default").read_text(encoding="utf-8"))
        allowed = {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
        fields["permissions"] = {ROLE: {**allowed, "shell_commands": "none", "byoc": "none"}}
        write_json(permissions, fields)


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _set_resources(kit: Path, storage: Path) -> None:
    fields: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text(encoding="utf-8"))
    fields["class_allow_list"] = list(CLASSES)
    fields["allow_log_streaming"] = False  # FLARE would send a site's errors, which may quote records, to the server
    fields["components"] = [component for component in fields["components"] if component["id"] != "site_log_streamer"]
    if "snapshot_persistor" in fields:
        fields["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in fields["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    write_json(kit / "local" / "resources.json", fields)


def check_requests(requests: Path, parties: Parties) -> None:
    """Refuse unless every party has sent a request, for what that party is: FLARE signs whatever a request says."""
    for party in parties.names.values():
        wanted, path = participant_description(parties, party), _request(requests, party)
        expected = {"project": wanted["name"], **_identity(wanted["participants"][0])}
        try:
            with zipfile.ZipFile(path) as archive:
                asked = json.loads(archive.read("request.json"))
            found = {name: asked.get(name) for name in expected}
        except FileNotFoundError:
            raise InvalidArgument(f"no request of {party!r} at {path}; it makes one with its participant.yml") from None
        except (zipfile.BadZipFile, KeyError, ValueError, AttributeError, OSError) as error:
            raise InvalidArgument(f"{path} is not a request made by 'nvflare cert request' ({error!r})") from None
        if found != expected:
            raise InvalidArgument(f"{path} asks for {found}, but {party!r} is {expected}; ask its sender")


def sign_requests(requests: Path, authority: Path, parties: Parties, folders: Mapping[str, Path]) -> str:
    """Make a root certificate in ``authority``, sign all requests with it, and put each into its party's folder.

    Returns the fingerprint of the root certificate, which parties compare.
    """
    authority.mkdir()
    profile = authority / "profile.yml"
    server = {"host": parties.server, "fed_learn_port": parties.port, "admin_port": parties.admin_port}
    fields = {"name": PROJECT, "scheme": "grpc", "connection_security": "mtls", "server": server}
    profile.write_text(json.dumps(fields) + "\n", encoding="utf-8")  # JSON is YAML
    (authority / "README.md").write_text(AUTHORITY.format(key="rootCA.key"), encoding="utf-8")
    told = _nvflare("cert", "init", "--profile", profile, "-o", authority)
    for name, party in parties.names.items():
        signed = folders[name] / f"{party}.signed.zip"
        _nvflare("cert", "approve", _request(requests, party), "-c", authority, "--profile", profile, "--out", signed)
    (authority / "rootCA.pem").chmod(0o600)  # FLARE lets everybody read it
    return re.search(r"SHA256:[0-9A-F:]+", told).group()  # type: ignore[union-attr]


def _request(requests: Path, party: str) -> Path:
    return requests / f"{party}.request.zip"


def _identity(participant: Mapping[str, str]) -> dict[str, str]:
    """Return what FLARE writes into the request of a participant."""
    kind = {"client": "site", "server": "server", "admin": "user"}[participant["type"]]
    return {
        "name": participant["name"],
        "org": participant["org"],
        "kind": kind,
        "cert_type": participant.get("role", participant["type"]),
    }


def _nvflare(*words: object) -> str:
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise InvalidArgument(f"nvflare {' '.join(map(str, words[:2]))} failed: {(done.stdout + done.stderr).strip()}")
    return done.stdout
