"""Start a startup kit: FLARE's own server or client, the client without the commands that can read a site's files.

A FLARE admin may run ``cat``, ``grep`` and the like at sites; a site checks permissions only if the server asks it to.
So a site that does not trust its server must not have these commands at all. Run as a module, this file is FLARE's
client, which then answers only the requests that jobs need.
"""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InvalidArgument

APPS = "nvflare.private.fed.app"
CLIENT = f"{APPS}.client.client_train"
NEEDED = frozenset(
    f"{name}Processor"
    for name in (
        "ClientStatus", "ScopeInfo", "AbortApp", "Deploy", "SysInfo", "ClientInfo", "AbortTask", "StartJob",
        "CheckResource", "CancelResource", "ReportResources", "ReportVersion", "NotifyJobStatus",
    )
)  # fmt: skip


class Kit(NamedTuple):
    """A startup kit, as a party receives it."""

    path: Path
    role: str  # "server", "site" or "admin"
    name: str
    organisation: str


def read_kit(path: Path) -> Kit:
    """Return whose kit this is."""
    startup = path / "startup"
    for role, file in (("server", "fed_server.json"), ("site", "fed_client.json"), ("admin", "fed_admin.json")):
        try:
            fields = json.loads((startup / file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise InvalidArgument(f"{startup / file} is damaged: {error}") from None
        script = startup / "sub_start.sh"
        found = re.search(r"\borg=(\S+)", script.read_text(encoding="utf-8")) if script.exists() else None
        return Kit(path.resolve(), role, _name(role, fields), found.group(1) if found else "")
    raise InvalidArgument(
        f"{path} is not a startup kit: it has no startup/fed_server.json, fed_client.json or fed_admin.json"
    )


def start_command(kit: Kit) -> list[str]:
    """Return the command that starts a server or a site."""
    if kit.role == "admin":
        raise InvalidArgument(
            f"{kit.path} is an admin's kit, which submits jobs: diff2 federate submit JOB --kit {kit.path}"
        )
    common = ["-m", str(kit.path), "-s", f"fed_{'server' if kit.role == 'server' else 'client'}.json"]
    settings = ["--set", "secure_train=true", f"org={kit.organisation}", "config_folder=config"]
    if kit.role == "server":
        return [sys.executable, "-u", "-m", f"{APPS}.server.server_train", *common, *settings]
    return [sys.executable, "-u", "-m", __name__, *common, *settings, f"uid={kit.name}"]


def _name(role: str, fields: dict[str, Any]) -> str:
    if role == "server":
        return str(fields["servers"][0]["admin_server"])
    return str(fields["client"]["fqsn"] if role == "site" else fields["admin"]["username"])


def keep_needed_requests() -> None:
    """Remove every request that jobs do not need from FLARE's client, in this process."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    found = ClientRequestProcessors.request_processors
    found[:] = [processor for processor in found if type(processor).__name__ in NEEDED]


if __name__ == "__main__":
    keep_needed_requests()
    runpy.run_module(CLIENT, run_name="__main__")
