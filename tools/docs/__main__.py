"""Gather pages, generate the others, build, make it readable from a folder, and check every link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .api import api_pages
from .check import problems
from .commands import commands_page
from .errors import errors_page
from .llms import llms_txt
from .notebooks import notebook_page
from .run_file import run_file_keys

ROOT = Path(__file__).parent.parent.parent
PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
SHIM = re.compile(r'<script[^>]*src="https:[^"]*/iframe-worker/shim"[^>]*></script>')


def gather() -> None:
    """Copy docs/ and write the generated pages beside it."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    front = re.sub(r"\]\((examples/[\w-]+)\.ipynb", r"](\1.md", re.sub(r"\]\(docs/", "](", front))
    (PAGES / "index.md").write_text(front, encoding="utf-8")
    shutil.copytree(ROOT / "examples", PAGES / "examples")
    for notebook in (PAGES / "examples").glob("*.ipynb"):
        notebook.with_suffix(".md").write_text(notebook_page(notebook), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (PAGES / name.lower()).write_text(re.sub(r"\]\(docs/", "](", text), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"\((?:\.\./)?(CONTRIBUTING|CHANGELOG)\.md", lambda found: f"({found[1].lower()}.md", text)
        page.write_text(text, encoding="utf-8")
    generated = {"commands.md": commands_page(), "run-file-keys.md": run_file_keys(), "errors.md": errors_page()}
    for name, text in {**generated, **api_pages()}.items():
        (PAGES / name).parent.mkdir(exist_ok=True)
        (PAGES / name).write_text(text, encoding="utf-8")


def build() -> None:
    """Run Zensical; a warning ends it."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    subprocess.run(command, check=True, cwd=ROOT)


def make_offline() -> None:
    """Let search work from a folder, without the script that Zensical would take from a server for it."""
    for page in SITE.rglob("*.html"):
        depth = len(page.relative_to(SITE).parts) - 1
        local = f'<script src="{"../" * depth}js/search-from-folder.js"></script>'
        page.write_text(SHIM.sub(local, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    """Return the exit status: 1 where a link leads nowhere or a page asks for the network."""
    gather()
    build()
    make_offline()
    (SITE / "llms.txt").write_text(llms_txt(PAGES, ROOT / "mkdocs.yml"), encoding="utf-8")
    found = problems(SITE)
    for one in found:
        print(one, file=sys.stderr)
    if not found:
        print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages, every link checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
