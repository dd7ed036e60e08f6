"""What can go wrong, one class per kind, so that a caller can tell them apart.

Every message names the argument, the value it had, and what to do about it.
"""


class Diff2Error(Exception):
    """Base of every error raised on purpose by this library."""


class InvalidArgument(Diff2Error, ValueError):
    """An argument, a table or a file has a value that cannot be used. Raised before any budget is spent."""


class UnsupportedModel(InvalidArgument):
    """The model cannot be trained with a per-record guarantee, for example because it mixes records."""


class BudgetExceeded(Diff2Error):
    """What was asked for costs more privacy than the budget allows."""


class LedgerError(Diff2Error):
    """A ledger file cannot be read, or contradicts what is about to be released."""


class CheckpointError(Diff2Error):
    """A checkpoint belongs to another run, other data or another configuration, or cannot be read."""


class PrivacyLeakError(Diff2Error):
    """A leak that was asked for under ``strict=True``."""


class PrivacyLeakWarning(UserWarning):
    """A value that depends on the records leaves without noise, because the caller asked for it by name."""


class WeakDeltaWarning(UserWarning):
    """A delta so large that the guarantee means little."""


class WeakEpsilonWarning(UserWarning):
    """An epsilon so large that the guarantee means little."""


class CompositionWarning(UserWarning):
    """Several fits on the same records: together they cost more than the guarantee of each says."""


class WeakModelWarning(UserWarning):
    """So few records for the budget that the model is expected to be little better than a constant."""


class NoGainWarning(UserWarning):
    """With this budget, DIFF2 is expected to be no better than DP-GD, and DP-GD is what runs."""


class GradientFallbackWarning(UserWarning):
    """The fast gradient engine has no rule for this model; a slower one, equally private, is used."""


def unusable(argument: str) -> InvalidArgument:
    """Return the one error for records whose values cannot be used: it is the same whichever they are."""
    return InvalidArgument(
        f"{argument} hold values that cannot be used, and which ones is not said: every input and target must be a "
        "finite number in the precision of the model, every class number from 0 to below the model's outputs, every "
        "index within the model's embedding. Check the records before training"
    )
