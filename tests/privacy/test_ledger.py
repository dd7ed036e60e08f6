"""The ledger: whatever happens to the process or the file, its epsilon is that of the releases that were made."""

import json
import math
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.errors import BudgetExceeded, LedgerError
from diff2.privacy import Guarantee, Ledger, Release, epsilon_of
from diff2.privacy.lines import FORMAT, HEADER_FIELDS, chained
from stubs import DELTA, in_memory_ledger, ledger_header

USUAL = Release(1, "gradient", sensitivity=0.06, clip=3.0, multiplier=12.5, noise_std=0.06 * 12.5, dimension=101)


def made(round, **fields):
    return USUAL._replace(round=round, **fields)


RELEASES = [
    made(1),
    made(2, purpose="difference", mechanism="zero", clip=0.0, sensitivity=0.0, noise_std=0.0, multiplier=math.inf),
    made(3, purpose="difference", clip=1 / 3, sensitivity=1 / 150, noise_std=0.1 + 1e-9, multiplier=15.0),
]


@pytest.fixture
def path(tmp_path):
    """A complete ledger file: header, three releases, end."""
    target = tmp_path / "ledger.jsonl"
    write(target)
    return target


def write(target, *, ended=True):
    """Write the ledger of a run that made three releases, and that came to its end or was killed before."""
    ledger = Ledger(ledger_header(), target)
    for one in RELEASES:
        ledger.record(one)
    ledger.close()
    if not ended:
        target.write_bytes(b"".join(target.read_bytes().splitlines(keepends=True)[:-1]))


def edit(path, number, **fields):
    """Change fields of a line (counted from 1)."""
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), **fields})
    path.write_text("\n".join(lines) + "\n")


def test_a_ledger_read_back_is_the_one_that_was_written(path):
    ledger = Ledger.read(path)
    assert ledger.releases == RELEASES
    assert ledger.header == ledger_header()
    assert ledger.complete
    assert ledger.epsilon() == epsilon_of([12.5, 15.0], DELTA)
    assert ledger.epsilon(1e-7) > ledger.epsilon()
    assert len(path.read_text().splitlines()) == 5


def test_every_line_is_strict_json(path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_each_line_is_in_the_file_when_record_returns(tmp_path):
    target = tmp_path / "ledger.jsonl"
    ledger = Ledger(ledger_header(), target)
    for count, one in enumerate(RELEASES, start=1):
        before = target.read_bytes()
        ledger.record(one)
        assert target.read_bytes().startswith(before)  # append-only
        assert target.read_bytes().count(b"\n") == 1 + count
    assert not Ledger.read(target).complete
    ledger.close()


def test_a_ledger_is_never_overwritten(path):
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="never overwritten"):
        Ledger(ledger_header(), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("ended", [True, False])
def test_a_last_line_cut_off_anywhere_is_refused_by_read_and_dropped_by_resume(path, tmp_path, ended):
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)[: None if ended else -1]
    kept = b"".join(lines[:-1])
    cut = tmp_path / "cut.jsonl"
    for length in sorted({1, *range(2, len(lines[-1]), 9), len(lines[-1]) - 1}):
        cut.write_bytes(kept + lines[-1][:length])
        with pytest.raises(LedgerError, match="truncated"):
            Ledger.read(cut)
        ledger = Ledger.resume(cut)
        assert cut.read_bytes() == kept
        assert ledger.releases == RELEASES[: 3 if ended else 2]
        for one in RELEASES[len(ledger) :]:
            ledger.record(one)
        ledger.close()
        assert cut.read_bytes() == data


def test_a_header_cut_off_anywhere_is_refused(tmp_path, path):
    header = path.read_bytes().splitlines()[0]
    cut = tmp_path / "cut.jsonl"
    for length in range(0, len(header), 7):
        cut.write_bytes(header[:length])
        for open_ledger in (Ledger.read, Ledger.resume):
            with pytest.raises(LedgerError, match="header"):
                open_ledger(cut)


KINDS = [b'{"kind": "other"}', b'{"kind": "release"}', b'{"kind": "header"}', b'{"kind": "\xff\xfe"}']


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"7", *KINDS, b"\x00", "é{".encode()])
def test_a_broken_line_anywhere_is_refused_with_its_number(path, number, text):
    lines = path.read_bytes().splitlines()
    lines[number - 1] = text
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerError, match=f"line {number}"):
        Ledger.read(path)


