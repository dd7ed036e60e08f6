"""The transport on NVIDIA FLARE, by its Collab API: a server object that calls one published method of every site.

FLARE carries bytes, authenticates both ends (mutual TLS), and starts one process a site and a job. What the bytes mean
is none of its business. Jobs hold no code: sites build objects of this file, which is installed with diff2, and their
``class_allow_list`` need name nothing else of ours.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nvflare.collab.api.facade import Facade as collab
from nvflare.collab.api.proxy_list import ProxyList

from ...errors import Diff2Error
from ..sealed.relay import LeadingSite, carry_out_through_lead
from ..server.order import Order, carry_out, read_order
from ..site.policy import read_site_file
from ..wire.messages import refusal
from ..wire.transport import Replies

LOG = logging.getLogger("diff2.site")
SITE_VARIABLE = "DIFF2_SITE"  # names a site.toml, or a folder with NAME/site.toml
CLASSES = ("diff2.federation.flare.job.", "nvflare.collab.runtime.")  # all that a job of ours builds
THREADS = 8


class FlareTransport:
    """The sites of the FLARE job that this server object belongs to."""

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

    def call(self, site: str, payload: bytes, timeout: float) -> Replies:
        return self.broadcast(payload, [site], timeout)


class FlareServer:
    """The server object of a job."""

    def __init__(self, orders: list[str]):
        """``orders``: what to do, one after the other, as JSON text; FLARE would build objects from nested tables."""
        self.orders = orders

    @collab.main
    def run(self) -> None:
        """Carry out the orders with the sites of this job."""
        for text in self.orders:
            order, transport = read_order(text), FlareTransport(collab.clients)
            if order.agreement.trust.sealed:
                carry_out_through_lead(order, transport)
            else:
                carry_out(order, transport)


class FlareSite:
    """The site object of a job: hands bytes from the server to the site, and its answers back."""

    def __init__(self) -> None:
        self._site: LeadingSite | None = None

    @collab.publish
    def ask(self, payload: bytes) -> bytes:
        """Answer the server; nobody else."""
        if collab.caller != "server":
            return refusal("this site answers the server only")
        if self._site is None:
            try:
                self._site = LeadingSite(collab.site_name, read_site_file(_site_file(collab.site_name)))
            except Diff2Error as error:
                LOG.error("the site cannot be set up: %s", error)
                return refusal(f"site {collab.site_name!r} is not set up; its own log says why")
        return self._site.answer(payload)


def write_job(folder: Path, name: str, orders: Sequence[Order], *, start_timeout: float) -> Path:
    """Write the folder of a FLARE job for orders to the same sites, and return it: a few small files, no code."""
    order, texts = orders[0], [order.to_text() for order in orders]
    least = len(order.sites) if order.minimum_sites is None else order.minimum_sites
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": least,
        "deploy_map": {"app": ["@ALL"]},
        **({"mandatory_clients": list(order.sites)} if least == len(order.sites) else {}),
    }
    controller = {"server_obj_id": "_server", "collab_obj_ids": [], "sync_task_timeout": start_timeout}
    server = {
        "format_version": 2,
        "workflows": [_component("controller", "nvflare.collab.runtime.controller.CollabController", controller)],
        "components": [_component("_server", "diff2.federation.flare.job.FlareServer", {"orders": texts})],
    }
    executor = {"client_obj_id": "_client", "collab_obj_ids": [], "max_call_threads": THREADS}
    path = "nvflare.collab.runtime.executor.CollabExecutor"
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": path, "args": executor}}],
        "components": [_component("_client", "diff2.federation.flare.job.FlareSite", {})],
    }
    config = folder / name / "app" / "config"
    config.mkdir(parents=True)
    filters: dict[str, Sequence[Any]] = {"task_data_filters": [], "task_result_filters": []}
    _write(folder / name / "meta.json", meta)
    _write(config / "config_fed_server.json", {**server, **filters})
    _write(config / "config_fed_client.json", {**client, **filters})
    return folder / name


def _component(name: str, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "path": path, "args": arguments}


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _site_file(name: str) -> Path:
    """Return where the site.toml is: where DIFF2_SITE says, or in the folder ``local`` of the site's FLARE kit."""
    named = os.environ.get(SITE_VARIABLE)
    if named is None:
        return Path(collab.workspace.get_site_config_dir()) / "site.toml"
    place = Path(named)
    return place / name / "site.toml" if place.is_dir() else place
