"""What is wrong with a built site: links that lead nowhere, and anything that a browser would fetch elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
OWN_ERROR_PAGE = "404.html"  # its links are absolute, as a server needs them


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in FETCHED and FETCHED[tag] in found and found.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(found[FETCHED[tag]])


def problems(site: Path) -> list[str]:
    """Return one line for each link without a target and each file that is not part of the site."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == OWN_ERROR_PAGE:
            continue
        name = path.relative_to(site)
        outside = [url for url in page.fetched if urlsplit(url).scheme in ("http", "https") or url.startswith("//")]
        found += [f"{name}: {url} would be fetched from the network" for url in outside]
        for url in [*page.links, *(one for one in page.fetched if one not in outside)]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or url in ("", "#") or parts.fragment.startswith("__"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name}: {url} leads to no file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {url} leads to no place on that page")
    return found