@pytest.mark.parametrize(
    ("kept", "message"),
    [([*range(n), *range(n + 1, 5)], "line|header") for n in range(4)]
    + [([0, 1, 2, 2, 3, 4], "line 4"), ([0, 1, 2, 3, 4, 1], r"line 6.*closing line")],
)
def test_a_line_that_is_missing_or_twice_or_follows_the_end_is_noticed(path, kept, message):
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[n] for n in kept) + "\n")
    with pytest.raises(LedgerError, match=message):
        Ledger.read(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"multiplier": 13.0},
        {"multiplier": "inf"},
        {"multiplier": "nan"},
        {"multiplier": -12.5},
        {"sensitivity": 0.07},
        {"sensitivity": 0.0},
        {"sensitivity": "nan"},
        {"noise_std": 0.7},
        {"noise_std": 0.0},
        {"mechanism": "zero"},
        {"mechanism": "none"},
        {"mechanism": "laplace"},
        {"multiplier": None},
        {"round": "one"},
        {"extra": 1},
        {"sampling": "fixed"},
        {"sampling": "fixed", "rate": 0.0},
        {"sampling": "fixed", "rate": 1.0},
        {"sampling": "fixed", "rate": "nan"},
        {"sampling": "poisson", "rate": 1.1},
        {"sampling": "bernoulli", "rate": 0.5},
        {"rate": 0.5},
        {"members": []},
        {"members": 3},
        {"members": ["one"]},
        {"leaves": 2},
        {"leaves": -1},
        {"parties": 0},
        {"step": None},
    ],
    ids=str,
)
def test_a_line_cannot_claim_a_better_price_than_its_noise_justifies(path, fields):
    edit(path, 2, **fields)
    with pytest.raises(LedgerError, match="line 2"):
        Ledger.read(path)


@pytest.mark.parametrize("field", Release._fields)
def test_a_line_without_a_field_is_refused(path, field):
    lines = path.read_text().splitlines()
    fields = json.loads(lines[1])
    del fields[field]
    lines[1] = json.dumps(fields)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="line 2"):
        Ledger.read(path)


def test_a_closed_ledger_takes_no_release(path):
    for open_ledger in (Ledger.read, Ledger.resume):
        ledger = open_ledger(path)
        with pytest.raises(LedgerError, match="complete"):
            ledger.record(made(4))
        ledger.close()


def test_another_format_is_refused(path):
    for other in (FORMAT - 1, FORMAT + 1, None):
        edit(path, 1, format=other)
        with pytest.raises(LedgerError, match="format"):
            Ledger.read(path)


@pytest.mark.parametrize("field", sorted(HEADER_FIELDS))
def test_a_header_without_a_field_is_refused(path, field):
    header = {key: value for key, value in ledger_header().items() if key != field}
    lines = path.read_text().splitlines()
    lines[0] = json.dumps({"kind": "header", "format": FORMAT, **header})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError):
        Ledger.read(path).guarantee()


def test_a_missing_file_is_a_ledger_error(tmp_path):
    for open_ledger in (Ledger.read, Ledger.resume):
        with pytest.raises(LedgerError, match="no ledger"):
            open_ledger(tmp_path / "none.jsonl")


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_rounds_computed_again_are_not_written_twice(tmp_path, done):
    target = tmp_path / "ledger.jsonl"
    write(target, ended=False)
    before = target.read_bytes()
    ledger = Ledger.resume(target)
    ledger.rewind(done)
    for one in RELEASES[done:]:
        ledger.record(one)
    assert target.read_bytes() == before
    ledger.record(made(4))
    ledger.close()
    assert Ledger.read(target).releases == [*RELEASES, made(4)]


@pytest.mark.parametrize("change", [{"multiplier": 12.4}, {"sensitivity": 0.05}, {"clip": 2.0}])
def test_an_answer_of_sites_that_comes_back_different_is_refused(tmp_path, change):
    target = tmp_path / "ledger.jsonl"
    write(target, ended=False)
    ledger = Ledger.resume(target)
    ledger.rewind(0)
    with pytest.raises(LedgerError, match="the run was changed"):
        ledger.record(RELEASES[0]._replace(**change))
    ledger.close()
    assert Ledger.read(target).releases == RELEASES


ONE, OTHER = "a" * 64, "b" * 64  # hashes of released values


def test_a_second_release_is_priced_as_one_that_exposes_everybody(tmp_path):
    target = tmp_path / "ledger.jsonl"
    ledger, first = Ledger(ledger_header(), target), made(1, sha256=ONE, members=(0,))
    second = made(1, sha256=OTHER, members=(0,), clip=2.0)
    assert ledger.record(first) == first
    assert ledger.record(second) == second._replace(members=None)
    before = target.read_bytes()
    for again in (first, second):  # each is known by now
        assert ledger.record(again) in ledger.releases
    assert target.read_bytes() == before
    assert Ledger.read(target).epsilon() == ledger.epsilon() == epsilon_of([12.5] * 2, DELTA)
    *lines, line = before.decode().splitlines()
    fields = {name: value for name, value in json.loads(line).items() if name != "chain"}
    for change in ({"members": [0]}, {"sampling": "fixed", "rate": 0.5}, {"sha256": ""}, {"sha256": ONE, "clip": 3.0}):
        changed = chained({**fields, **change}, json.loads(lines[-1])["chain"])[0]
        target.write_text("\n".join([*lines, changed, ""]))
        for open_ledger in (Ledger.read, Ledger.resume):
            with pytest.raises(LedgerError, match="line 3: a second release of a round that is not priced as one"):
                open_ledger(target)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sampling": "fixed", "rate": 0.1}, LedgerError, "one random draw"),
        ({"multiplier": 1.6, "noise_std": 0.1}, BudgetExceeded, r"second release.* budget is 3"),
    ],
)
def test_a_second_release_without_a_price_or_beyond_the_budget_is_refused(tmp_path, change, error, message):
    target = tmp_path / "ledger.jsonl"
    ledger = Ledger(ledger_header(), target)
    ledger.record(made(1, sha256=ONE, **change))
    before = target.read_bytes()
    with pytest.raises(error, match=message):
        ledger.record(made(1, sha256=OTHER, **change))
    assert target.read_bytes() == before
    assert len(ledger) == 1


