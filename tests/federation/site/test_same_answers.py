"""Whatever a site is sent, and whatever its records are: all that leaves it but releases depends on their number alone.

Two sites hold tables of equal size with arbitrary cells, and the same secrets. The same messages, sensible, changed and
garbled, go to both. Answers must be equal byte for byte; of clipped sums and noisy releases, everything but the values.
So must be the lines of the sites' ledgers, without hashes of values, and what is logged where FLARE may send it. Values
are taken before noise: they are finite, and no further apart than the line of the answer in the site's ledger says of
one unit, times the number of units. Leaks of each kind are planted below, and found.
"""

import csv
import json
import logging
import math
import pkgutil
import secrets
import warnings
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diff2
from diff2 import Batch
from diff2._files import plain
from diff2.cohorts import Client
from diff2.data.scaling import Encoding, Scaling
from diff2.errors import InvalidArgument
from diff2.federation.fit_agreement import FitAgreement
from diff2.federation.sealed.keys import SiteKeys
from diff2.federation.site.clamped import UNBOUNDED, Clamped
from diff2.federation.site.policy import SiteData, read_site_file
from diff2.federation.site.records import group_numbers
from diff2.federation.site.site import LOG, site_from_file
from diff2.federation.site.table_records import table_records
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.request import ANSWER, CLOSE, DESCRIBE, OPEN
from diff2.fitting.travelling import Unpacked, packed
from diff2.fitting.tree_model import LEVELS
from diff2.privacy.trust import Trust
from diff2.runfile.fit import FitSettings
from diff2.tables.frames import as_frame
from diff2.tables.kinds import LARGEST, Category, Classes, Counts, Flag, Number, Regression
from diff2.tables.schema import Schema
from federated import NAMES, agreement_of, difference, gradient, lines, own_noise, request
from fitted import changed_statistics, every_statistic, few_trees, watched

NUMBERS = Encoding(
    {"a": Scaling.of_input((0.0, 100.0)), "b": Scaling.of_input((-1.0, 1.0), missing=0.5)},
    "y",
    Scaling.of_target((0.0, 20.0)),
    None,
)
CLASSES = replace(NUMBERS, target="z", target_scaling=None, classes=("no", "yes", 3))
FREE = replace(NUMBERS, inputs={"a": Scaling(), "b": Scaling()}, target_scaling=Scaling())
HEADER = ["a", "b", "y", "z", "group"]
RUNS = [f"{i}" * 32 for i in range(3)]
CHOICE = 2.0 * LEVELS  # the sensitivity of scores, whole numbers
SINGLE, SECRET = {"dtype": "float32"}, {"seed": None}


def agreements():
    """Approved ones: the server or the sites add the noise, sealed or not; numbers, classes, groups; drawn batches."""
    found = [
        replace(agreement_of("diff2", **SECRET), encoding=NUMBERS),
        replace(agreement_of("diff2", **SECRET), encoding=FREE),
        replace(own_noise("diff2", **SECRET), encoding=CLASSES),
        replace(own_noise("diff2, groups", **SECRET), encoding=NUMBERS),
        replace(agreement_of("dpsgd, fixed", **SECRET), encoding=NUMBERS),
        replace(own_noise("diff2", None, "tenseal", **SECRET), encoding=NUMBERS),
    ]
    return [replace(one, run=replace(one.run, **SINGLE)) if i % 2 else one for i, one in enumerate(found)]


AGREED = agreements()


@cache
def started(place):
    """The engine of an agreement, and the parameters of its model."""
    parameters = torch.nn.utils.parameters_to_vector(AGREED[place].build_model().parameters())
    return AGREED[place].build_engine()[0].name, parameters.detach()


cells = st.one_of(
    st.sampled_from(["", "nan", "inf", "-inf", "1e308", "-1e999", "9" * 400, "NULL", "no", "yes", "3", "3.0", "a,b"]),
    st.sampled_from(["True", '"', "1_0", "0x1", "\0", "\n"]),
    st.floats(-1000, 1000).map(repr),
    st.floats().map(repr),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)  # fmt: skip
