"""What a real deployment needs, one folder per party: FLARE's provisioning input, the job, and instructions.

A package is written from the run file alone, without any record or setting of a site. All of it is its owner's alone.
With requests of the parties (``provisioning.py``) the only secret in it is the root key, in ``authority``, which stays
with the organiser; with kits also the private key in each party's kit.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath

from ..._files import owner_only
from ...errors import InvalidArgument
from ...runfile.fit import FitFile
from ...runfile.reader import FederationSettings, RunFile
from ..agreement import AnyAgreement
from ..among_sites import Column
from ..from_run_file import has_data_at_sites, public_agreement
from ..server.job import JobSpec
from .job import write_job
from .provisioning import (
    Parties,
    check_requests,
    participant_description,
    project_description,
    provision,
    sign_requests,
)


@owner_only()
def write_package(
    run: RunFile | FitFile,
    out: Path,
    parties: Parties,
    *,
    directory: str = "runs/run",
    with_kits: bool = False,
    requests: Path | None = None,
) -> dict[str, Path]:
    """Write a package; return the folder of every party.

    Args:
        out: must not exist, or be empty.
        parties: the names; the sites are those of the run file.
        directory: of the run, relative to the server's kit.
        with_kits: run FLARE's provisioning, so that every folder holds a kit with certificates.
        requests: a folder with the requests that all parties have made with their ``participant.yml``; signed, they are
            in the folders of their parties.
    """
    agreement, settings = packageable(run), run.federation or FederationSettings()
    if out.exists() and any(out.iterdir()):
        raise InvalidArgument(f"{out} is not empty; choose another directory for the package")
    if parties.server in parties.sites or parties.admin in parties.sites:
        raise InvalidArgument("server, admin and sites need different names")
    if requests is not None:
        if with_kits:
            raise InvalidArgument(
                "where parties request certificates they make their kits themselves; leave one of the two out"
            )
        check_requests(requests, parties)
    folders = {"server": out / "server", "admin": out / "admin"} | {s: out / "sites" / s for s in parties.sites}
    for folder in folders.values():
        folder.mkdir(parents=True)
        shutil.copyfile(run.path, folder / "run.toml")
        if isinstance(run, FitFile) and run.schema_path is not None:
            shutil.copyfile(run.schema_path, folder / run.schema_path.name)
    spec = JobSpec(agreement, Path(directory), settings.timeout)
    write_job(folders["admin"] / "job", [spec], start_timeout=settings.start_timeout)
    for site in parties.sites:
        (folders[site] / "site.toml").write_text(_site_file(agreement), encoding="utf-8")
    _provision(out, folders, parties, with_kits)
    fingerprint = "" if requests is None else sign_requests(requests, out / "authority", parties, folders)
    _write_readmes(out, folders, parties, directory, with_kits, fingerprint)
    return folders


def packageable(run: RunFile | FitFile) -> AnyAgreement:
    """Return the agreement of a run whose tables are at its sites; refuse any other run."""
    if not has_data_at_sites(run):
        raise InvalidArgument(
            f"{run.path}: [data] names tables on this machine; for a deployment it describes columns only, and every "
            "site's own site.toml says where its table is"
        )
    schema = run.schema_path if isinstance(run, FitFile) else None
    if schema is not None and schema.parent.resolve() != run.path.parent.resolve():
        raise InvalidArgument(f"{run.path}: the schema {schema} goes to all parties; put it beside the run file")
    return public_agreement(run)


def check_directory(directory: str) -> None:
    """Refuse a directory whose files the admin could not read."""
    path = PurePosixPath(directory)
    if path.is_absolute() or ".." in path.parts or not directory.strip():
        raise InvalidArgument(f"expected the run's directory to be a path below the server's kit, got {directory!r}")


def _site_file(agreement: AnyAgreement) -> str:
    columns = (_column(name, agreement.meaning(name)) for name in (*agreement.inputs, agreement.target))
    return _text("site.toml").format(
        columns="\n".join(columns) + "\n",
        epsilon=agreement.privacy.epsilon,
        delta=agreement.privacy.delta,
        algorithm=agreement.method,
        rounds=agreement.rounds,
    )


def _column(name: str, meaning: Column | None) -> str:
    """Return what a column means, as it is written in a site.toml."""
    stated = asdict(replace(meaning or Column(), name=name))
    known = {key: value for key, value in stated.items() if value not in (None, "")}
    return f"{json.dumps(name)} = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in known.items())} }}"


def _provision(out: Path, folders: Mapping[str, Path], parties: Parties, with_kits: bool) -> None:
    """Write FLARE's provisioning input; make the kits and move each to its party, so that only the root key is left."""
    import yaml  # type: ignore[import-untyped]

    project = project_description(parties)
    for name, party in parties.names.items():
        text = yaml.safe_dump(participant_description(parties, party), sort_keys=False)
        (folders[name] / "participant.yml").write_text(text, encoding="utf-8")
    (out / "project.yml").write_text(yaml.safe_dump(project, sort_keys=False), encoding="utf-8")
    if with_kits:
        kits = provision(out / "authority", project, parties)
        for name, kit in {"server": kits.server, "admin": kits.admin, **kits.sites}.items():
            shutil.move(kit, folders[name] / "kit")
        shutil.rmtree(kits.server.parent)


def _write_readmes(
    out: Path, folders: Mapping[str, Path], parties: Parties, directory: str, with_kits: bool, fingerprint: str
) -> None:
    kit = "`kit/`" if with_kits else _text("requested_kit.md" if fingerprint else "request.md").rstrip("\n")
    values = parties._asdict() | {
        "directory": directory,
        "sites": "".join(f"| `sites/{site}/` | {site} |\n" for site in parties.sites),
        "rest": "| `authority/` | nobody: it holds the root's private key, with which anybody could join |\n"
        if with_kits or fingerprint
        else _text("organiser_next.md"),
    }
    for name, folder in {"organiser": out, **folders}.items():
        own = kit.format(name=parties.names.get(name, ""), fingerprint=fingerprint)
        role = name if name in ("organiser", "server", "admin") else "site"
        text = _text(f"{role}.md").format(**values, site=name, kit=own).rstrip("\n")
        (folder / "README.md").write_text(f"{text}\n", encoding="utf-8")


def _text(name: str) -> str:
    """Return a text of this folder, which has places to be filled in."""
    return Path(__file__).with_name(f"package_{name}").read_text(encoding="utf-8")
