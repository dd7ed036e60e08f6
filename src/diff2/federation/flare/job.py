"""The transport on NVIDIA FLARE, by its Collab API: a server object that calls one published method of every site.

FLARE carries bytes, authenticates both ends (mutual TLS), and starts one process per site and job. It does not know
what the bytes mean. Jobs hold no code: sites instantiate classes of this file, which is installed with diff2, and their
``class_allow_list`` needs no other class of ours.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.collab.api.facade import Facade as collab
from nvflare.collab.api.proxy_list import ProxyList

from ..._files import read_json, write_json
from ...errors import Diff2Error, InvalidArgument
from ..server.job import JobSpec, read_job_spec, run_job
from ..server.relay import relay_job
from ..site.coordinator import CoordinatorSite
from ..site.policy import read_site_file
from ..wire.messages import refusal
from ..wire.transport import Caller, Replies

LOG = logging.getLogger("diff2.site")
SITE_VARIABLE = "DIFF2_SITE"  # names a site.toml, or a folder with NAME/site.toml
CLASSES = ("diff2.federation.flare.job.", "nvflare.collab.runtime.")  # all that our jobs instantiate
NAME = "run"
THREADS = 8


class FlareTransport:
    """The sites of a FLARE job."""

    def __init__(self, proxies: Iterable[Any]):
        self._proxies = {proxy.name: proxy for proxy in proxies}

    def members(self) -> list[str]:
        return list(self._proxies)

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        asked = list(sites)
        unknown = {site: "not part of this job" for site in asked if site not in self._proxies}
        proxies = [self._proxies[site] for site in asked if site in self._proxies]
        if not proxies:
            return Replies({}, unknown)
        results = ProxyList(proxies)(timeout=timeout).ask(payload)
        failures = {site: str(error)[:500] for site, error in results.failures.items()}
        return Replies(dict(results), {**unknown, **failures})


class FlareServer:
    """The server object of a job."""

    def __init__(self, specs: list[str]):
        """``specs``: what to do, one after the other, as JSON text; FLARE would build objects from nested tables."""
        self.specs = specs

    @collab.main
    def run(self) -> None:
        """Run everything in ``specs`` with the sites of this job."""
        for text in self.specs:
            spec, transport = read_job_spec(text), FlareTransport(collab.clients)
            if spec.agreement.trust.sealed:
                relay_job(spec, transport)
            else:
                run_job(spec, transport)


class FlareSite:
    """The site object of a job: passes bytes from the server to the site, and its answers back."""

    def __init__(self) -> None:
        self._site: CoordinatorSite | None = None

    @collab.publish
    def ask(self, payload: bytes) -> bytes:
        """Answer the server, and nobody else."""
        if collab.caller != "server":
            return refusal("this site answers only the server")
        if self._site is None:
            try:
                self._site = CoordinatorSite(collab.site_name, read_site_file(_site_file(collab.site_name)))
            except (Diff2Error, OSError) as error:
                LOG.error("the site cannot be set up: %s", error)
                return refusal(f"site {collab.site_name!r} is not set up; see its own log")
        return self._site.answer(payload, _caller())


def _caller() -> Caller:
    """Return who asks: FLARE authenticates the party; the job and its submitter are what the server says they are."""
    context = collab.fl_ctx
    meta = context.get_prop(FLContextKey.JOB_META) or {}
    found = (collab.caller, context.get_job_id(""), meta.get(JobMetaKey.SUBMITTER_NAME.value, ""))
    return Caller(*(str(part)[:200] for part in found))


def write_job(folder: Path, specs: Sequence[JobSpec], *, start_timeout: float) -> Path:
    """Write the folder of a FLARE job, for specs with the same sites, and return it: a few small files, no code."""
    first, texts, job = specs[0], [spec.to_text() for spec in specs], folder / NAME
    meta = {
        "name": NAME,
        "resource_spec": {},
        "min_clients": first.required_sites,
        "deploy_map": {"app": ["@ALL"]},
        **({"mandatory_clients": list(first.sites)} if first.required_sites == len(first.sites) else {}),
    }
    controller = {"server_obj_id": "_server", "collab_obj_ids": [], "sync_task_timeout": start_timeout}
    server = {
        "format_version": 2,
        "workflows": [_component("controller", "nvflare.collab.runtime.controller.CollabController", controller)],
        "components": [_component("_server", "diff2.federation.flare.job.FlareServer", {"specs": texts})],
    }
    executor = {"client_obj_id": "_client", "collab_obj_ids": [], "max_call_threads": THREADS}
    path = "nvflare.collab.runtime.executor.CollabExecutor"
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": path, "args": executor}}],
        "components": [_component("_client", "diff2.federation.flare.job.FlareSite", {})],
    }
    config = job / "app" / "config"
    config.mkdir(parents=True)
    filters: dict[str, Sequence[Any]] = {"task_data_filters": [], "task_result_filters": []}
    write_json(job / "meta.json", meta)
    write_json(config / "config_fed_server.json", {**server, **filters})
    write_json(config / "config_fed_client.json", {**client, **filters})
    return job


def read_job(job: Path) -> JobSpec:
    """Return the first spec in the folder of a job."""
    path = job / "app" / "config" / "config_fed_server.json"
    if not path.exists():
        raise InvalidArgument(f"{job} is not a job of ours: {path} does not exist")
    try:
        return read_job_spec((read_json(path) or {})["components"][0]["args"]["specs"][0])
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidArgument(f"{path} is damaged ({error!r})") from None


def _component(name: str, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "path": path, "args": arguments}


def _site_file(name: str) -> Path:
    """Return the path of the site.toml: from DIFF2_SITE, or in the folder ``local`` of the site's FLARE kit."""
    named = os.environ.get(SITE_VARIABLE)
    if named is None:
        return Path(collab.workspace.get_site_config_dir()) / "site.toml"
    place = Path(named)
    return place / name / "site.toml" if place.is_dir() else place
