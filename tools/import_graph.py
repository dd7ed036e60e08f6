"""Draw which package of the library imports which: ``python tools/import_graph.py`` writes docs/images/packages.png.

An arrow points from a package to one it imports. All arrows point down, and ``tests/test_imports.py`` keeps it so.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "diff2"
LAYERS = [
    ["cli"],
    ["federation"],
    ["runfile", "sklearn", "reporting"],
    ["training", "data", "fitting"],
    ["cohorts", "planning", "tables"],
    ["gradients", "algorithms"],
    ["models", "routines"],
    ["questions"],
    ["privacy"],
]
COLOURS = {True: "#cfe3f1", False: "#f4e2c4"}  # without PyTorch, and with it
WITHOUT_TORCH = {
    *("privacy", "questions", "routines", "algorithms", "planning", "data", "tables", "fitting"),
    *("sklearn", "reporting"),
}


def imports() -> Counter[tuple[str, str]]:
    """Return how many modules of a package import another package."""
    found: Counter[tuple[str, str]] = Counter()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1:
            found.update((parts[0], other) for other in packages_imported(path) - {parts[0]})
    return found


def packages_imported(path: Path) -> set[str]:
    """Return the packages that a module imports, also inside functions; not those for type checkers alone."""
    package, found = ["diff2", *path.relative_to(ROOT).parts[:-1]], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            names = [[*base, alias.name] for alias in node.names]
            found |= {name[1] for name in names if len(name) > 1 and (ROOT / name[1]).is_dir()}
    return found


def draw(target: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    lines = {
        package: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / package).rglob("*.py"))
        for layer in LAYERS
        for package in layer
    }
    figure = Figure(figsize=(7.5, 8.5), dpi=130)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 10)
    axes.set_ylim(-0.6, len(LAYERS))
    axes.axis("off")
    places = {}
    for row, layer in enumerate(LAYERS):
        for column, package in enumerate(layer):
            offset = 0.9 * (1 if row % 2 else -1) if len(layer) == 1 and package not in ("cli", "privacy") else 0
            x = 10 * (column + 1) / (len(layer) + 1) + offset
            places[package] = (x, len(LAYERS) - row - 0.5)
    for (start, end), count in imports().items():
        (x0, y0), (x1, y1) = places[start], places[end]
        bend = 0.0 if abs(y0 - y1) < 1.5 else 0.12 * (1 if x0 >= 5 else -1)
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0 - 0.25), (x1, y1 + 0.25), arrowstyle="-|>", mutation_scale=9, color="#777777",
                linewidth=0.5 + 0.12 * count, connectionstyle=f"arc3,rad={bend}", zorder=1,
            )
        )  # fmt: skip
    for package, (x, y) in places.items():
        box = FancyBboxPatch(
            (x - 1.15, y - 0.22), 2.3, 0.44, boxstyle="round,pad=0.03", facecolor=COLOURS[package in WITHOUT_TORCH],
            edgecolor="#555555", linewidth=0.8, zorder=2,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(x, y, f"{package}  {lines[package]:,}", ha="center", va="center", fontsize=10, zorder=3)
    note = "Lines of code in each package. Arrows: imports, all of them downward. Blue: works without PyTorch."
    axes.text(5, -0.3, note, ha="center", va="center", fontsize=8, color="#444444")
    figure.savefig(target)


if __name__ == "__main__":
    draw(ROOT.parent.parent / "docs" / "images" / "packages.png")
