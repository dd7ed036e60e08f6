"""A run file of two sites, and their tables."""

import pandas

from commands import training

RUN = (
    """
[data]
target = "visits"
task = "regression"
columns = ["age", "income"]
bounds = { age = [0, 100], income = [0, 1], visits = [0, 20] }
"""
    + training(rounds=5)
    + """[privacy]
epsilon = 2.0
delta = 1e-3
[federation]
sites = ["north", "south"]
timeout = 20
"""
)
TABLES = {
    "north": pandas.DataFrame({"age": [20, 40, 60, 80], "income": [0.1, 0.2, 0.3, 0.4], "visits": [1, 2, 3, 4]}),
    "south": pandas.DataFrame(
        {"ALTER": [30, 50, 70], "income": [0.3, 0.2, 0.1], "visits": [0, 5, 25], "age": [9, 9, 9]}
    ),
}


def write_run(folder, text=RUN):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def write_sites(folder, policy="epsilon = 2.0\ndelta = 1e-3"):
    for name, table in TABLES.items():
        (folder / name).mkdir(parents=True)
        table.to_csv(folder / name / "table.csv", index=False)
        columns = '[data.columns]\nage = "ALTER"\n' if name == "south" else ""
        text = f'[data]\nfile = "table.csv"\n{columns}[policy]\n{policy}\n'
        (folder / name / "site.toml").write_text(text, encoding="utf-8")
    return folder
