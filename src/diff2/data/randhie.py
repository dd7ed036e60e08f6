r"""The RAND Health Insurance Experiment: 20,190 person-years at six study sites, one client each.

The table is public domain (1974-1982, from Cameron & Trivedi, *Microeconometrics*, 2005). The task is to predict
:math:`\log(1 + \text{mdvis})`, the doctor visits of a person in a year, from what was known about the person before
that year. Of its 45 columns, 24 are in ``randhie.csv.gz`` beside this file, as published. Each has one of these places:

- *target*: mdvis.
- *client*: site.
- *inputs*: the 21 columns of ``RANGES``: the insurance plan a family was given at random (logc, idp, fmde, lpi), health
  as reported at enrolment (mhi, disea, physlm, xghindx, hlthg, hlthf, hlthp), the baseline physical (tookphys), and
  who the person is (xage, female, child, fchild, black, income, educdec, lfam), and the study year (year).
- *outcomes of the same year*, left out because they are not known beforehand: spending (outpdol, drugdol, suppdol,
  mentdol, inpdol, meddol, lnmeddol, binexp, and inpmis, which says whether a bill is missing), admissions (totadm),
  other visits (mentvis, notmdvis), and the time a person took part in that year (time).
- *identifier*, no input: zper. It serves to keep all years of a person on one side of the split.
- *the same thing twice*, left out: plan and coins (given by logc, idp and fmde), mdeoff and pioff (fmde and lpi),
  ghindx (xghindx is the same index with the gaps filled by the study), num and lnum (lfam), linc (income).

Scaling uses the public constants of ``RANGES`` and ``AGES`` and nothing else, so it costs no privacy: a value is moved
to its range if it lies outside, and the range is mapped to [-1, 1]. Indicators stay 0 or 1 (a few of the study's own
imputations lie between). Age enters a second time through the four smooth age groups of ``AGES``. A missing value
(educdec has four) becomes the middle of its range, 0 after scaling. Columns, ranges and age groups were chosen with an
eye on the data, which is free only because they are public.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..tables.files import read_tables
from ..tables.frames import Frame

if TYPE_CHECKING:
    import torch

TABLE = Path(__file__).with_name("randhie.csv.gz")
SITES = (1, 2, 3, 4, 5, 6)
RECORDS = 20_190
TEST_FIFTH = 0  # which fifth of the people is held out

INDICATOR = (-1.0, 1.0)  # maps 0 and 1 to themselves
RANGES: dict[str, tuple[float, float]] = {
    "logc": (0.0, 4.7),  # log(1 + coinsurance in percent), at most log 101
    "idp": INDICATOR,  # plan with an individual deductible
    "fmde": (0.0, 8.5),  # log of the maximum expenditure offer over the coinsurance
    "lpi": (0.0, 7.5),  # log of the participation incentive in dollars
    "mhi": (50.0, 100.0),  # mental health index; 100 is best by definition
    "disea": (0.0, 30.0),  # chronic diseases, a weighted count
    "physlm": INDICATOR,  # physical limitation
    "xghindx": (40.0, 100.0),  # general health index; 100 is best by definition
    "hlthg": INDICATOR,  # self-rated health: good
    "hlthf": INDICATOR,  # fair
    "hlthp": INDICATOR,  # poor
    "tookphys": INDICATOR,  # took the physical at enrolment
    "xage": (0.0, 67.0),  # years; nobody enrolled above 62, for at most five years
    "female": INDICATOR,
    "child": INDICATOR,
    "fchild": INDICATOR,  # female child
    "black": INDICATOR,  # of the head of the household
    "income": (0.0, 16_000.0),  # of the family, dollars of the time
    "educdec": (6.0, 18.0),  # school years of the one who decides
    "lfam": (0.0, 2.5),  # log of the family's size
    "year": (1.0, 5.0),  # of the study
}
# Visits do not rise or fall evenly with age: infants have many, schoolchildren few. Each of these inputs is near 1
# around its age and 0 far from it, exp(-(age - centre)^2 / (2 width^2)); the centres and widths are in years.
AGES = {"age_0": (0.0, 3.0), "age_6": (6.0, 4.0), "age_15": (15.0, 6.0), "age_30": (30.0, 8.0)}
FEATURES = (*RANGES, *AGES)
TARGET = "mdvis"
PERSON = "zper"

Pair = tuple["torch.Tensor", "torch.Tensor"]


@dataclass(frozen=True)
class RandHie:
    """Records to train on, one pair per site, and records of other people to test on."""

    clients: list[Pair]  # inputs (n_p, 25) and targets (n_p, 1), float32
    test: Pair
    people: list[np.ndarray]  # zper of each training record, one array per site
    test_people: np.ndarray
    features: tuple[str, ...] = FEATURES


def load() -> RandHie:
    """Return the table as six clients and a test part: a fifth of the people, none of whom is in both.

    On which side a person is depends on the identifier alone (a hash), so it is the same everywhere and always:
    3543, 3243, 1930, 2443, 2090 and 2856 person-years to train on, 4085 to test on.
    """
    import torch

    table = read_table()
    people = table[PERSON].numbers().astype(np.int64)
    held_out, site_of = fifth_of(people) == TEST_FIFTH, table["site"].numbers()
    targets = torch.from_numpy(np.log1p(table[TARGET].numbers().astype(np.float32)).reshape(-1, 1))
    inputs = scale(table)
    clients, names = [], []
    for site in SITES:
        rows = np.flatnonzero((site_of == site) & ~held_out)
        clients.append((inputs[rows], targets[rows]))
        names.append(people[rows])
    rows = np.flatnonzero(held_out)
    return RandHie(clients, (inputs[rows], targets[rows]), names, people[rows])


def read_table() -> Frame:
    """Return the table: inputs, target, site and person."""
    return read_tables(TABLE)


def scale(table: Frame) -> torch.Tensor:
    """Return the inputs, scaled by public constants alone: each within [-1, 1]."""
    import torch

    columns = []
    for name, (low, high) in RANGES.items():
        values = table[name].numbers()
        scaled = (np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)
        columns.append(np.nan_to_num(scaled, nan=0.0))
    age = np.nan_to_num(table["xage"].numbers(), nan=sum(RANGES["xage"]) / 2)
    columns += [np.exp(-np.square((age - centre) / width) / 2) for centre, width in AGES.values()]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def fifth_of(people: np.ndarray, salt: str = "test") -> np.ndarray:
    """Return a number from 0 to 4 for each person, evenly spread, that depends on the identifier alone."""
    unique, where = np.unique(people, return_inverse=True)
    digests = [hashlib.sha256(f"{salt}:{person}".encode()).digest() for person in unique.tolist()]
    return np.array([int.from_bytes(digest[:8], "big") % 5 for digest in digests])[where]
