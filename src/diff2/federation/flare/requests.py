"""Certificates for keys that were made elsewhere: FLARE's own ``cert init``, ``request``, ``approve`` and ``package``.

Every party makes its key and a request with ``nvflare cert request``, and keeps the key. The organiser signs requests
here. The party makes its kit with ``nvflare package``. So no private key but the root's is ever at the organiser's.
"""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ...errors import InvalidArgument
from .provisioning import AUTHORITY, PROJECT, Parties, participant_description


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
