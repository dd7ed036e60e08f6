"""Signatures: who vouches for a ledger. Ed25519, by the package ``cryptography`` (extra ``sign``).

The chain of the last line stands for the whole file, so that is what is signed. The public key is in the header from
the start: a ledger that says it is signed, and has no signature beside it, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, LedgerError

SIGNATURE = "ledger.sig"  # beside the ledger
HOW = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


class Signer:
    """A private key, read before anything is spent."""

    def __init__(self, path: str | os.PathLike[str]):
        self._key = _read(path, "sign_with", private=True)
        self.public = _hex(self._key.public_key())

    def sign(self, chain: str) -> dict[str, str]:
        """Return what goes beside a ledger whose last line has this chain."""
        return {"chain": chain, "public_key": self.public, "signature": self._key.sign(chain.encode()).hex()}


def read_public(path: str | os.PathLike[str]) -> str:
    """Return the public key in a PEM file, as the header of a ledger has it."""
    return _hex(_read(path, "public key", private=False))


def check_signature(where: str, document: Mapping[str, Any] | None, chain: str, signed_by: str) -> None:
    """Refuse a signature that is not of this chain by this key.

    Args:
        where: the file of the signature, for messages.
        document: what is in it; None where it is missing.
        signed_by: the public key in the ledger's header.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if document is None:
        raise LedgerError(f"no signature at {where}, and the ledger says it is signed by {signed_by}; restore it")
    for name, expected in (("chain", chain), ("public_key", signed_by)):
        if document.get(name) != expected:
            raise LedgerError(f"{where}: {name} is {document.get(name)!r}, the ledger has {expected!r}")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed_by))
        key.verify(bytes.fromhex(str(document.get("signature"))), chain.encode())
    except (InvalidSignature, ValueError):
        raise LedgerError(f"{where}: the signature is not of this ledger by {signed_by}") from None


def _read(path: str | os.PathLike[str], what: str, *, private: bool) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise InvalidArgument(f"{what} needs the package cryptography: pip install 'diff2[sign]'") from None
    try:
        data = Path(path).read_bytes()
        if private:
            key: Any = serialization.load_pem_private_key(data, password=None)
        else:
            key = serialization.load_pem_public_key(data)
    except FileNotFoundError:
        raise InvalidArgument(f"no key at {what}={path}; {HOW}") from None
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            f"{what}={path} is no PEM key without a password ({type(error).__name__}); {HOW}"
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey):
        raise InvalidArgument(f"{what}={path} is not an Ed25519 key; {HOW}")
    return key


def _hex(key: Any) -> str:
    return str(key.public_bytes_raw().hex())
