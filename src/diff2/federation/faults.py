"""What can go wrong between a server and its sites, one class a kind."""

from __future__ import annotations

from ..errors import Diff2Error


class FederationError(Diff2Error):
    """Base of what goes wrong between a server and its sites. Nothing was released from the question that failed."""


class SitesMissing(FederationError):
    """Sites did not answer in time, or were not there. The run is in its checkpoint and can go on when they are."""


class SiteRefused(FederationError):
    """A site declined a request, and said why."""


class BadAnswer(FederationError):
    """A site's answer cannot be what was asked for: not finite, too long, of another size, for another question."""


class BadMessage(FederationError):
    """Bytes that are not a message of this version."""


class Refusal(FederationError):
    """Raised at a site: the request is declined. The message goes to both sides and names no record."""