tables = st.integers(1, 5).flatmap(
    lambda size: st.tuples(*[st.lists(st.lists(cells, min_size=5, max_size=7), min_size=size, max_size=size)] * 2)
)
numbers = st.sampled_from([0.0, 1.0, 0.5, 2.0, 1e-30, 1e30, 7.0])
places = st.integers(0, len(AGREED) - 1)


@st.composite
def garbled_agreement(draw):
    """An approved agreement with something changed, most of all in what it says about the columns."""
    fields = AGREED[draw(places)].to_json()
    column = fields["encoding"]["inputs"][draw(st.integers(0, 1))]
    change = draw(st.sampled_from(["offset", "scale", "low", "high", "column", "classes", "target", "dtype", "sites"]))
    if change in column:
        column[change] = draw(
            st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3))
        )
    elif change == "dtype":
        fields["run"]["dtype"] = draw(st.sampled_from(["float32", "float64", "float16"]))
    else:
        table = fields if change == "sites" else fields["encoding"]
        table[change] = draw(st.one_of(st.none(), st.lists(st.text(max_size=3), max_size=3), st.text(max_size=3)))
    return fields


def opening(place, size):
    agreement = AGREED[place]
    sizes = [size, *[3] * (len(NAMES) - 1)]
    return {"agreement": agreement.to_json(), "run": RUNS[place % 3], "sites": list(NAMES), "sizes": sizes,
            "engine": started(place)[0]}  # fmt: skip


@st.composite
def asked(draw, place, size):
    """A question of a run, as it may be asked, with some of it changed."""
    agreement, round = AGREED[place], draw(st.integers(0, 3))
    params = started(place)[1] * draw(st.sampled_from([1.0, 0.0, 1e30]))
    previous = params * draw(st.sampled_from([1.0, 0.9])) + draw(st.sampled_from([0.0, 0.01]))
    fields = {"round": round, "batch": draw(st.sampled_from([Batch(), Batch(), Batch(size=6), Batch(rate=0.5)]))}
    factor = draw(st.sampled_from([1.0, 1.0, 1e-27, 1.1]))
    if draw(st.booleans()):
        asking = gradient(params, 2.0, **fields)
    else:
        asking = difference(params, previous, 3.0 * float((params - previous).norm()), **fields)
    own = agreement.trust.noise == "sites"
    planned = agreement.plan([size, 3, 3]).multipliers.get(asking.purpose, 9.0) if own else 0.0
    multiplier = planned * draw(st.sampled_from([1.0, 1.0, 0.9, 0.0]))
    message = request(asking, multiplier, draw(st.sampled_from([1.0, 1.0, 0.5])), RUNS[place % 3]).message()
    message.fields["parts"][0]["radius"] = plain(asking.radius * factor)
    return message


@st.composite
def conversation(draw, size, keys):
    """Messages to a site: a run that is opened and asked, and anything else in between."""
    place = draw(places)
    opened = opening(place, size)
    sent = [write(Message(DESCRIBE, {"agreement": opened["agreement"]})), write(Message(OPEN, opened))]
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["ask", "ask", "ask", "describe", "open", "garbled", "cut", "close", "bytes"]))
        if kind in ("ask", "cut"):
            payload = write(draw(asked(place, size)))
            sealed = AGREED[place].trust.sealed != draw(st.sampled_from([False, False, False, True]))
            payload = keys.seal(payload) if sealed else payload
            sent.append(payload[: draw(st.integers(0, len(payload)))] if kind == "cut" else payload)
        elif kind == "open":
            changes = {draw(st.sampled_from(list(opened))): draw(st.sampled_from([None, 3, [], "loop", [3, 3, 3]]))}
            sent.append(write(Message(OPEN, {**opened, **changes})))
        elif kind == "close":
            sent.append(write(Message(CLOSE, {"run": draw(st.sampled_from(RUNS))})))
        elif kind == "bytes":
            sent.append(draw(st.binary(max_size=40)))
        else:
            fields = draw(garbled_agreement()) if kind == "garbled" else AGREED[draw(places)].to_json()
            sent.append(write(Message(draw(st.sampled_from([DESCRIBE, OPEN])), {**opened, "agreement": fields})))
    return sent


