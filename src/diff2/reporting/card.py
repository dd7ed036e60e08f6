"""A model card in Hugging Face's format: metadata in YAML, then Markdown. It is made of the facts alone."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .page import Facts, number, up

TASKS = {"regression": "tabular-regression", "counts": "tabular-regression", "classes": "tabular-classification"}
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>&~-])")


def card(facts: Facts) -> str:
    """Return the card; a broken run has none."""
    verdict, found = facts["verdict"], facts.get("guarantee")
    if found is None:
        return f"# {marked(facts['run'])}\n\n**{marked(verdict['words'])}**: {marked(verdict['reason'])}\n"
    private = verdict["status"] == 0
    lines = ["---", *_metadata(facts), "---", "", f"# {marked(facts['run'])}", ""]
    lines += ["> [!NOTE]" if private else "> [!WARNING]", f"> {marked(verdict['words'])}", ""]
    lines += [f"- leak: {marked(leak)}" for leak in verdict["leaks"]]
    lines += ["## Privacy", "", marked(found["sentence"]), ""]
    lines += ["| protected together | " + " | ".join(f"epsilon at {delta:g}" for delta in found["deltas"]) + " |"]
    lines += ["| --- |" + " ---: |" * len(found["deltas"])]
    lines += [f"| {row['units']} | " + " | ".join(map(number, row["epsilon"])) + " |" for row in found["groups"]]
    lines += ["", "Best guess at who is in the data: " + "; ".join(map(_guess, found["guesses"])) + "."]
    lines += ["", f"Not protected: {marked('; '.join(found['not_protected']))}.", "", "## Intended use", ""]
    lines += ["Inputs and bounds that everybody may know; values outside count as the nearest bound.", ""]
    lines += ["| column | role | kind | from |", "| --- | --- | --- | --- |"]
    for one in facts["columns"] or []:
        lines.append("| " + " | ".join(marked(one[key]) for key in ("name", "role", "kind", "source")) + " |")
    quality = facts["quality"]
    measured = "Not measured." if quality is None else f"{marked(quality['sentence'])}; {marked(quality['where'])}."
    lines += ["", "## Evaluation", "", measured, "", "## How to check", ""]
    lines += ["`diff2 verify` recomputes the guarantee from `ledger.jsonl`; it needs no records.", ""]
    return "\n".join(lines)


def marked(value: object) -> str:
    """Return a text for Markdown, on one line, with nothing in it that Markdown or HTML would act on."""
    shown = "".join(one if one.isprintable() else " " for one in str(value))
    return SPECIAL.sub(r"\\\1", shown).replace("\\&", "&amp;").replace("\\<", "&lt;").replace("\\>", "&gt;")


def _guess(one: Mapping[str, Any]) -> str:
    return f"{up(one['true_positives'])} found at most with {up(one['false_positives'])} false alarms"


def _metadata(facts: Facts) -> list[str]:
    """Return lines of YAML; texts are JSON strings, which YAML reads as they are."""
    found, kinds = facts["guarantee"], [one["kind"] for one in facts["columns"] or [] if one["role"] == "target"]
    task = next((TASKS[kind] for kind in kinds if kind in TASKS), "tabular-regression" if kinds else None)
    values = {
        "library_name": "diff2",
        "tags": ["diff2", "tabular", *(["differential-privacy"] if facts["verdict"]["status"] == 0 else [])],
        **({} if task is None else {"pipeline_tag": task}),
        "differential_privacy": {
            **{key: found[key] for key in ("epsilon", "delta", "unit", "adjacency")},
            "verdict": facts["verdict"]["words"],
        },
    }
    return [f"{key}: {json.dumps(value)}" for key, value in values.items()]
