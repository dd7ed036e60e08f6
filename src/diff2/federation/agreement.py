"""The agreement: everything about a run except the records, in plain values.

The server sends it. Every site reads it with the same checks as a run file, answers only if somebody there approved
exactly this agreement (``site/approval.py``), and from then on answers only the questions that belong to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from .._fields import convert, from_table
from .._files import plain
from ..algorithms import ALGORITHMS, Algorithm
from ..algorithms.interval import AUTO
from ..algorithms.named import named
from ..data.scaling import Encoding, Scaling
from ..errors import InvalidArgument
from ..gradients import Engine, Shapes, build_engine
from ..models.losses import resolve_loss
from ..models.mlp import mlp
from ..planning import Plan, plan
from ..privacy.trust import Trust
from ..questions import Protection
from ..runfile.reader import ModelSettings, PrivacySettings, RunSettings, portable, protection_of
from .among_sites import OTHER_VERSION, SERVER, SHARED, AmongSites, Column, read_shared, read_table
from .fit_agreement import FitAgreement, read_fit_agreement

FORMAT = 4
TABLES = ("algorithm", "model", "privacy", "run")
OTHERS = ("encoding", "group_column", "leaks")


@dataclass(frozen=True)
class Agreement(AmongSites):
    """What is trained, how, and under which guarantee."""

    algorithm: Algorithm
    model: ModelSettings
    privacy: PrivacySettings
    run: RunSettings
    encoding: Encoding  # what the columns mean: public ranges, units, classes, what stands in for a missing value
    sites: tuple[str, ...]  # who may take part, in the order of the clients
    group_column: str | None = None  # holds the group of each record, where groups are protected
    leaks: tuple[str, ...] = ()  # what was computed from records without noise, if anything
    trust: Trust = SERVER
    minimum_sites: int | None = None  # the run starts with at least this many sites and keeps to those; None: with all

    def __post_init__(self) -> None:
        if self.run.metrics_every is not None:
            raise InvalidArgument("metrics_every computes exact values from all records; at sites that is not possible")
        if self.run.sign_with is not None:
            raise InvalidArgument("sign_with signs what 'diff2 train' writes; leave it out of a run at sites")
        if getattr(self.algorithm, "restart_interval", None) == AUTO:
            raise InvalidArgument(
                "restart_interval='auto' is chosen where the run is built; for a run at sites give the number that "
                "'diff2 plan' names, with early_restarts = true"
            )
        super().__post_init__()

    @property
    def protection(self) -> Protection:
        """What is protected, and how it is accounted for."""
        return protection_of(self.privacy, self.run, grouped=self.grouped)

    @property
    def method(self) -> str:
        return self.algorithm.name

    @property
    def adjacency(self) -> str:
        return self.algorithm.adjacency

    @property
    def rounds(self) -> int:
        return self.algorithm.rounds

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.encoding.inputs)

    @property
    def target(self) -> str:
        return self.encoding.target

    def meaning(self, name: str) -> Column | None:
        """Return bounds, stand-in and unit, or the classes of the target; None: it has no bounds, or another scale."""
        encoding, scaling, made = self.encoding, self.encoding.inputs.get(name), Scaling.of_input
        if name == encoding.target:
            if encoding.classes is not None:
                return Column(classes=encoding.classes)
            scaling, made = encoding.target_scaling, Scaling.of_target
        if scaling is None or scaling.low is None or scaling.high is None:
            return None
        bounds = scaling.low, scaling.high
        alike = made(bounds, scaling.missing, scaling.unit) == scaling
        return Column(None, bounds, scaling.missing, scaling.unit) if alike else None

    @property
    def grouped(self) -> bool:
        """Whether groups of records are protected."""
        return self.group_column is not None

    def plan(self, sizes: Iterable[int]) -> Plan:
        """Return the noise for sites of these sizes. Every party computes it for itself."""
        return plan(self.algorithm, self.privacy.budget, tuple(sizes), self.protection)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        dtype: torch.dtype = getattr(torch, self.run.dtype)
        return dtype

    def build_model(self) -> nn.Module:
        """Return the model with its initial parameters."""
        return mlp(len(self.encoding.inputs), self.encoding.outputs, **asdict(self.model)).to(self.dtype)

    def build_engine(self) -> tuple[Engine, bool]:
        """Return the engine, the same at every site, and whether the model draws random numbers."""
        _, loss = resolve_loss(self.encoding.loss)
        classes = self.encoding.classes is not None
        targets: tuple[tuple[int, ...], torch.dtype] = ((), torch.int64) if classes else ((1,), self.dtype)
        return build_engine(
            self.build_model(),
            loss,
            Shapes((len(self.encoding.inputs),), targets[0], self.dtype, targets[1]),
            dtype=self.dtype,
            device=torch.device("cpu"),
            grouped=self.grouped,
            engine=portable(self.run.engine),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "format": FORMAT,
            "algorithm": plain(self.algorithm),
            "model": {"name": "mlp", **plain(asdict(self.model))},
            "privacy": plain(asdict(self.privacy)),
            "run": plain(asdict(self.run)),
            "encoding": self.encoding.to_json(),
            "group_column": self.group_column,
            "leaks": list(self.leaks),
            **super().to_json(),
        }


AnyAgreement: TypeAlias = Agreement | FitAgreement


def read_agreement(fields: Any) -> AnyAgreement:
    """Read what ``to_json`` of an agreement wrote; unknown names and keys are refused, and nothing is imported."""
    if isinstance(fields, Mapping) and "fit" in fields:
        return read_fit_agreement(fields)
    if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
        raise InvalidArgument(OTHER_VERSION)
    missing = sorted({*TABLES, *OTHERS, *SHARED} - set(fields))
    if missing:
        raise InvalidArgument(f"the agreement lacks {missing}")
    tables = {name: read_table(fields, name) for name in TABLES}
    _refuse_foreign_code(tables["algorithm"])
    if tables["model"].pop("name", None) != "mlp":
        raise InvalidArgument("expected the model to be 'mlp'; other models cannot be described in an agreement yet")
    try:
        encoding = Encoding.from_json(fields["encoding"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"the encoding of the agreement is damaged ({type(error).__name__})") from None
    group = fields["group_column"]
    if group is not None and not isinstance(group, str):
        raise InvalidArgument("expected group_column to be the name of a column")
    return Agreement(
        algorithm=named("algorithm", tables["algorithm"], ALGORITHMS),
        model=from_table(ModelSettings, "model", tables["model"]),
        privacy=from_table(PrivacySettings, "privacy", tables["privacy"]),
        run=from_table(RunSettings, "run", tables["run"]),
        encoding=encoding,
        group_column=group,
        leaks=convert("leaks", fields["leaks"], tuple[str, ...]),
        **read_shared(fields),
    )


def _refuse_foreign_code(table: Mapping[str, Any]) -> None:
    """Refuse names that would be imported: one party must not choose what another executes."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            _refuse_foreign_code(value)
        elif key == "optimizer" and "." in str(value):
            raise InvalidArgument(f"optimizer={value!r} is not one of torch.optim; an agreement cannot name other code")
