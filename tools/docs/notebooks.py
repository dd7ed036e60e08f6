"""Notebooks as pages: text, code and the outputs that were kept."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

WIDTH = 96  # of a line that fits a page


def notebook_page(path: Path) -> str:
    """Return a notebook in Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_output(output) for output in cell["outputs"]]
        if len(parts) == 1:
            parts.append(f"*The notebook: [{path.name}]({path.name}).*")
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the cell above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(output.get("text") or data.get("text/plain", ""))
    lines = [
        textwrap.fill(line, WIDTH) if len(line) > WIDTH and "│" not in line else line for line in text.splitlines()
    ]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"