# Fits: statistics in the place of gradients.

COLUMNS = {"a": Number(0, 100), "b": Number(), "z": Category(("no", "yes", 3))}
FITTED = {
    "numbers": Schema(COLUMNS, "y", Regression(0, 20), groups="group"),
    "classes": Schema({"a": Flag(), "b": Number(-1, 1)}, "z", Classes(("no", "yes", 3)), groups="group"),
    "counts": Schema(COLUMNS, "y", Counts(20), groups="group"),
    "nothing known": Schema({"a": Number(), "b": Number()}, "y", Regression(), groups="group"),
}


def fit_agreements():
    """Approved ones: the server or the sites add the noise; records, groups and sites are protected."""
    given = [("numbers", "record"), ("classes", "group"), ("counts", "client"), ("nothing known", "record")]
    found = [FitAgreement(FITTED[name], FitSettings(2.0, 1e-3, unit), NAMES) for name, unit in given]
    return found + [replace(one, trust=Trust("sites")) for one in found[:3]]


FITS = fit_agreements()


@cache
def asked_of(place):
    """What a fit of a table with these columns asks for, each kind once."""
    rng = np.random.default_rng(place)
    table = {"a": rng.uniform(0, 120, 80), "b": rng.normal(size=80), "y": rng.integers(0, 20, 80),
             "z": rng.choice(["no", "yes", "3", "else"], 80), "group": rng.integers(0, 20, 80)}  # fmt: skip
    with few_trees(), watched() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diff2.fit(table, FITS[place].schema, epsilon=50.0, delta=1e-3, seed=1)
    return list({type(one): one for one in found}.values())


@st.composite
def statistic_asked(draw, place):
    """A statistic as it may be asked, with numbers and arrays changed, also to what overflows or has other shapes."""
    other = draw(st.sampled_from([place, place, place, draw(st.integers(0, len(FITS) - 1))]))
    tree, arrays = draw(changed_statistics(draw(st.sampled_from(asked_of(other)))))
    fields = {"run": RUNS[0], "number": draw(st.sampled_from([1, 1, 2, 3, 0])), "statistic": tree,
              "multiplier": draw(st.sampled_from([40.0, 40.0, 1e3, 0.4, 0.0]))}  # fmt: skip
    return Message("ask", fields, arrays)


@st.composite
def fit_conversation(draw, groups):
    """Messages to a site that takes part in a fit; the number of its groups, and who is in which, is public."""
    place, size = draw(st.integers(0, len(FITS) - 1)), len(groups)
    units = {"record": size, "group": len(set(groups)), "client": 1}[FITS[place].settings.unit]
    opened = {"agreement": FITS[place].to_json(), "run": RUNS[0], "sites": list(NAMES), "sizes": [units, 3, 3],
              "records": [size, 3, 3], "engine": "table"}  # fmt: skip
    sent = [write(Message(DESCRIBE, {"agreement": opened["agreement"]})), write(Message(OPEN, opened))]
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["ask", "ask", "ask", "ask", "cut", "open", "other", "close"]))
        if kind in ("ask", "cut"):
            payload = write(draw(statistic_asked(place)))
            sent.append(payload[: draw(st.integers(0, len(payload)))] if kind == "cut" else payload)
        elif kind == "open":
            changes = {draw(st.sampled_from(list(opened))): draw(st.sampled_from([None, 3, [], "loop", [3, 3, 3]]))}
            sent.append(write(Message(OPEN, {**opened, **changes})))
        elif kind == "close":
            sent.append(write(Message(CLOSE, {"run": RUNS[0]})))
        else:
            fields = json.loads(json.dumps(opened["agreement"]))
            table = draw(st.sampled_from([fields["settings"], fields["schema"], fields["schema"]["target"], fields]))
            table[draw(st.sampled_from(sorted(table)))] = draw(st.sampled_from([None, [], 1e-3, "group", {}]))
            sent.append(write(Message(draw(st.sampled_from([DESCRIBE, OPEN])), {**opened, "agreement": fields})))
    return sent


