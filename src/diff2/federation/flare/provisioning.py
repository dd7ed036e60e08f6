"""Startup kits: certificates by FLARE's provisioning, and the settings that a party should have in its own kit.

What FLARE keeps elsewhere by default (jobs, snapshots: in the temporary folder of the machine) goes to a stated folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .job import CLASSES

ADMIN = "admin@diff2.local"
SERVER = "localhost"  # its name in certificates, and the only address it listens on
ORGANISATION = "diff2"
PROJECT = "diff2"


class Kits(NamedTuple):
    """Where the kits are."""

    server: Path
    admin: Path
    sites: dict[str, Path]


class Parties(NamedTuple):
    """Who takes part, under which names, and where the server is reached."""

    sites: tuple[str, ...]
    server: str = SERVER  # its host name: certificates are for this name, and sites connect to it
    admin: str = ADMIN
    organisations: tuple[str, ...] = ()  # of the sites, in their order; by default each is its own
    organisation: str = ORGANISATION  # of server and admin
    port: int = 8002
    admin_port: int = 8003


def project_of(parties: Parties, name: str = PROJECT) -> dict[str, Any]:
    """Return FLARE's provisioning input: a server, one participant a site, and whoever submits jobs."""
    owners = parties.organisations or parties.sites
    return {
        "api_version": 3,
        "name": name,
        "description": "training with differential privacy over sites that keep their records",
        "participants": [
            {
                "name": parties.server,
                "type": "server",
                "org": parties.organisation,
                "default_host": parties.server,
                "fed_learn_port": parties.port,
                "admin_port": parties.admin_port,
            },
            *({"name": s, "type": "client", "org": _word(o)} for s, o in zip(parties.sites, owners, strict=True)),
            {"name": parties.admin, "type": "admin", "org": parties.organisation, "role": "project_admin"},
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


def provision(workspace: Path, project: dict[str, Any], parties: Parties) -> Kits:
    """Run FLARE's provisioning: certificates and one startup kit a party, and the root's key, all in ``workspace``."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    with contextlib.redirect_stdout(io.StringIO()):
        Provisioner(str(workspace), prepare_builders(project)).provision(prepare_project(project))
    root = workspace / project["name"] / "prod_00"
    return Kits(root / parties.server, root / parties.admin, {site: root / site for site in parties.sites})


def provision_here(workspace: Path, sites: Sequence[str]) -> Kits:
    """Make certificates and startup kits for a server and its sites on this machine."""
    port, admin_port = free_ports(2)
    parties = Parties(tuple(sites), organisations=(ORGANISATION,) * len(sites), port=port, admin_port=admin_port)
    kits = provision(workspace, project_of(parties), parties)
    for kit in (kits.server, *kits.sites.values()):
        harden(kit, workspace)
    return kits


def harden(kit: Path, storage: Path) -> None:
    """Set up what is the party's own in a kit, where it has not done so itself: its folder ``local``.

    Only classes of our jobs may be built, no logs are sent away, FLARE stores its things in ``storage``. Nobody,
    whatever their role, may read a site's files or send it code.
    """
    (kit / "transfer").mkdir(exist_ok=True)
    if not (kit / "local" / "resources.json").exists():
        _set_resources(kit, storage)
    permissions = kit / "local" / "authorization.json"
    if not permissions.exists() and (kit / "startup" / "fed_client.json").exists():
        fields = json.loads(permissions.with_name("authorization.json.default").read_text(encoding="utf-8"))
        allowed = {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
        fields["permissions"] = {"project_admin": {**allowed, "shell_commands": "none", "byoc": "none"}}
        permissions.write_text(json.dumps(fields, indent=2), encoding="utf-8")


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _set_resources(kit: Path, workspace: Path) -> None:
    """Allow the classes of our jobs and no others, send no logs away, keep what FLARE stores in the workspace."""
    fields: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text(encoding="utf-8"))
    fields["class_allow_list"] = list(CLASSES)
    fields["allow_log_streaming"] = False  # FLARE would send a site's errors, with whatever they quote, to the server
    streaming = [component for component in fields["components"] if component["id"] == "site_log_streamer"]
    fields["components"] = [component for component in fields["components"] if component not in streaming]
    if "snapshot_persistor" in fields:
        storage = fields["snapshot_persistor"]["args"]["storage"]["args"]
        storage["root_dir"] = str(workspace / "snapshots")
    for component in fields["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(workspace / "jobs")
    (kit / "local" / "resources.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")


def _word(name: str) -> str:
    """Return a name that FLARE takes for an organisation."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
