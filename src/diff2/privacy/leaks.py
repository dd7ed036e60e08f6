"""Leaks that are asked for by name: each kind has a code, which its warning names, and a page under docs/leaks/.

A ledger keeps the words, in which a leak is named once; :func:`code_of` finds the code to them.
"""

import warnings

from ..errors import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning

# code -> how the words in a ledger begin, or what they hold; none: it is in no ledger
CODES: dict[str, tuple[str, ...]] = {
    "LEAK-SCALING": ("scaling of ",),
    "LEAK-CLASSES": ("the list of classes of ",),
    "LEAK-METRICS": ("exact training metrics",),
    "LEAK-SIZES": ("the exact number of records ",),
    "LEAK-SCHEMA": (" are read off the data; ",),
    "LEAK-NO-NOISE": (),
    "LEAK-SEED": (),
    "LEAK-DRAFT": (),
    "LEAK-CHECK": (),
    "LEAK-SCORE": (),
    "LEAK-DECLARED": (),
}
DECLARED = "LEAK-DECLARED"  # by the caller, in words that are not ours


def code_of(name: str) -> str:
    """Return the code of a leak that a ledger or a caller names.

    >>> code_of("scaling of 'age' by the data's own mean and deviation"), code_of("I looked at the records")
    ('LEAK-SCALING', 'LEAK-DECLARED')
    """
    for code, words in CODES.items():
        if any(name.startswith(word) or (word.startswith(" ") and word in name) for word in words):
            return code
    return DECLARED


def leak(code: str, message: str, *, strict: bool, stacklevel: int = 3) -> None:
    """Warn of a leak that was asked for, or refuse it under ``strict``."""
    if code not in CODES:
        raise InvalidArgument(f"expected a code of {sorted(CODES)}, got {code!r}")
    text = f"{code}: {message}"
    if strict:
        raise PrivacyLeakError(f"{text} This is refused because strict=True.")
    warnings.warn(text, PrivacyLeakWarning, stacklevel=stacklevel)
