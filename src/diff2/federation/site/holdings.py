"""The records that a site takes part with: read once for an agreement, and as many as its policy says."""

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import Diff2Error
from ...privacy.release import ADD_OR_REMOVE_ONE
from ..agreement import AnyAgreement
from ..faults import Refusal
from .policy import Policy
from .records import SiteRecords
from .table_records import TableRecords


@dataclass
class Holdings:
    """What a site holds, as an agreement asks for it. Why it cannot be read is for the site's own log."""

    load: Callable[[AnyAgreement], SiteRecords | TableRecords]  # returns the records, encoded for an agreement
    policy: Policy
    log: Callable[[str], None]  # takes what may quote them
    loaded: tuple[str, SiteRecords | TableRecords] | None = None  # and the digest of the agreement

    def records(self, agreement: AnyAgreement) -> SiteRecords | TableRecords:
        """Return the records this site trains on."""
        if self.loaded is None or self.loaded[0] != agreement.digest:
            try:
                records = self.load(agreement)
            except Diff2Error as error:
                self.log(f"the records cannot be read: {error}")
                raise Refusal("the site's records cannot be read as agreed; see its site.log") from None
            for note in records.notes:
                self.log(note)
            self.loaded = (agreement.digest, records)
        records, reported = self.loaded[1], self.policy.reported_size
        poisson = agreement.adjacency == ADD_OR_REMOVE_ONE and reported is not None
        if not poisson and records.records < max(self.policy.smallest_size, reported or 1):
            raise Refusal("the site has fewer records than its policy requires")
        return records if reported is None else records.first(reported)

    def size(self, agreement: AnyAgreement) -> int:
        """Return the number of records, or of units of a fit, that the site reports."""
        reported = self.policy.reported_size
        poisson = agreement.adjacency == ADD_OR_REMOVE_ONE
        return reported if poisson and reported is not None else self.records(agreement).size
