"""The opening of a run at a site: what the server states about it is checked before anything is prepared."""

import re
from typing import Any

from ...errors import Diff2Error
from ...planning import Plan
from ...privacy import NoiseSource
from ..agreement import AnyAgreement
from ..faults import BadMessage, Refusal
from ..fit_agreement import FitAgreement, FitPlan
from ..own_noise.noise import check_trust
from ..wire.messages import Message
from ..wire.request import whole_number
from .open_fit import OpenFit
from .open_run import OpenRun
from .policy import Policy

RUN_ID = re.compile(r"[0-9a-f]{32}")


def stated(
    message: Message, agreement: AnyAgreement, name: str, policy: Policy, *, by_name: bool
) -> tuple[str, tuple[str, ...], Plan | FitPlan]:
    """Return the run, its sites and its plan as the server states them; refuse what the site cannot accept.

    Args:
        name: of the site that is asked.
        by_name: whether somebody at the site approved the very agreement.
    """
    run, sites, sizes = (message.fields.get(field) for field in ("run", "sites", "sizes"))
    if not isinstance(run, str) or not RUN_ID.fullmatch(run):
        raise BadMessage("expected run to be 32 hexadecimal digits")
    if not isinstance(sites, list) or not isinstance(sizes, list) or len(sites) != len(sizes):
        raise BadMessage("expected sites and sizes to be lists of the same length")
    if sites.count(name) != 1:
        raise Refusal("this site is not among the sites of the run")
    if sites != [site for site in agreement.sites if site in sites] or len(sites) < agreement.required_sites:
        raise Refusal("the sites of the run are not those of the agreement, in its order")
    counts = [whole_number({"size": size}, "size") for size in sizes]
    try:
        check_trust(agreement, len(sites))
        plan = agreement.plan(counts)
    except Diff2Error as error:
        raise Refusal(f"the agreement cannot be accepted: {error}") from None
    policy.check_sites(agreement, plan, name, sites, by_name=by_name)
    return run, tuple(sites), plan


def opened_run(
    agreement: AnyAgreement, plan: Any, client: int, records: Any, source: NoiseSource, counts: Any
) -> OpenRun | OpenFit:
    """Return what the site prepares; ``counts``: of a fit, how many records each site has, as the server states."""
    if isinstance(agreement, FitAgreement):
        return OpenFit(agreement, plan, client, records, source, counts)
    return OpenRun(agreement, plan, client, records, source)