class Heard(logging.Handler):
    """All that is logged where FLARE could send it."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def outside(answer):
    """An answer without the values of a sum or release."""
    message = read(answer)
    if message.kind not in (ANSWER, "ciphertexts"):
        return answer
    arrays = {name: array.dtype for name, array in message.arrays.items()}
    shapes = {name: array.shape for name, array in message.arrays.items()} if message.kind == ANSWER else {}
    return message.kind, dict(message.fields), arrays, shapes


def in_ledger(path):
    """The lines of a ledger without hashes of records and answers."""
    return [
        {key: value for key, value in line.items() if key not in ("records", "answer", "time")} for line in lines(path)
    ]


class Told(NamedTuple):
    """All that leaves a site, and the values of its answers before noise, each with how far a unit may move it."""

    answers: list
    ledger: list
    logged: list
    warned: list
    values: list


def told(folder, rows, sent, keys):
    """All that leaves a site with these records that is sent these messages."""
    folder.mkdir(parents=True)
    with open(folder / "table.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    keys.save(folder / "keys")
    text = '[data]\nfile = "table.csv"\n[policy]\nepsilon = 20\ndelta = 0.1\n[site]\nkeys = "keys"\n'
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site, heard = site_from_file("north", read_site_file(folder / "site.toml")), Heard()
    for agreement in (*AGREED, *FITS):
        site.approve(agreement)
    logger = logging.getLogger("diff2")
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    answers, values = [], []
    try:
        with warnings.catch_warnings(record=True) as warned, pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("always")
            patch.setattr(secrets, "token_bytes", lambda count: bytes(range(count)))
            for place in ("noise", "statistic"):
                without = f"diff2.federation.own_noise.{place}.discrete_gaussian"
                patch.setattr(without, lambda source, count, *label: np.zeros(count, np.int64))
            for payload in sent:
                before = site.ledger.path.read_bytes()
                answer = site.answer(payload)
                lines = site.ledger.path.read_bytes()[len(before) :].splitlines()
                values += [one for line in lines if (one := value_of(answer, json.loads(line)))]
                answers.append(outside(answer))
                require_clamped(site._holdings.loaded)
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
    return Told(answers, in_ledger(site.ledger.path), heard.texts, sorted({str(one.message) for one in warned}), values)


def require_clamped(loaded):
    """All that the site computes with is within the agreed ranges."""
    if loaded is None:
        return
    (agreement,) = (one for one in (*AGREED, *FITS) if one.digest == loaded[0])
    if isinstance(agreement, FitAgreement):
        within_schema(agreement.schema, loaded[1].encoded.rows)
    else:
        within(agreement.encoding, *(part.numpy() for part in loaded[1].client))


def within_schema(schema, rows):
    for column, values in zip(schema.numeric, rows.numeric.T, strict=True):
        low, high = (-LARGEST, LARGEST) if column.low is None else (column.low, column.high)
        assert ((values >= low) & (values <= high) | np.isnan(values)).all()
    target, low = schema.target, getattr(schema.target, "low", 0.0)
    high = len(target.values) - 1 if isinstance(target, Classes) else target.high
    low, high = (-LARGEST, LARGEST) if low is None else (low, high)
    assert ((rows.target >= low) & (rows.target <= high)).all()


def value_of(answer, line):
    """The value of an answer, and how far one unit may move it, by the line of the ledger; nothing of ciphertexts."""
    message = read(answer)
    if line["kind"] != "answer" or message.kind != ANSWER:
        return None
    release = line["release"]
    if "steps" in message.arrays:  # a part of the release
        grid, steps = message.fields["grid"], message.arrays["steps"]
        return steps * grid, release["sensitivity"] + 2 * grid * math.sqrt(steps.size)
    exact = "count" in message.fields  # a sum of clipped gradients
    return message.arrays["value"], 2 * release["clip"] if exact else release["sensitivity"]


def require_same(keys, folder, one, other, sent):
    """Compare all that two sites tell whose tables have as many records; return it."""
    first, second = told(folder / "one", one, sent, keys), told(folder / "other", other, sent, keys)
    for a, b in zip(first[:4], second[:4], strict=True):
        assert a == b
    for (value, limit), (theirs, _) in zip(first.values, second.values, strict=True):
        assert np.isfinite(value).all()
        assert np.isfinite(theirs).all()
        apart = np.abs(value - theirs)
        # Of a choice, each leaf of each candidate; of all others, the whole vector.
        assert (apart.max(initial=0.0) if limit == CHOICE else np.linalg.norm(apart)) <= len(one) * limit * (1 + 2e-3)
    return first


@pytest.fixture(scope="module")
def keys():
    return SiteKeys.generate()


@pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_two_sites_with_other_records_of_the_same_number_tell_the_same(keys, tmp_path_factory, data):
    one, other = data.draw(tables)
    sent, folder = data.draw(conversation(len(one), keys)), tmp_path_factory.mktemp("sites")
    require_same(keys, folder, one, other, sent)


@pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_two_sites_tell_the_same_of_a_fit(keys, tmp_path_factory, data):
    one, other = data.draw(tables)
    groups = [data.draw(st.sampled_from(["a", "b", "", "7"])) for _ in one]
    one, other = ([[*row[:4], group] for row, group in zip(rows, groups, strict=True)] for rows in (one, other))
    sent, folder = data.draw(fit_conversation(groups)), tmp_path_factory.mktemp("sites")
    require_same(keys, folder, one, other, sent)


# Ordinary records, and such as are at the ends of everything; groups are public.
USUAL = [["31", "0.2", "4", "no", "g"], ["55", "-0.7", "11", "yes", "g"]]
ENDS = [["1e308", "-1e300", "19.5", "B20", "g"], ["", "inf", "0", "3", "g"]]


def everything_of_a_fit(place):
    """A fit that is asked for all that it asks, and for every statistic there is, as far as a site answers it."""
    agreement = FITS[place]
    own, size = agreement.trust.noise == "sites", {"record": 2, "group": 1, "client": 1}[agreement.settings.unit]
    opened = {"agreement": agreement.to_json(), "run": RUNS[0], "sites": list(NAMES), "sizes": [size, 3, 3],
              "records": [2, 3, 3], "engine": "table"}  # fmt: skip
    statistics = [*asked_of(place), *(one for one in every_statistic(agreement.schema) if answered(one, place))]
    statistics = [one for one in statistics if not (own and hasattr(one, "scores"))]
    sent = [write(Message(DESCRIBE, {"agreement": opened["agreement"]})), write(Message(OPEN, opened))]
    for number, statistic in enumerate(statistics, start=1):
        tree, arrays = packed(statistic)
        fields = {"run": RUNS[0], "number": number, "multiplier": 40.0, "statistic": tree}
        sent.append(write(Message("ask", fields, arrays)))
    return sent


def answered(statistic, place):
    """Whether a site answers a statistic at all, which depends on its agreement alone."""
    try:
        Unpacked(FITS[place].schema).statistic(*packed(statistic))
    except InvalidArgument:
        return False
    return True


def everything_of_a_run(place, keys):
    """A run that is asked for its first gradient."""
    agreement, opened = AGREED[place], opening(place, 2)
    asking = gradient(started(place)[1], 0.01, batch=Batch(size=6) if agreement.algorithm.name == "dpsgd" else Batch())
    z = agreement.plan([2, 3, 3]).multipliers["gradient"] if agreement.trust.noise == "sites" else 0.0
    payload = write(request(asking, z, run=opened["run"]).message())
    payload = keys.seal(payload) if agreement.trust.sealed else payload
    return [write(Message(DESCRIBE, {"agreement": opened["agreement"]})), write(Message(OPEN, opened)), payload]


def require_answers(keys, folder, kind, place):
    """Compare what is told of ordinary records and of such as are at the ends; both get answers to everything."""
    sealed = kind == "run" and AGREED[place].trust.sealed
    sent = everything_of_a_fit(place) if kind == "fit" else everything_of_a_run(place, keys)
    found = require_same(keys, folder, USUAL, ENDS, sent)
    assert [answer[0] for answer in found.answers[2:]] == ["ciphertexts" if sealed else "answer"] * (len(sent) - 2)
    assert len(found.values) == (0 if sealed else len(sent) - 2)


@pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
@pytest.mark.parametrize("place", range(len(FITS)))
def test_records_at_the_ends_of_everything_tell_the_same_of_a_fit(keys, tmp_path, place):
    """To every statistic there is an answer but, where sites add the noise, to a choice."""
    require_answers(keys, tmp_path, "fit", place)


@pytest.mark.parametrize("place", range(len(AGREED)))
def test_records_at_the_ends_of_everything_tell_the_same_of_a_run(keys, tmp_path, place):
    """So that the tests above compare more than refusals."""
    require_answers(keys, tmp_path, "run", place)


def planted(name, patch):
    """Plant a leak, or take a bound away."""

    def instead(path, change):
        module, _, attribute = path.rpartition(".")
        original = getattr(pkgutil.resolve_name(module), attribute)
        patch.setattr(path, change(original))

    def leaks(original):
        def wrapped(self, *rest):
            if rest[-2].any():
                found = {"refusal": InvalidArgument, "warning": warnings.warn, "log line": LOG.info}[name](f"{rest[0]}")
                if isinstance(found, Exception):
                    raise found
            return original(self, *rest)

        return wrapped

    def counts(original):
        def wrapped(self, message):
            found, values = original(self, message), self._holdings.loaded[1].parts[0].double()
            return replace(found, fields={**found.fields, "largest": int((values.abs() >= 1).sum())})

        return wrapped

    def wider(statistic, **fields):
        """Answers as if a bound of the statistic were another one."""
        instead(f"{statistic}.total", lambda total: lambda self, *rest: total(replace(self, **fields), *rest))

    def unclipping(numpy):
        return SimpleNamespace(**{**vars(numpy), "clip": lambda values, low, high: values})

    unclipped = lambda answer: lambda self, question: answer(self, replace(question, radius=1e6))  # noqa: E731
    statistics, site = "diff2.fitting.statistics", "diff2.federation.site"
    {
        **dict.fromkeys(("refusal", "warning", "log line"), lambda: instead(f"{site}.clamped.Clamped._note", leaks)),
        "count": lambda: instead(f"{site}.site.Site._describe", counts),
        "no clamp": lambda: instead(f"{site}.clamped._clip", lambda clip: lambda scaling, x: x),
        "no clamp in a fit": lambda: instead("diff2.tables.encode.np", unclipping),
        "no clipping": lambda: instead("diff2.cohorts.per_client.ClientSums.answer", unclipped),
        "no clipping of a part": lambda: instead("diff2.cohorts.per_client.ClientSums.answer", unclipped),
        "no radius": lambda: wider(f"{statistics}.ClippedDescent", radius=1e6),
        "no bounds of a mean": lambda: wider(f"{statistics}.TargetMean", low=0.0, high=1e6),
        "no ball": lambda: instead(f"{statistics}.length_limited", lambda limited: lambda vectors, bound: vectors * 9),
        "weights": lambda: instead(
            "diff2.fitting.cohort.ClientTable.total",
            lambda total: lambda self, statistic, weight: total(self, statistic, 3 * weight),
        ),
    }[name]()


LEAKS = {  # planted: found by the fit, or the run, of this place
    **dict.fromkeys(("refusal", "warning", "log line", "count", "no clipping"), ("run", 0)),
    "no clamp": ("run", 1),
    "no clipping of a part": ("run", 2),
    **dict.fromkeys(("no clamp in a fit", "no radius", "no bounds of a mean", "no ball", "weights"), ("fit", 0)),
}


@pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_that_is_planted_is_found(keys, tmp_path, monkeypatch, name):
    planted(name, monkeypatch)
    with pytest.raises(AssertionError):
        require_answers(keys, tmp_path, *LEAKS[name])


wild = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.just(10**400), st.text(max_size=4), st.binary(max_size=3),
    st.complex_numbers(), st.datetimes(), st.decimals(), st.fractions(), st.lists(st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(wild, wild, wild, wild), min_size=1, max_size=6),
    encoding=st.sampled_from([NUMBERS, CLASSES, FREE]),
)
def test_no_table_of_a_sites_own_function_is_refused(rows, encoding):
    frame = pandas.DataFrame(
        {name: pandas.Series(cells, dtype=object) for name, cells in zip("abyz", zip(*rows, strict=True), strict=True)}
    )
    for table in (frame, frame.infer_objects()):
        cells = as_frame(table)
        inputs, targets = Clamped(encoding).table({name: cells[name] for name in table})
        within(encoding, inputs, targets)
        assert len(group_numbers(cells["z"], Client(inputs, targets))) == len(rows)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(wild, wild, wild, wild, wild), min_size=1, max_size=6),
    place=st.integers(0, len(FITS) - 1),
)
def test_no_table_of_a_sites_own_function_is_refused_for_a_fit(rows, place):
    frame = pandas.DataFrame({
        name: pandas.Series(cells, dtype=object) for name, cells in zip(HEADER, zip(*rows, strict=True), strict=True)
    })  # fmt: skip
    for table in (frame, frame.infer_objects()):
        found = table_records(table, SiteData(entry_point="a:b"), FITS[place])
        assert found.records == len(rows)
        assert 1 <= found.size <= len(rows)
        assert (np.abs(np.nan_to_num(found.encoded.rows.numeric)) <= LARGEST).all()


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(), st.floats(), st.floats()), min_size=1, max_size=6),
    dtype=st.sampled_from(["f4", "f8", "i8", "u1", "U8", "c16"]),
    encoding=st.sampled_from([NUMBERS, CLASSES, FREE]),
)
def test_no_arrays_are_refused(values, dtype, encoding):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        array = np.array(values).astype(dtype)
    within(encoding, *Clamped(encoding).arrays(array[:, :2], array[:, 2]))


def within(encoding, inputs, targets):
    """All is finite and within the agreed ranges, also in single precision."""
    assert np.abs(inputs).max() <= (1 if encoding is not FREE else UNBOUNDED)
    if encoding.classes is not None:
        assert targets.dtype == np.int64
        assert 0 <= targets.min() <= targets.max() < len(encoding.classes)
    else:
        assert np.abs(targets).max() <= (1 if encoding is not FREE else UNBOUNDED)
    assert torch.isfinite(torch.from_numpy(inputs).float()).all()


def test_unknown_classes_become_other_or_the_first_one():
    for classes, cells, expected in (
        (("no", "yes", 3), ["yes", "3.0", "maybe", "", "no"], [1, 2, 0, 0, 0]),
        (("A", "other", "B"), ["A", "B", "B20", "nan", "other"], [0, 2, 1, 1, 1]),
        ((False, True), ["True", "0", "false", "1.0", "x"], [1, 0, 0, 1, 0]),
        (("1", "01", 1.5), ["1", "01", "1.5", "1.50", "2"], [0, 1, 2, 2, 0]),
    ):
        clamped = Clamped(replace(CLASSES, classes=classes))
        frame = as_frame({"a": ["1"] * 5, "b": ["1"] * 5, "z": cells})
        assert clamped.table({name: frame[name] for name in "abz"})[1].tolist() == expected


def test_what_was_changed_is_noted_for_the_site_alone():
    clamped = Clamped(NUMBERS)
    columns = {"a": ["-3", "50", "x", "101"], "b": ["0", "", "0", "0"], "y": ["5", "5", "40", "5"]}
    frame = as_frame(columns)
    inputs, targets = clamped.table({name: frame[name] for name in columns})
    assert inputs.tolist() == [[-1.0, 0.0], [0.0, 0.5], [0.0, 0.0], [1.0, 0.0]]
    assert targets.flatten().tolist() == [0.25, 0.25, 1.0, 0.25]
    assert clamped.notes == [
        "column 'a': 1 of 4 values are no number; used as 50",
        "column 'a': 2 of 4 values are outside of [0, 100]; clamped",
        "column 'b': 1 of 4 values are no number; used as 0.5",
        "column 'y': 1 of 4 values are outside of [0, 20]; clamped",
    ]
