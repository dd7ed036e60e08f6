"""``diff2 init`` and ``diff2 run-schema``: a file to begin with, refused until it is filled in, and its schema."""

import gzip
import json
import tomllib

import pytest
from test_reader import GOOD

import diff2
from commands import diff2_here, single_line, write_folder
from diff2.algorithms import ALGORITHMS
from diff2.routines import ROUTINES
from diff2.runfile.json_schema import run_file_schema

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def fits(value, schema):
    """Whether a value fits a JSON Schema of the few words that ours uses."""
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(fits(value, one) for one in schema["oneOf"]) != 1:
        return False
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        if not set(schema.get("required", ())) <= set(value):
            return False
        return all((other is not False or key in known) and fits(item, known.get(key, other or {}))
                   for key, item in value.items())  # fmt: skip
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        each = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return all(map(fits, value, each))
    return True


def test_the_schema_fits_run_files_and_no_typos():
    schema, good = run_file_schema(), tomllib.loads(GOOD)
    assert fits(good, schema)
    assert json.loads(diff2_here("run-schema").stdout) == json.loads(json.dumps(schema))
    for table, key, value in (
        ("privacy", "epsilon", "much"),
        ("privacy", "eps", 1.0),
        ("algorithm", "rounds", 2.5),
        ("algorithm", "name", "dif2"),
        ("routine", "learning-rate", 1.0),
        ("model", "activation", "softpls"),
        ("data", "bounds", {"age": [0, 1, 2]}),
        ("dta", "x", 1),
    ):
        wrong = {**good, table: {**good.get(table, {}), key: value}}
        assert not fits(wrong, schema), (table, key)
    without = {name: table for name, table in good.items() if name != "privacy"}
    assert not fits(without, schema)


def test_the_schema_knows_every_algorithm_and_routine():
    tables = run_file_schema()["properties"]
    for table, classes in (("algorithm", ALGORITHMS), ("routine", ROUTINES)):
        assert [one["properties"]["name"]["const"] for one in tables[table]["oneOf"]] == sorted(classes)
    columns = tables["data"]["anyOf"][0]["properties"]["columns"]
    assert columns["description"].startswith("the inputs, in order")


def test_a_draft_reads_names_alone_and_is_refused_until_it_is_filled_in(tmp_path):
    write_folder(tmp_path, "", north=60, south=45)
    for name in ("north", "south"):  # values that would be seen
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], "77777,1,3", *lines[1:]]) + "\n")
    result = diff2_here("init", tmp_path / "north.csv", tmp_path / "south.csv", "--target", "visits")
    assert result.exit_code == 0, result.stderr
    assert "77777" not in result.stdout
    file = tmp_path / "run.toml"
    file.write_text(result.stdout)
    refused = diff2_here("plan", file)
    assert refused.exit_code == 1
    for column in ("age", "smoker", "visits"):
        assert f"[data] bounds.{column}[0]: expected a number, got 'LOW'" in refused.stderr
    file.write_text(result.stdout.replace('["LOW", "HIGH"]', "[0, 100]"))
    document = json.loads(diff2_here("plan", file, "--json").stdout)
    assert (document["algorithm"], document["client_sizes"]) == ("diff2", [61, 46])
    text = file.read_text().replace("rounds = 400", "rounds = 4")
    file.write_text(text)
    done = diff2_here("train", file, "--out", tmp_path / "run", "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    assert diff2.Ledger.read(tmp_path / "run" / "ledger.jsonl").guarantee().private
    assert fits(tomllib.loads(text), run_file_schema())


def test_names_of_any_kind_and_classes(tmp_path):
    name = 'a "b"\\ = [1]\t#'
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write('"a ""b""\\ = [1]\t#",kind\n1,x\n')
    result = diff2_here("init", tmp_path / "t.csv.gz", "--target", "kind", "--task", "classification")
    assert tomllib.loads(result.stdout)["data"]["bounds"] == {name: ["LOW", "HIGH"]}
    assert tomllib.loads(result.stdout)["data"]["classes"] == []
    wrong = diff2_here("init", tmp_path / "t.csv.gz", "--target", "knd")
    assert "did you mean 'kind'?" in single_line(wrong.stderr)
    assert diff2_here("init", tmp_path / "none.csv", "--target", "kind").exit_code == 1


@pytest.mark.parametrize("suffix", ["parquet", "pq"])
def test_a_parquet_file(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    import pandas

    pandas.DataFrame({"x": [1.5], "y": [2.5]}).to_parquet(tmp_path / f"t.{suffix}")
    found = tomllib.loads(diff2_here("init", tmp_path / f"t.{suffix}", "--target", "y").stdout)
    assert found["data"]["columns"] == ["x"]
