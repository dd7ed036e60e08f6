"""A ledger that was changed anywhere is refused, with line and field; what cannot be recomputed is on a list."""

import json
import subprocess
import sys

import pytest

import diff2
from catalogue import CATALOGUE, NO_NOISE, PRIVATE, run
from commands import diff2_here
from diff2.errors import LedgerError
from diff2.planning.verify import _noise_std, verify
from diff2.privacy.lines import read_release
from diff2.privacy.release import Release
from ledgers import KINDS, OF_FITS, changed_lines, lines_of, rearranged
from stubs import rechained

# What whoever also computes the chain anew can change in a single place: nothing else in the file repeats it.
FREE = {
    "version",
    "engine",
    "columns",
    "run_file",
    "algorithm.early_restarts",  # with an interval of up to 3, as here; the test below has a longer one
    *(f"algorithm.{name}" for name in ("routine", "clip_smoothness", "cap", "least_gain", "local_learning_rate")),
}
FREE_OF_FITS = {  # what is asked for; of a choice, among how many
    *("algorithm.task", "algorithm.candidates", "purpose", "dimension"),
}


def outcome(path, lines):
    """What is wrong with a ledger of these lines; None: nothing."""
    path.write_text("\n".join(lines) + "\n")
    try:
        verify(path)
    except LedgerError as error:
        return str(error)
    return None


