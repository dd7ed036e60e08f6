"""Startup kits for a federation on this machine: certificates by FLARE's provisioning, everything on 127.0.0.1.

What FLARE keeps elsewhere by default (jobs, snapshots: in the temporary folder of the machine) goes to the workspace.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .flare import CLASSES

ADMIN = "admin@diff2.local"
SERVER = "localhost"  # its name in certificates, and the only address it listens on
ORGANISATION = "diff2"


class Kits(NamedTuple):
    """Where the kits are."""

    server: Path
    admin: Path
    sites: dict[str, Path]


def provision_here(workspace: Path, sites: Sequence[str]) -> Kits:
    """Make certificates and startup kits for a server and its sites on this machine."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    service, admin = free_ports(2)
    project = {
        "api_version": 3,
        "name": "diff2",
        "description": "a federation on one machine",
        "participants": [
            {
                "name": SERVER,
                "type": "server",
                "org": ORGANISATION,
                "default_host": SERVER,
                "fed_learn_port": service,
                "admin_port": admin,
            },
            *({"name": site, "type": "client", "org": ORGANISATION} for site in sites),
            {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"},
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
    with contextlib.redirect_stdout(io.StringIO()):
        Provisioner(str(workspace), prepare_builders(project)).provision(prepare_project(project))
    root = workspace / "diff2" / "prod_00"
    kits = Kits(root / SERVER, root / ADMIN, {site: root / site for site in sites})
    for kit in (kits.server, *kits.sites.values()):
        (kit / "transfer").mkdir(exist_ok=True)
        _set_resources(kit, workspace)
    return kits


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
