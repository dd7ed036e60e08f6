"""What a real deployment needs, one folder a party: FLARE's provisioning input, the job, and who does what.

Records and the settings of a site never come near this: a package is written from the run file alone. What is secret
in it, once it is provisioned, is the private key in each party's kit, and the root's key in ``authority``, which stays
with whoever provisions.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import InvalidArgument
from ...runfile.reader import FederationSettings, RunFile
from ..agreement import Agreement
from ..from_run_file import agreement_at_sites, is_elsewhere
from ..server.order import Order
from .job import write_job
from .kits import Kits, Parties, project_of, provision

JOB = "run"
POLICY = """\
# What stays at this site. Only this site reads this file: nobody else needs to see it.
[data]
file = "records.csv"             # CSV, CSV.gz, Parquet, .npz; or entry_point = "module:function"
{columns}
[policy]
epsilon = {epsilon!r}                    # the largest sum over all runs this site ever takes part in
delta = {delta!r}
algorithms = ["{algorithm}"]
# smallest_size = 500            # take part only with at least this many records
# reported_size = 1200           # train on the first 1200 records, and report this number
# require_own_noise = true       # take part only where the sites add the noise themselves

[site]
directory = "diff2-site"         # its ledger, site.log, and keys of unfinished runs
"""


def write_package(
    run: RunFile, out: Path, parties: Parties, *, directory: str = "runs/run", with_kits: bool = False
) -> dict[str, Path]:
    """Write a package; return the folder of every party.

    Args:
        out: must not exist, or be empty.
        parties: the names; the sites are those of the run file.
        directory: where the run lives on the server; relative to its kit.
        with_kits: run FLARE's provisioning, so that every folder holds a kit with certificates.
    """
    agreement, settings = packable(run), run.federation or FederationSettings()
    if out.exists() and any(out.iterdir()):
        raise InvalidArgument(f"{out} is not empty; choose another directory for the package")
    if parties.server in parties.sites or parties.admin in parties.sites:
        raise InvalidArgument("server, admin and sites need different names")
    folders = {"server": out / "server", "admin": out / "admin"} | {s: out / "sites" / s for s in parties.sites}
    for folder in folders.values():
        folder.mkdir(parents=True)
        shutil.copyfile(run.path, folder / "run.toml")
    order = Order(agreement, parties.sites, Path(directory), settings.timeout, settings.minimum_sites)
    write_job(folders["admin"] / "job", JOB, [order], start_timeout=settings.start_timeout)
    for site in parties.sites:
        (folders[site] / "site.toml").write_text(_site_file(agreement), encoding="utf-8")
    project = project_of(parties)
    _write_project(out / "project.yml", project)
    if with_kits:
        _hand_out(provision(out / "authority", project, parties), folders)
    _write_readmes(out, folders, parties, directory, with_kits)
    return folders


def packable(run: RunFile) -> Agreement:
    """Return the agreement of a run whose tables are at its sites; refuse any other."""
    if not is_elsewhere(run):
        raise InvalidArgument(
            f"{run.path}: [data] names tables on this machine; for a deployment it describes columns only, and every "
            "site's own site.toml says where its table is"
        )
    if run.federation is None or not run.federation.sites:
        raise InvalidArgument(f"{run.path}: [federation] needs the key 'sites'; add a line: sites = [...]")
    if run.run.metrics_every is not None:
        raise InvalidArgument("metrics_every computes exact values from all records; at sites that is not possible")
    return agreement_at_sites(run)


def _site_file(agreement: Agreement) -> str:
    names = [*agreement.encoding.inputs, agreement.encoding.target]
    mapping = ", ".join(f'{name} = "{name}"' for name in names if name.isidentifier())
    return POLICY.format(
        columns=f"# columns = {{ {mapping} }}    # agreed name = name here, where they differ",
        epsilon=agreement.privacy.epsilon,
        delta=agreement.privacy.delta,
        algorithm=agreement.algorithm.name,
    )


def _write_project(path: Path, project: Mapping[str, Any]) -> None:
    import yaml  # type: ignore[import-untyped]

    path.write_text(yaml.safe_dump(dict(project), sort_keys=False), encoding="utf-8")


def _hand_out(kits: Kits, folders: Mapping[str, Path]) -> None:
    """Move each kit to the folder of its party; what is left is the root's key and belongs to whoever provisions."""
    for name, kit in {"server": kits.server, "admin": kits.admin, **kits.sites}.items():
        shutil.move(kit, folders[name] / "kit")
    shutil.rmtree(kits.server.parent)


def _write_readmes(out: Path, folders: Mapping[str, Path], parties: Parties, directory: str, with_kits: bool) -> None:
    kit = "`kit/`" if with_kits else "the kit that FLARE's provisioning makes for you (put it here as `kit/`)"
    texts = {
        "server": f"""\
# The server: {parties.server}

Install `pip install 'diff2[federation]'`, the same version as everybody. You have {kit}. Open port {parties.port} to
the sites and port {parties.admin_port} to the admin. Start it, and leave it running:

    diff2 federate join kit

The run lives in `kit/{directory}`: ledger, checkpoint, model. `diff2 federate status kit/{directory}` says how far it
is. Back it up: a run whose ledger or checkpoint is lost cannot be continued.
""",
        "admin": f"""\
# The admin: {parties.admin}

You have `job/{JOB}`, which holds no code, and {kit}. Once server and sites are there:

    diff2 federate submit job/{JOB} --kit kit

Where a job stops, because a process died or a site did not answer, the run is taken up again from its checkpoint as a
new job, as often as `--restarts` says.
""",
    }
    texts |= {
        site: f"""\
# The site: {site}

Install `pip install 'diff2[federation]'`, the same version as everybody. You have `run.toml`, what is to be trained and
under which guarantee; `site.toml`, **yours to edit**: where your table is, and what you agree to; and {kit}.
Nobody else gets your `site.toml`, your key (`kit/startup/client.key`), or a record.

    diff2 federate join kit --site site.toml
    diff2 federate ledger site.toml

The kit connects to {parties.server}:{parties.port}; no port of yours need be open. Use `join` and not the kit's
`startup/start.sh`: FLARE's client answers an admin's `cat`, `ls` and `grep` otherwise, with whatever files it may read.
"""
        for site in parties.sites
    }
    for name, text in texts.items():
        (folders[name] / "README.md").write_text(text, encoding="utf-8")
    whom = "".join(f"| `sites/{site}/` | {site} |\n" for site in parties.sites)
    own = "| `authority/` | nobody: it holds the root's private key, with which anybody could join |\n"
    rest = (
        own if with_kits else "\nKits: `nvflare provision -p project.yml -w authority`, then each kit to its party.\n"
    )
    (out / "README.md").write_text(
        "# What goes to whom\n\nEach party gets its own folder, over a channel that you trust with its private key, "
        "and nobody else's.\n\n| folder | goes to |\n| --- | --- |\n| `server/` | "
        f"{parties.server} |\n| `admin/` | {parties.admin} |\n{whom}| `project.yml` | stays with you |\n{rest}",
        encoding="utf-8",
    )


def check_directory(directory: str) -> None:
    """Refuse a directory that an admin could not follow the run in."""
    path = PurePosixPath(directory)
    if path.is_absolute() or ".." in path.parts or not directory.strip():
        raise InvalidArgument(f"expected the run's directory to be a path below the server's kit, got {directory!r}")
