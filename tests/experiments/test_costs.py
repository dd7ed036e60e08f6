"""What runs cost: counted from what algorithms declare, and the same as what a federation sends."""

import csv
import warnings

import pytest

from catalogue import CATALOGUE, NO_NOISE, SIZES
from commands import write_folder
from diff2 import PrivacyLeakWarning
from diff2_experiments.comparison import compare
from diff2_experiments.comparison_page import costs_of, draw_costs, loss_table, main
from diff2_experiments.costs import Cost, round_cost, total_costs
from diff2_experiments.files import read_compare_file
from diff2_experiments.store import RunStore
from federated import agreement_of, recorded_run

DIMENSION = 21  # of the catalogue's model
FILE = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
holdout = 0.25
bounds = { age = [0, 100], visits = [0, 10] }
[model]
hidden = [3]
[algorithm]
name = "diff2"
rounds = 6
restart_interval = 3
clip_gradient = 1.0
clip_smoothness = 3.0
[routine]
name = "gradient_descent"
learning_rate = 0.25
[privacy]
epsilon = 2.0
delta = 1e-4
[compare.gd]
[compare.dpgd]
[compare.dpgd.epsilon.1]
rounds = 4
[compare.diff2]
[compare.diff2_bvr]
algorithm = "diff2"
label = "DIFF2-BVR-L-SGD"
routine = { name = "bvr_local_sgd", learning_rate = 0.1, local_steps = 3, batch_size = 5, local_clip_smoothness = 3.0 }
"""


def messages_cost(name, folder):
    """What a run over three sites has sent, and the passes that its questions need."""
    _, transport = recorded_run(agreement_of(name, budget=NO_NOISE), folder)
    questions, answers, sent, passes = set(), 0, 0, {}
    for site, asked, answer in transport.exchanges:
        ((part,),) = (asked.fields["parts"],)
        questions.add((part["round"], part["kind"], part["step"]))
        answers += 1
        sent += sum(array.nbytes for message in (asked, answer) for array in message.arrays.values())
        draw = (part["round"], part["step"]) if part["batch"].keys() - {"clients"} else "all"
        for iterate in asked.arrays.values():
            passes[site, draw, iterate.tobytes()] = answer.fields["count"]
    return Cost(CATALOGUE[name].rounds, len(questions), answers, sent, sum(passes.values()))


@pytest.mark.parametrize(
    "name",
    ["dpgd", "diff2", "bvr", "recursive", "dpsgd, fixed", "dpsrm", "srnsgd, 4 batches", "dpfedavg", "dpscaffold"],
)
def test_costs_are_those_of_the_messages_of_a_federation(name, tmp_path):
    population = agreement_of(name).protection.population(SIZES)
    assert total_costs(CATALOGUE[name], population, DIMENSION, 8)[-1] == messages_cost(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpgd", Cost(1, 1, 3, 3 * (4 + 8), 24)),
        ("diff2", Cost(1, 1, 3, 3 * (4 + 4 + 8), 24)),  # the pass at the previous iterate was kept
        ("diff2, 2 of 3 clients", Cost(1, 1, 2, 2 * (4 + 4 + 8), 2 * 16)),  # who is asked now may not have been before
        ("bvr", Cost(1, 3, 5, 5 * (4 + 4 + 8), 24 + 2 * 2 * 2)),
        ("dpsrm", Cost(1, 2, 6, 3 * (4 + 8) + 3 * (4 + 4 + 8), 2 * 6)),  # one batch, two iterates
        ("dpfedavg", Cost(1, 6, 6, 6 * (4 + 8), 6 * 2)),
    ],
)
def test_a_round_in_single_precision(name, expected):
    options = {"clients_per_round": 2} if "2 of 3" in name else {}
    population = agreement_of("dpgd", **options).protection.population(SIZES)
    assert round_cost(CATALOGUE[name], population, 2, 1, 4) == expected


def test_page_of_a_tiny_comparison(tmp_path):
    folder = write_folder(tmp_path, FILE, north=60, south=44)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        main(folder / "stores", folder / "page", str(folder / "run.toml"), seeds=2)
        found = compare(read_compare_file(folder / "run.toml"), folder / "stores" / "run", epsilons=[1.0, 3.0], seeds=2)
    assert found.trained == 0
    with (folder / "page" / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 4 * 2
    stored = [run for run in RunStore(folder / "stores" / "run").runs().values() if run["algorithm"]["name"] == "dpgd"]
    mine = {(row["epsilon"], row["seed"]): row for row in rows if row["method"] == "dpgd"}
    for run in stored:
        row = mine[str(float(run["budget"])), str(run["seed"])]
        assert float(row["test_loss"]) == run["final"]["test_loss"]
        assert (row["rounds"], row["gradients"]) == (("4", "312") if run["budget"] == 1 else ("6", "468"))
    assert costs_of(found, "diff2_bvr", 3.0)[-1].answers == 6 * (2 + 2)
    lines = loss_table(found).splitlines()
    assert lines[0].startswith("| method | train, eps 1 | test, eps 1 | gradient, eps 1 | train, eps 3 |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| GD", "| DP-GD", "| DIFF2-GD", "| DIFF2-BVR-L-SGD"]
    assert "**" not in lines[2]  # GD is no private method
    assert sum(line.count("**") for line in lines) == 2 * 6
    assert "| DP-GD | 6 | 6 | 6 | 0.00 | 0.0 M |" in (folder / "page" / "comparison.md").read_text(encoding="utf-8")
    again = draw_costs(found, 3.0, folder / "again.png")
    assert again.read_bytes() == (folder / "page" / "costs-run.png").read_bytes()
    assert again.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
