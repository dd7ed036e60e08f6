"""What it costs not to trust the server: ``python -m benchmarks.sealed``.

A round of DIFF2 with 3 and with 10 sites of 200 records, all in this process: the server adds the noise; the sites do;
the sites do and the server adds ciphertexts. In turns, medians. In one process the work of the sites is done one after
the other: with a machine for each, what they compute takes a P-th of that. Bytes are those of one site in one round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import diff2
from diff2.cohorts.clients import Client
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.agreement import Agreement
from diff2.federation.sealed.cohort import AddingServer
from diff2.federation.sealed.keys import SiteKeys
from diff2.federation.server.run import prepare_at_sites
from diff2.federation.site.policy import Policy
from diff2.federation.site.records import SiteRecords
from diff2.federation.site.site import Site
from diff2.federation.wire.transport import InProcessTransport, Replies
from diff2.privacy.trust import Trust
from diff2.runfile.reader import ModelSettings, PrivacySettings, RunSettings

INPUTS, RECORDS = 8, 200
HIDDEN = {101: 10, 10_001: 1_000, 100_001: 10_000}
TRUSTS = {
    "server adds noise": Trust(),
    "sites add noise": Trust("sites"),
    "sealed": Trust("sites", secure_aggregation="tenseal"),
}


class Counting(InProcessTransport):
    """Counts the bytes of one site."""

    to_site = from_site = 0

    def broadcast(self, payload: bytes, sites: object, timeout: float) -> Replies:
        replies = super().broadcast(payload, sites, timeout)  # type: ignore[arg-type]
        self.to_site += len(payload)
        self.from_site += len(next(iter(replies.answers.values())))
        return replies


def site(name: str, seed: int, directory: Path, keys: SiteKeys) -> Site:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(RECORDS, INPUTS, generator=generator)
    client = Client(inputs, inputs.sum(1, keepdim=True).sigmoid())
    return Site(name, lambda agreement: SiteRecords(client, None), Policy(epsilon=9.0), directory / name, keys)


@contextmanager
def runs(sites: int, hidden: int, rounds: int, keys: SiteKeys) -> Iterator[dict[str, tuple[object, Counting]]]:
    """Yield a run of each kind, ready, with its transport."""
    algorithm = diff2.Diff2(rounds, 20, 1.0, 1.0, routine=diff2.GradientDescent(0.1))
    encoding = Encoding({f"x{i}": Scaling() for i in range(INPUTS)}, "y", Scaling(), None)
    names = tuple(f"site-{i}" for i in range(sites))
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for kind, trust in TRUSTS.items():
            place = Path(folder) / kind.replace(" ", "-")
            agreement = Agreement(
                algorithm, ModelSettings(hidden=(hidden,)), PrivacySettings(3.0, 1e-5), RunSettings(), encoding, names,
                trust=trust,
            )  # fmt: skip
            people = {name: site(name, i, place, keys) for i, name in enumerate(names)}
            for one in people.values():
                one.approve(agreement)
            transport = Counting({name: one.answer for name, one in people.items()})
            through = AddingServer(transport) if trust.sealed else transport
            options = {"keys": keys} if trust.sealed else {}
            made[kind] = (prepare_at_sites(agreement, through, names, directory=place / "run", **options), transport)
        yield made


def measured(sites: int, hidden: int, rounds: int, keys: SiteKeys) -> dict[str, tuple[float, int, int]]:
    """Return seconds a round, and bytes to and from a site, of each kind."""
    with runs(sites, hidden, rounds, keys) as made:
        states = {kind: training.init() for kind, (training, _) in made.items()}
        times: dict[str, list[float]] = {kind: [] for kind in made}
        for kind in made:
            made[kind][1].to_site = made[kind][1].from_site = 0
        for _ in range(rounds):
            for kind, (training, _) in made.items():
                began = time.perf_counter()
                states[kind], _ = training.step(states[kind])
                times[kind].append(time.perf_counter() - began)
        return {
            kind: (
                statistics.median(times[kind][1:]),
                made[kind][1].to_site // rounds,
                made[kind][1].from_site // rounds,
            )
            for kind in made
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--parameters", type=int, nargs="+", default=list(HIDDEN), choices=list(HIDDEN))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keys = SiteKeys.generate()
    table = Table(
        "sites", "parameters", *(f"{kind}: ms" for kind in TRUSTS), *(f"{kind}: kB to, from" for kind in TRUSTS)
    )
    for sites in options.sites:
        for parameters in options.parameters:
            found = measured(sites, HIDDEN[parameters], options.rounds, keys)
            times = [f"{1e3 * seconds:.1f}" for seconds, _, _ in found.values()]
            sizes = [f"{sent / 1e3:.1f}, {received / 1e3:.1f}" for _, sent, received in found.values()]
            table.add_row(str(sites), f"{parameters:,}", *times, *sizes)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
