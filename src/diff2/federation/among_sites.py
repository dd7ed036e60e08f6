"""What agreements on a run and on a fit have in common: their sites, and the digest that a site approves."""

import hashlib
import json
from typing import Any

from .._validate import at_least
from ..errors import InvalidArgument


class AmongSites:
    """An agreement among named sites, of which some may be missing."""

    sites: tuple[str, ...]
    minimum_sites: int | None

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise InvalidArgument(f"expected sites to be different names, got {list(self.sites)!r}")
        if self.minimum_sites is not None:
            at_least("minimum_sites", self.minimum_sites, 1)

    @property
    def required_sites(self) -> int:
        """How many sites must take part."""
        return len(self.sites) if self.minimum_sites is None else self.minimum_sites

    @property
    def digest(self) -> str:
        """The SHA-256 that a site approves: of everything that decides what leaves it, except its records."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        raise NotImplementedError
