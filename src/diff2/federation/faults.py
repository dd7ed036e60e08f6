"""What can go wrong between a server and its sites, one class per kind."""

from __future__ import annotations

from ..errors import Diff2Error


class FederationError(Diff2Error):
    """Base of what goes wrong between a server and its sites. Nothing was released from the question that failed."""


class SitesMissing(FederationError):
    """Sites were not connected, or did not answer in time. The run can be resumed from its checkpoint."""


class SiteRefused(FederationError):
    """A site declined a request and gave a reason."""


class BadAnswer(FederationError):
    """A site's answer cannot be right: not finite, too long, of the wrong size, or for another question."""


class BadMessage(FederationError):
    """Bytes that are not a message of this version."""


class CannotWrite(FederationError):
    """A file of a run, or of a site, cannot be written, say because the disk is full."""

    @classmethod
    def of(cls, what: str, error: OSError) -> CannotWrite:
        """Return the error for ``what``; it names no path."""
        return cls(f"it cannot write {what} ({error.strerror or type(error).__name__})")


class Refusal(FederationError):
    """Raised at a site to decline a request. The message goes to both sides and names no record."""
