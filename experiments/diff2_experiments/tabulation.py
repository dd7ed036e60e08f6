"""The tables of a reproduction: table.csv and settings.csv for machines, table.md for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .findings import Metric, Row, algorithm_text, best_value, conditions, metrics_of, notes, rows_at, tuned_at
from .formatting import markdown_line, spread_text, write_csv
from .reproduced import Reproduced

SYMBOLS = {"clip_gradient": "C1", "clip_smoothness": "C2", "restart_interval": "T", "learning_rate": "eta"}
CHOSEN = {"by_loss": "train loss", "by_gradient": "squared gradient norm"}
DASH = "–"


def write_tables(found: Reproduced, rows: Sequence[Row]) -> list[Path]:
    """Write table.csv (one line per metric), settings.csv (one line per seed) and table.md."""
    table = write_csv(found.directory / "table.csv", _table_lines(found, rows))
    settings = write_csv(found.directory / "settings.csv", _settings_lines(found))
    markdown = found.directory / "table.md"
    markdown.write_text("\n".join(_markdown(found, rows)) + "\n", encoding="utf-8")
    return [table, settings, markdown]


def _table_lines(found: Reproduced, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for metric in metrics_of(found):
            cell = row["metrics"][metric.name]
            yield {
                "data": found.name,
                "accounting": row["accounting"],
                "budget_epsilon": row["budget"] if row["private"] else None,
                "compared_at_epsilon": row["budget"],
                "method": row["method"],
                "label": row["label"],
                "metric": metric.name,
                "final_mean": cell["final"]["mean"],
                "final_sd": cell["final"]["sd"],
                "best_mean": cell["best"]["mean"],
                "best_sd": cell["best"]["sd"],
                "best_by_seed": " ".join(value_text(value) for value in cell["best"]["values"]),
                "p_value": cell["p_value"],
                "published": cell["published"],
                "published_p_value": cell["published_p_value"],
                "seeds": len(row["seeds"]),
                "diverged": cell["final"]["diverged"],
                "spent_epsilon": row["epsilon"],
                "delta": found.delta,
                "runs_tried": row["tried"],
                "grid_points": row["grid_points"],
                "usual_settings": settings_text(row["usual"][metric.by]["settings"], names=True),
                "seeds_with_usual_settings": row["usual"][metric.by]["seeds"],
            }


def _settings_lines(found: Reproduced) -> Iterator[dict[str, Any]]:
    """What each seed chose, with a column for every tuned setting of any method."""
    keys = _setting_names(found)
    for condition in conditions(found):
        for method, label in found.methods:
            for tuned in tuned_at(found, condition, method):
                for metric in metrics_of(found)[:2]:  # those that choose
                    run = getattr(tuned, metric.by)
                    yield {
                        "data": found.name,
                        "accounting": condition.accounting,
                        "budget_epsilon": tuned.budget,
                        "compared_at_epsilon": condition.epsilon,
                        "method": method,
                        "label": label,
                        "seed": tuned.seed,
                        "chosen_by": metric.name,
                        "best": best_value(run, metric),
                        "survived": run["survived"],
                        **{key: run["settings"].get(key) for key in keys},
                        "spent_epsilon": run["epsilon"],
                        "runs_tried": tuned.tried,
                        "algorithm": algorithm_text(run),
                    }


def _setting_names(found: Reproduced) -> list[str]:
    names = (name for tuned in found.tuned for run in (tuned.by_loss, tuned.by_gradient) for name in run["settings"])
    return list(dict.fromkeys(names))


def _markdown(found: Reproduced, rows: Sequence[Row]) -> Iterator[str]:
    first, *others = notes(found)
    yield from (f"# {_plain(found.title)}: the paper's experiment", "", f"> **{_plain(first)}**", "")
    yield from ("```text", found.command, "```", "")
    yield from (f"- {_plain(note)}" for note in others)
    for condition in conditions(found):
        shown = rows_at(rows, condition)
        if shown:
            yield from ("", f"## {str(condition)[0].upper()}{str(condition)[1:]}", "")
            yield from _metric_table(metrics_of(found), shown)
            yield from ("", "What the seeds chose (each of them: `settings.csv`):", "")
            yield from _settings_table(shown)


def _metric_table(metrics: Sequence[Metric], rows: Sequence[Row]) -> Iterator[str]:
    published = any(row["metrics"][metric.name]["published"] is not None for row in rows for metric in metrics)
    header = ["metric", "method", "last round", "best round", "best round, seed by seed", "p against DP-GD"]
    header += ["published", "published p"] if published else []
    yield markdown_line(header)
    yield "| --- | --- |" + " ---: |" * (len(header) - 2)
    for metric in metrics:
        for number, row in enumerate(rows):
            cell = row["metrics"][metric.name]
            cells = [metric.title if number == 0 else "", _plain(row["label"])]
            cells += [
                spread_text(cell["final"]),
                spread_text(cell["best"]),
                ", ".join(value_text(value) for value in cell["best"]["values"]),
                p_text(cell["p_value"]),
            ]
            cells += [value_text(cell["published"]), p_text(cell["published_p_value"])] if published else []
            yield markdown_line(cells)


def _settings_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| method | chosen by | most often | seeds | epsilon spent | runs tried |"
    yield "| --- | --- | --- | ---: | ---: | ---: |"
    for row in rows:
        for by, metric in CHOSEN.items():
            usual = row["usual"][by]
            cells = [_plain(row["label"]), metric, _plain(settings_text(usual["settings"]))]
            cells += [f"{usual['seeds']} of {len(row['seeds'])}", epsilon_text(row), f"{row['tried']:,}"]
            yield markdown_line(cells)


def table_cells(found: Reproduced, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return header and cells of a short table of one condition, for a terminal: last and best round, and p."""
    metrics = metrics_of(found)
    header = ["method", *(title for metric in metrics for title in (metric.title, "best", "p")), "epsilon"]
    cells = []
    for row in rows:
        line = [row["label"]]
        for metric in metrics:
            cell = row["metrics"][metric.name]
            line += [
                spread_text(cell["final"]),
                value_text(cell["best"]["mean"]),
                p_text(cell["p_value"]),
            ]
        cells.append([*line, epsilon_text(row)])
    return header, cells


def value_text(value: float | None) -> str:
    """Return a number with four digits, or a dash."""
    return DASH if value is None else f"{value:.4g}"


def p_text(value: float | None) -> str:
    """Return a p-value with two digits, or a dash where there is none.

    >>> p_text(0.04321), p_text(0.99999), p_text(3e-9), p_text(None)
    ('0.043', '1.0', '< 1e-4', '–')
    """
    if value is None:
        return DASH
    return "< 1e-4" if value < 1e-4 else f"{value:.2g}" if value < 0.995 else "1.0"


def epsilon_text(row: Row) -> str:
    """Return the epsilon spent, or a dash for a method without privacy."""
    return DASH if row["epsilon"] is None else f"{row['epsilon']:.4g}"


def settings_text(settings: Mapping[str, Any], *, names: bool = False) -> str:
    """Return tuned settings in one line, by the paper's symbols or by their names.

    >>> settings_text({"clip_gradient": 3.0, "restart_interval": 20, "learning_rate": 0.0625})
    'C1 3, T 20, eta 0.0625'
    """
    return ", ".join(
        f"{name}={number_text(value)}" if names else f"{SYMBOLS.get(name, name)} {number_text(value)}"
        for name, value in settings.items()
    )


def number_text(value: Any) -> str:
    """Return a number without needless digits, and anything else as it prints."""
    return f"{value:g}" if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def _plain(text: str) -> str:
    """Keep text from being taken for the columns or lines of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
