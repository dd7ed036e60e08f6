"""What the header of a ledger says about a plan, and the way back. Nothing here needs PyTorch or the records."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from .._files import plain
from ..algorithms import ALGORITHMS, Algorithm
from ..algorithms.named import named, without_none
from ..errors import Diff2Error, InvalidArgument, LedgerError, WeakDeltaWarning, WeakEpsilonWarning
from ..privacy import Budget, Release
from ..privacy.calibration import CLOSE
from ..privacy.composition import exposure_of
from ..privacy.release import FULL
from ..privacy.trust import Trust, honest_among
from ..questions import Protection
from ..routines import TorchOptimizer
from .plan import Plan, plan

DECIDES = (
    "algorithm, budget, accounting, adjacency, unit, client_sizes, weighting, clients_per_round, client_order, "
    "opening_share and trust"
)


def described(noise: Plan, trust: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the part of a ledger's header that follows from a plan, in plain values.

    Args:
        trust: who adds the noise, where that is not whoever runs this.
    """
    population, releases = noise.population, list(with_parties(noise, trust))
    found: dict[str, Any] = plain(
        {
            "adjacency": population.adjacency,
            "unit": population.unit,
            "client_sizes": population.sizes,
            "weighting": population.weighting,
            "clients_per_round": population.clients_per_round,
            "client_order": population.client_order,
            "accounting": noise.accounting,
            "budget": {"epsilon": noise.budget.epsilon, "delta": noise.budget.delta},
            "algorithm": noise.algorithm,
            "opening_share": noise.opening_share,
            "trust": trust,
            "multipliers": noise.multipliers,
            "planned": {"releases": len(releases), "exposure": exposure_of(releases)},
        }
    )
    return found


def with_parties(noise: Plan, trust: Mapping[str, Any] | None) -> Iterator[Release]:
    """Yield the planned releases, each with the number of parties whose noise it counts on."""
    if trust is None:
        yield from noise.releases
        return
    population, sites = noise.population, len(noise.population.sizes)
    asked: dict[tuple[int, str, int], int] = {}
    for release in noise.releases:
        if release.label not in asked:
            for question in noise.algorithm.declared(release.round, population):
                clients = question.batch.clients or population.participants(release.round)
                asked[release.round, question.purpose, question.step] = len(clients)
        yield release._replace(parties=honest_among(trust["min_honest_sites"], sites, asked[release.label]))


def read_plan(where: str, header: Mapping[str, Any]) -> Plan | None:
    """Return the plan that a header describes, after comparing all that follows from it.

    None where it cannot be computed: of an algorithm that is not installed, or one from elsewhere that cannot be built
    from plain values.

    Args:
        where: file and line, for messages.
    """
    kind = ALGORITHMS.get(header["algorithm"]["name"])
    if kind is None:
        return None
    try:
        with warnings.catch_warnings():
            for category in (WeakDeltaWarning, WeakEpsilonWarning):
                warnings.simplefilter("ignore", category)
            noise = _plan(header)
            expected = described(noise, trust_in(header, len(noise.population.sizes)))
    except (Diff2Error, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        if not kind.__module__.startswith("diff2."):
            return None
        raise LedgerError(f"{where}: the header describes no run: {error!r}; look at {DECIDES}") from None
    require_same(where, {**header, "algorithm": _tensorless(header["algorithm"])}, expected)
    return noise


def require_same(where: str, header: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse a header that says something else; name the field."""
    for name, value in expected.items():
        if not _alike(header.get(name), value):
            raise LedgerError(
                f"{where}: {name} is {header.get(name)!r}, and should be {value!r}, which follows from {DECIDES}"
            )


def _plan(header: Mapping[str, Any]) -> Plan:
    table = header["algorithm"]
    algorithm: Algorithm = named("algorithm", _tensorless(without_none(table)), ALGORITHMS)
    epsilon, delta = header["budget"]["epsilon"], header["budget"]["delta"]
    if set(header["budget"]) != {"epsilon", "delta"}:
        raise InvalidArgument(f"expected budget to have epsilon and delta, got budget={header['budget']!r}")
    budget = Budget(float(epsilon) if epsilon == "inf" else epsilon, delta)
    protection = Protection(
        *(header[name] for name in ("unit", "weighting", "clients_per_round", "client_order", "accounting"))
    )
    sizes = header["client_sizes"]
    if not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        raise InvalidArgument(f"expected client_sizes to be a list of whole numbers, got {sizes!r}")
    rows = [row for rows in header["planned"]["exposure"] for row in rows]
    if not budget.private or all(row["sampling"] == FULL for row in rows):
        return plan(algorithm, budget, sizes, protection, opening_share=header["opening_share"])
    # Calibration would take seconds. That these multipliers use up the budget, and no more, is as good a check.
    known = {str(purpose): float(value) for purpose, value in header["multipliers"].items()}
    found = plan(algorithm, budget, sizes, protection, opening_share=header["opening_share"], multipliers=known)
    least = 0.0 if found.accounting == "paper" else budget.epsilon * (1 - 2 * CLOSE)
    if not least <= found.epsilon <= budget.epsilon * (1 + 1e-9):
        raise InvalidArgument(f"multipliers={known!r} cost {found.epsilon!r}, and budget={header['budget']!r}")
    return found


def trust_in(header: Mapping[str, Any], sites: int) -> Mapping[str, Any] | None:
    """Return who adds the noise, as a header says it of this many sites; refuse what no run writes."""
    trust: Mapping[str, Any] | None = header["trust"]
    if trust is not None:
        Trust(trust["noise"], trust["min_honest_sites"], trust["secure_aggregation"]).honest_of(sites)
        if trust["sites"] != sites or trust["noise"] != "sites" or len(trust) != 4:
            raise InvalidArgument(f"trust={trust!r} is not that of {sites} sites that add noise")
    return trust


def _tensorless(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with another routine for one that would load PyTorch and asks for nothing."""
    if table.get("name") == TorchOptimizer.name:
        return {"name": "gradient_descent", "learning_rate": 1.0, "schedule": "constant"}
    return {key: _tensorless(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _alike(one: Any, other: Any) -> bool:
    """Whether two plain values are the same, numbers up to the rounding of another machine."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-9 * abs(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
