"""Sites that add their own noise: agreements, a transport that keeps all messages, and what the noise was added to."""

from dataclasses import replace

import torch
from diff2.federation.own_noise.shares import agreed_plan, weight_of
from diff2.federation.wire.requests import ANSWER

from catalogue import SIZES
from diff2.cohorts.per_client import ClientSums
from diff2.federation.wire.messages import read
from diff2.federation.wire.transport import InProcessTransport
from diff2.gradients import build_engine
from diff2.models.losses import resolve_loss
from diff2.privacy.trust import Trust
from diff2.questions.population import ALL
from federated import NAMES, agreement_of, make_sites, quiet_prepare, records_of


def shared(name, honest=None, aggregation="none", **changes):
    """The agreement on an entry of the catalogue, with noise from the sites."""
    return replace(agreement_of(name, **changes), trust=Trust("sites", honest, aggregation))


def words(data):
    """All runs of eight bytes, for looking up numbers in messages."""
    return {data[i : i + 8] for i in range(len(data))}


class Recorder:
    """A transport that keeps all messages; ``fault`` may change the answer of the site in the middle."""

    def __init__(self, sites, fault=None):
        self._inner = InProcessTransport({name: site.answer for name, site in sites.items()})
        self._fault = fault
        self.messages = []  # (site, request, answer)

    def members(self):
        return self._inner.members()

    def broadcast(self, payload, sites, timeout):
        replies = self._inner.broadcast(payload, sites, timeout)
        for site, answer in replies.answers.items():
            self.messages.append((site, payload, answer))
            if self._fault is not None and site == NAMES[1] and read(answer).kind == ANSWER:
                replies.answers[site] = self._fault(read(answer))
        return replies

    def call(self, site, payload, timeout):
        return self.broadcast(payload, [site], timeout)

    @property
    def shares(self):
        """The releases that were asked, with the answers of the sites."""
        found = [(site, read(asked), read(answer)) for site, asked, answer in self.messages]
        return [(site, asked, answer) for site, asked, answer in found if asked.kind == "release"]


def recorded_run(agreement, directory, fault=None):
    sites = make_sites(directory / "sites")
    transport = Recorder(sites, fault)
    return quiet_prepare(agreement, transport, directory / "server").run(progress=False), transport


class Truth:
    """What sites would have answered without noise: their parts of the weighted mean, computed here."""

    def __init__(self, agreement):
        self.population = agreed_plan(agreement, SIZES).population
        self._sums = []
        for index in range(3):
            client, (_, loss) = records_of(index).client, resolve_loss("squared")
            model, cpu = agreement.build_model(), torch.device("cpu")
            engine, _ = build_engine(model, loss, *client, dtype=torch.float64, device=cpu)
            self._sums.append(ClientSums(engine, client, index, self.population))

    def part(self, site, message):
        index, params = NAMES.index(site), torch.from_numpy(message.arrays["params"])
        sums, total = self._sums[index], 0.0
        for part in message.fields["parts"]:
            options = {"round": part["round"], "batch": ALL, "step": part["step"]}
            if part["kind"] == "gradient":
                value = sums.gradient(params, part["radius"], **options)
            else:
                previous = torch.from_numpy(message.arrays["previous"])
                value = sums.difference(params, previous, part["radius"], inner=part["inner"], **options)
            total = total + part["weight"] * value
        return (weight_of(self.population, index, ALL, message.fields["round"]) * total).numpy()
