"""The pages of the API: which names stand on which page. Every public name stands on one."""

from __future__ import annotations

import inspect

import diff2

PAGES: dict[str, tuple[str, str, str]] = {
    "fit": (
        "Fit a table",
        "One call from a table to a private model, and what can be asked of the model.",
        "fit FittedModel select Selected rehearse evaluate Evaluation",
    ),
    "train": (
        "Train a model",
        "Any `torch.nn.Module`, trained on the records of one or several clients.",
        "train prepare check ModelCheck Training TrainState RoundInfo TrainResult Compute mlp "
        "RunCallback MLflowCallback TensorBoardCallback",
    ),
    "privacy": (
        "Privacy",
        "What may be spent, who is protected, what it costs, and the ledger that proves it.",
        "Budget Protection plan Plan Guarantee Ledger Release",
    ),
    "algorithms": (
        "Algorithms",
        "Each makes a private estimate of the gradient in every round. [How they differ](../algorithms.md).",
        "Diff2 DPGD RecursiveDiff2 DPSGD DPSRM SRNSGD DPFedAvg DPScaffold GD ALGORITHMS",
    ),
    "routines": (
        "Routines",
        "Each turns an estimate of the gradient into a step.",
        "GradientDescent Momentum Nesterov Adam NormalizedDescent Averaging TorchOptimizer BVRLocalSGD ROUTINES",
    ),
    "extending": (
        "For extensions",
        "What an algorithm, a routine or a layer rule of your own is made of, and how it is tested.",
        "Algorithm Routine PostProcessing Question Smoothness Batch Round Estimate Population Cohort LocalCohort",
    ),
}
MORE = {  # by page: what is public in packages of its own
    "fit": [
        "diff2.tables.schema.Schema",
        "diff2.sklearn.PrivateRegressor",
        "diff2.sklearn.PrivateClassifier",
    ],
    "extending": ["diff2.gradients.Rule", "diff2.gradients.register_rule", "diff2.testing"],
}
PACKAGES = {
    "fitting": "fit", "training": "train", "models": "train", "planning": "privacy", "privacy": "privacy",
    "algorithms": "algorithms", "routines": "routines",
}  # fmt: skip
MODULES = {"algorithms", "routines"}  # their modules hold the mathematics


def api_pages() -> dict[str, str]:
    """Return the pages in Markdown, by file. A public name listed nowhere stands last on the page of its package."""
    listed = {name for _, _, names in PAGES.values() for name in names.split()}
    left: dict[str, list[str]] = {}
    for name, module in diff2._MODULE_OF.items():
        if name not in listed and module != "errors":
            left.setdefault(PACKAGES.get(module.partition(".")[0], "extending"), []).append(name)
    return {
        f"api/{page}.md": _page(page, f"# {title}\n\n{about}\n", [*names.split(), *left.get(page, [])])
        for page, (title, about, names) in PAGES.items()
    }


def path_of(name: str) -> str:
    """Return where a public name is found: not beside a module of the same name, which would be taken for it.

    >>> path_of("fit"), path_of("train")
    ('diff2.fitting.fit.fit', 'diff2.train')
    """
    home = getattr(getattr(diff2, name), "__module__", "")
    return f"{home}.{name}" if home.endswith(f".{name}") else f"diff2.{name}"


def _page(page: str, head: str, names: list[str]) -> str:
    parts, seen = [head], set()
    for name in names:
        if page in MODULES and inspect.isclass(getattr(diff2, name)):
            module = inspect.getmodule(getattr(diff2, name))
            assert module is not None
            if module.__name__ not in seen:
                seen.add(module.__name__)
                parts.append(_about(module.__name__))
        parts.append(f"::: {path_of(name)}\n")
    return "\n".join([*parts, *(f"::: {path}\n" for path in MORE.get(page, []))])


def _about(module: str) -> str:
    options = "    options:\n      members: false\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    return f"::: {module}\n{options}"
