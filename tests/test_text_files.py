"""Text files are read and written in a stated encoding, so that they mean the same on every system."""

import ast
from pathlib import Path

import diff2

ROOT = Path(diff2.__file__).parents[2]
FILES = sorted(
    path for folder in ("src", "experiments", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
)


def without_encoding(source):
    """Return the lines of a module that open a text file and do not say in which encoding."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(word.arg in ("encoding", None) for word in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        opens = isinstance(node.func, ast.Name) and name == "open"
        if "utf-8" in modes:
            continue
        if name in ("read_text", "write_text") or (opens and not any("b" in mode for mode in modes[-1:])):
            found.append(node.lineno)
    return found


def test_text_files_have_an_encoding():
    assert len(FILES) > 300
    found = {path.relative_to(ROOT): without_encoding(path.read_text(encoding="utf-8")) for path in FILES}
    assert [(str(path), lines) for path, lines in found.items() if lines] == []


def test_a_missing_encoding_is_seen():
    source = "p.read_text()\nopen(p)\nopen(p, 'wb')\nopen(p, 'w', encoding='utf-8')\np.write_text(x)\nopen(p, 'w')\n"
    assert sorted(without_encoding(source)) == [1, 2, 5, 6]