def numbers_of(lines):
    """The header, the first and the last release, and the end."""
    return sorted({1, 2, len(lines) - 1, len(lines)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_anywhere_is_an_error_with_line_and_field(kind, tmp_path):
    """Of 2,771 such changes in twelve of these ledgers, 1,253 passed before lines were chained and recomputed."""
    lines, file = lines_of(kind), tmp_path / "ledger.jsonl"
    assert outcome(file, lines) is None
    for number in numbers_of(lines):
        for path, changed in dict(changed_lines(lines, number)).items():  # one per field: a chain knows no values
            message = outcome(file, changed) or ""
            assert f"line {number}" in message, (number, path)
            assert any(name in message for name in path), (number, path, message)


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_with_a_new_chain_is_on_the_list(kind, tmp_path):
    lines, file, passed = lines_of(kind), tmp_path / "ledger.jsonl", set()
    for number in numbers_of(lines):
        for path, changed in changed_lines(lines, number):
            if path != ("chain",) and outcome(file, rechained(changed)) is None:
                passed.add(".".join(path))
    known = FREE | FREE_OF_FITS if kind.startswith(OF_FITS) else FREE
    unknown = {name for name in passed if not any(name == free or name.startswith(f"{free}.") for free in known)}
    assert not unknown
    assert {"version", "engine"} <= passed


def test_early_restarts_that_move_a_gradient_cannot_be_claimed_or_denied(tmp_path):
    lines, file = lines_of("diff2, early restarts"), tmp_path / "ledger.jsonl"
    for changed in [lines[0].replace('"early_restarts": true', '"early_restarts": false')]:
        assert changed != lines[0]
        assert "gradient" in (outcome(file, rechained([changed, *lines[1:]])) or "")


@pytest.mark.parametrize("kind", ["diff2", "dpfedavg"])
def test_lines_that_are_removed_doubled_or_swapped_are_an_error_with_the_line(kind, tmp_path):
    lines, file = lines_of(kind), tmp_path / "ledger.jsonl"
    for what, number, changed in rearranged(lines):
        assert f"line {number}" in (outcome(file, changed) or ""), (what, number)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_has_a_ledger_that_fits(kind, tmp_path):
    lines = lines_of(kind)
    for kept in (1, 2, len(lines) - 1):
        assert outcome(tmp_path / "ledger.jsonl", lines[:kept]) is None


@pytest.mark.parametrize("name", sorted({*CATALOGUE} - {*KINDS}))
def test_the_ledger_of_every_algorithm_fits(name, tmp_path):
    run(name, budget=PRIVATE, directory=tmp_path)
    assert verify(tmp_path / "ledger.jsonl").unchecked == ()


@pytest.mark.parametrize("options", [{"budget": NO_NOISE}, {"budget": PRIVATE, "accounting": "paper"}], ids=str)
@pytest.mark.parametrize("name", ["diff2", "recursive, client", "srnsgd"])
def test_a_run_without_noise_and_one_with_the_papers_have_ledgers_that_fit(name, options, tmp_path):
    run(name, directory=tmp_path, **options)
    verify(tmp_path / "ledger.jsonl")


def test_a_run_does_not_end_in_the_middle_of_a_round(tmp_path):
    lines = lines_of("dpfedavg")  # six releases a round
    for kept, ends in ((7, True), (8, False), (12, False), (13, True)):
        end = json.loads(lines[-1])
        end["guarantee"]["releases"] = kept - 1
        message = outcome(tmp_path / "ledger.jsonl", rechained([*lines[:kept], json.dumps(end)]))
        assert ("middle of round" not in message) == ends  # what remains to be said is that epsilon differs


def test_an_algorithm_that_is_not_installed_is_said(tmp_path):
    lines = [line.replace('"name": "dpgd"', '"name": "lazy"') for line in lines_of("dpgd")]
    lines[-1] = lines[-1].replace('"algorithm": "dpgd"', '"algorithm": "lazy"')
    file = tmp_path / "ledger.jsonl"
    file.write_text("\n".join(rechained(lines)) + "\n")
    found = verify(file)
    assert len(found.unchecked) == 3
    assert all("'lazy' is not installed" in what for what in found.unchecked)
    result = diff2_here("account", file)
    assert result.exit_code == 0
    assert result.stderr.count("not checked") == 3
    for field in ("budget", "client_sizes", "planned", "trust"):
        for again in (lines, lines[:-1]):
            damaged = [json.dumps({**json.loads(again[0]), field: 7}), *again[1:]]
            assert "line 1" in (outcome(file, rechained(damaged)) or "")


def test_verifying_needs_no_tensors(tmp_path):
    files = [tmp_path / f"{number}.jsonl" for number in range(len(KINDS))]
    for file, kind in zip(files, KINDS, strict=True):
        file.write_text("\n".join(lines_of(kind)) + "\n")
    code = """
import sys
from diff2.planning.verify import _noise_std, verify
from diff2.privacy.lines import read_release
from diff2.privacy.release import Release
for file in sys.argv[1:]:
    verify(file)
    assert "torch" not in sys.modules, file
"""
    subprocess.run([sys.executable, "-c", code, *files], check=True)


def test_edits_that_passed_before_are_status_1(tmp_path):
    """The five of the report that found them, as they were made."""
    lines, file = lines_of("recursive, 2 of 3 clients"), tmp_path / "ledger.jsonl"
    edits = [
        ("multiplier", lambda fields: fields | {name: fields[name] * 10 for name in ("multiplier", "noise_std")}),
        ("sensitivity", lambda fields: fields | {"sensitivity": fields["sensitivity"] / 10}),
        ("noise_std", lambda fields: fields | {"noise_std": 99.0}),
    ]
    for name, edit in edits:
        for all_lines in (True, False):
            for again in (rechained, list):
                changed = [
                    json.dumps(edit(json.loads(line))) if i and (all_lines or i == 1) else line
                    for i, line in enumerate(lines[:-1])
                ]
                file.write_text("\n".join(again([*changed, lines[-1]])) + "\n")
                result = diff2_here("account", file)
                assert result.exit_code == 1
                assert name in result.stderr
    leak = '"leaks": ["exact training metrics"]'
    leaky = [line.replace('"leaks": []', leak) for line in lines]
    leaky[-1] = leaky[-1].replace('"private": true', '"private": false')
    leaky = rechained(leaky)
    assert outcome(file, leaky) is None
    assert "NOT PRIVATE AS A WHOLE" in diff2_here("account", file).stdout
    for name, old, new in (("leaks", leak, '"leaks": []'), ("client_sizes", "[8, 12, 4]", "[800, 1200, 400]")):
        for again in (rechained, list):
            file.write_text("\n".join(again([leaky[0].replace(old, new), *leaky[1:]])) + "\n")
            result = diff2_here("account", file)
            assert result.exit_code == 1
            assert name in result.stderr


@pytest.mark.parametrize("kind", ["fit", "fit, groups, clients alike", "evaluate"])
@pytest.mark.parametrize("factor", [0.1, 0.49, 2.1])
def test_a_fit_whose_sensitivities_and_noise_were_changed_together_is_an_error(kind, factor, tmp_path):
    """Deviations agree then, and so does epsilon; a unit's vector is too long for them, or cannot be so short."""
    lines, edited = lines_of(kind), []
    for line in lines:
        fields = json.loads(line)
        if fields["kind"] == "release" and fields["mechanism"] == "gaussian":
            release = read_release({name: fields[name] for name in Release._fields})
            release = release._replace(sensitivity=release.sensitivity * factor)
            fields |= {"sensitivity": release.sensitivity, "noise_std": _noise_std(release)}
        edited.append(json.dumps(fields))
    message = outcome(tmp_path / "ledger.jsonl", rechained(edited)) or ""
    assert "line 2: sensitivity=" in message
    assert "client_sizes and weighting" in message


def test_a_resumed_run_checks_its_ledger(tmp_path):
    def crash(state, info):
        if state.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("diff2", budget=PRIVATE, directory=tmp_path, callbacks=[crash])
    file = tmp_path / "ledger.jsonl"
    lines = file.read_text().splitlines()
    for number, change in ((1, {"leaks": ["x"]}), (1, {"dimension": 99}), (3, {"noise_std": 1e9}), (3, {"step": 7})):
        changed = [
            json.dumps({**json.loads(line), **(change if i == number else {})}) for i, line in enumerate(lines, 1)
        ]
        file.write_text("\n".join(rechained(changed)) + "\n")
        with pytest.raises(diff2.Diff2Error, match=next(iter(change))):
            run("diff2", budget=PRIVATE, directory=tmp_path, resume=True)
    file.write_text("\n".join(lines) + "\n")
    run("diff2", budget=PRIVATE, directory=tmp_path, resume=True)