def test_releases_on_batches_and_of_members_are_read_back_and_priced(tmp_path):
    target = tmp_path / "ledger.jsonl"
    ledger = Ledger(ledger_header(), target)
    releases = [
        made(1),
        made(1, purpose="local", step=3, sampling="fixed", rate=0.125, members=(0,)),
        made(2, purpose="local", members=(1, 2)),
        made(3, step=2, leaves=8, members=(1,), noise_std=2 * 0.06 * 12.5),
    ]
    for one in releases:
        ledger.record(one)
    ledger.close()
    again = Ledger.read(target)
    assert again.releases == releases
    assert again.epsilon() == ledger.epsilon() == epsilon_of([12.5] * 3, DELTA)  # of member 1


def test_the_sentence_names_unit_and_adjacency():
    assert "replacing all the records of any one of the 2 clients" in str(guarantee_of(1.0, unit="client"))
    assert "all the records of any one group at a client" in str(guarantee_of(1.0, unit="group"))
    assert "adding or removing any one record" in str(guarantee_of(1.0, adjacency="add-or-remove-one"))


def test_closing_twice_writes_one_end(path):
    ledger = Ledger.resume(path)
    ledger.close()
    ledger.close()
    assert path.read_text().count('"end"') == 1


def test_one_release_without_noise_makes_the_ledger_infinite(tmp_path):
    target = tmp_path / "ledger.jsonl"
    ledger = Ledger(ledger_header(), target)
    ledger.record(made(1))
    ledger.record(made(2, mechanism="none", noise_std=0.0, multiplier=0.0))
    ledger.close()
    assert Ledger.read(target).epsilon() == math.inf


def test_the_sentence_names_everything_a_reader_must_know():
    ledger = in_memory_ledger()
    for one in RELEASES:
        ledger.record(one)
    guarantee = ledger.guarantee()
    sentence = str(guarantee)
    for word in ("replacing any one record", "1e-05", "100", "2 clients", "3 releases", "diff2", "public", "trusted"):
        assert word in sentence
    assert "not complete" in sentence
    assert "NOT PRIVATE" not in sentence
    assert guarantee.private
    assert json.loads(json.dumps(guarantee.to_json(), allow_nan=False))["sentence"] == sentence


def guarantee_of(epsilon, **fields):
    usual = {
        "delta": DELTA,
        "adjacency": "replace-one",
        "unit": "record",
        "client_sizes": (30, 70),
        "releases": 3,
        "planned": 3,
    }
    return Guarantee(epsilon, **{**usual, "algorithm": "diff2", "seeded": False, **fields})


@pytest.mark.parametrize(
    "guarantee",
    [guarantee_of(1.0, seeded=True), guarantee_of(math.inf), guarantee_of(1.0, leaks=("exact training metrics",))],
    ids=["seeded", "infinite", "leaks"],
)
def test_a_run_that_is_not_private_says_so_first(guarantee):
    assert str(guarantee).startswith("NOT PRIVATE")
    assert not guarantee.private
    assert guarantee.to_json()["private"] is False
    json.dumps(guarantee.to_json(), allow_nan=False)


def printed(guarantee):
    epsilon, delta = re.search(r"satisfy \((\S+), (\S+)\)-differential", str(guarantee)).groups()
    return Decimal(epsilon), Decimal(delta)


@settings(max_examples=200, deadline=None)
@given(epsilon=st.floats(1e-3, 1e3))
def test_a_printed_epsilon_is_the_true_one_rounded_up_to_four_places(epsilon):
    shown, _ = printed(guarantee_of(epsilon))
    # Up to 1e-10: an epsilon of 1.1 must not be printed as 1.1001 because of its binary representation.
    assert 0 <= shown - Decimal(epsilon) + Decimal("1e-10") < Decimal("1.01e-4")


@pytest.mark.parametrize("epsilon", [1.00000000005, 1e-12, 2.3456 + 2e-11])
def test_a_printed_epsilon_is_never_below_the_true_one(epsilon):
    assert printed(guarantee_of(epsilon))[0] >= Decimal(epsilon)


def test_a_printed_delta_is_never_below_the_true_one():
    assert printed(guarantee_of(1.0, delta=1.2345649e-5))[1] >= Decimal("1.2345649e-5")
