"""A server that varies what it asks about learns nothing of the records from what is refused."""

from dataclasses import replace

import pytest

from diff2.data.scaling import Encoding, Scaling
from diff2.federation.site.ledger import read_site_ledger
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.request import DESCRIBE
from federated import own_noise, tell

AGES, VISITS = [31.25, 47.5, 68.75, 90.125], [3.0, 0.0, 17.0, 12.0]
DIAGNOSES = ["J06", "E11", "B20", "J06"]
CODES = ("A00", "B20", "C34", "E11", "I10", "J06")


@pytest.fixture
def site(tmp_path):
    rows = ["age,visits,diagnosis", *(f"{a},{v},{d}" for a, v, d in zip(AGES, VISITS, DIAGNOSES, strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    text = '[data]\nfile = "table.csv"\n[policy]\nepsilon = 0.1\ndelta = 1e-3\nrequire_own_noise = true\n'
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    return site_from_file("north", read_site_file(tmp_path / "site.toml"))


class Server:
    """Asks the site to describe itself for one encoding after the other, and never opens a run."""

    def __init__(self, site):
        self.site, self.messages, self.kinds = site, 0, set()

    def fits(self, inputs, target, scaling, classes=None):
        """Whether the site goes along with an encoding."""
        asked = own_noise("diff2", seed=None)
        asked = replace(
            asked,
            encoding=Encoding(inputs, target, scaling, classes),
            privacy=replace(asked.privacy, epsilon=0.05),
            run=replace(asked.run, dtype="float32"),
        )
        answer = tell(self.site, DESCRIBE, agreement=asked.to_json())
        self.messages += 1
        self.kinds.add(answer.kind)
        return answer.kind == "description"

    def largest(self, column, sign=1.0):
        """Bisect for the largest value of a column: a scale so small that whatever is above the guess overflows."""
        low, high = 0.0, 128.0
        while high - low > 2**-10:
            guess = (low + high) / 2
            offset = guess if sign > 0 else 128.0 - guess
            one_sided = Scaling(offset, 1e-45, **{"low" if sign > 0 else "high": offset})
            if self.fits({column: one_sided}, "visits" if column == "age" else "age", Scaling()):
                high = guess
            else:
                low = guess
        return high if sign > 0 else 128.0 - high


def test_refusals_depend_on_no_value(site):
    server = Server(site)
    extremes = [server.largest(column, sign) for column in ("age", "visits") for sign in (1.0, -1.0)]
    classes = [
        code for code in CODES if not server.fits({"age": Scaling()}, "diagnosis", None, tuple({*CODES} - {code}))
    ]
    found = read_site_ledger(site.ledger.path)
    assert not found.runs
    assert server.kinds == {"refusal"}, f"{server.messages} messages and 0 runs told {extremes} and {classes}"
