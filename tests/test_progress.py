"""The progress bar: one for rounds, runs, bytes and jobs, and nothing at all where nobody watches."""

import sys
import time

import pytest

from diff2 import _progress
from diff2._progress import progress_bar


class Priced:
    """Stands for the price of a ledger, and counts how often it is asked for."""

    def __init__(self, seconds=0.0):
        self.calls, self.seconds = 0, seconds

    def __call__(self):
        self.calls += 1
        time.sleep(self.seconds)
        return "epsilon 1.2346"


@pytest.mark.parametrize(
    ("unit", "note", "shown"),
    [
        ("rounds", Priced(), ["3/3", "rounds", "epsilon 1.2346"]),
        ("runs", "", ["3/3", "runs"]),
        ("rounds", "epsilon 1, 3/3 sites, job 2", ["3/3 sites, job 2"]),
        ("bytes", "", ["3/3 bytes"]),
    ],
)
def test_it_shows_what_is_counted(unit, note, shown, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar(show=True, label="north", unit=unit) as report:
        report(3, 3, note)
    text = capsys.readouterr().err
    assert all(part in text for part in ["north", *shown])


def test_pricing_takes_little_of_the_time(capsys):
    """What takes long to price is priced less often; the last round always."""
    price = Priced(seconds=0.02)
    with progress_bar(50, show=True) as report:
        for done in range(1, 51):
            report(done, note=price)
    assert price.calls < 5
    assert "50/50" in capsys.readouterr().err


def test_it_costs_nothing_where_it_is_not_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    price = Priced()
    for show in (False, None):  # standard error is no terminal here
        with progress_bar(2, show=show) as report:
            report(1, note=price)
            report(2, 2, price)
    assert price.calls == 0
    assert _progress.PAUSE > 0
