r"""Who adds the noise, and how many sites can be counted on.

With ``noise="server"`` the sites send sums that are clipped and nothing else, and the server adds the noise. With
``noise="sites"`` every site adds its own before anything leaves it. A release needs noise of deviation :math:`\tau`; of
the m sites that are asked, at least h are honest and answer, and whoever is not honest knows its own noise and can take
it off. So each adds noise of variance

.. math::
    \tau^2 / h \quad \text{to its part of the weighted mean}, \qquad
    h = \max(1, H - (P - m)) \text{ of the m, for } H \text{ of all } P,

and the noise of any h of them together has the variance :math:`\tau^2`, whatever the weights are. (For a plain mean
over P = m sites that is :math:`P^2 \tau^2 / H` on a site's own mean.) The site whose record is protected is honest to
itself: hence h is at least one, and a site that is asked alone adds all of it.
"""

from dataclasses import dataclass

from .._validate import at_least, one_of
from ..errors import InvalidArgument

NOISES = ("server", "sites")
AGGREGATIONS = ("none", "tenseal")
MOST_SEALED = 64  # sites whose ciphertexts can be added; see federation/sealed/keys.py


@dataclass(frozen=True)
class Trust:
    """Who is trusted with what.

    Args:
        noise: who adds it: ``"server"`` or ``"sites"``.
        min_honest_sites: H: at least this many of the sites add their noise as agreed, keep it to themselves and
            answer, in every round; by default all.
        secure_aggregation: ``"tenseal"``: the server adds ciphertexts, and sees no site's answer and no sum.
    """

    noise: str = "server"
    min_honest_sites: int | None = None
    secure_aggregation: str = "none"

    def __post_init__(self) -> None:
        one_of("trust", self.noise, NOISES)
        one_of("secure_aggregation", self.secure_aggregation, AGGREGATIONS)
        at_least("min_honest_sites", self.min_honest_sites, 1, optional=True)
        if self.noise == "server" and (self.min_honest_sites is not None or self.sealed):
            raise InvalidArgument(
                "min_honest_sites and secure_aggregation are about noise that the sites add; use them with "
                "trust='sites'"
            )

    @property
    def sealed(self) -> bool:
        """Whether the server sees ciphertexts only."""
        return self.secure_aggregation != "none"

    def honest_of(self, sites: int) -> int:
        """Return H for this many sites.

        >>> Trust("sites").honest_of(3), Trust("sites", min_honest_sites=2).honest_of(3)
        (3, 2)
        """
        if self.min_honest_sites is not None and self.min_honest_sites > sites:
            raise InvalidArgument(
                f"expected min_honest_sites to be at most the number of sites, {sites}, got {self.min_honest_sites}"
            )
        if self.sealed and sites > MOST_SEALED:
            raise InvalidArgument(
                f"secure_aggregation adds up to {MOST_SEALED} sites' ciphertexts exactly, not {sites}"
            )
        return sites if self.min_honest_sites is None else self.min_honest_sites


def honest_among(honest: int, sites: int, asked: int) -> int:
    """Return h: how many of those who are asked are honest for certain, the one whose record it is included.

    >>> honest_among(5, 6, 6), honest_among(5, 6, 4), honest_among(5, 6, 1)
    (5, 3, 1)
    """
    return max(1, honest - (sites - asked))
