"""Signatures: who vouches for a ledger. Ed25519, by the package ``cryptography`` (extra ``sign``).

The chain of the last line stands for the whole file, hash of the model included, so that is what is signed. A run that
is signed as it ends has the public key in its header from the start: without a signature beside it, it is refused. One
that is signed later has none there, and whoever takes the signature away leaves a run that nobody signed.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._files import AnyPath, read_json, write_json, write_whole
from ..errors import InvalidArgument, LedgerError
from .ledger import Ledger

SIGNATURE = "ledger.sig"  # beside the ledger
HOW = "make one with: diff2 keygen key.pem"
PROVES = (
    "The signature shows who vouches for this ledger and the model it names, and that neither was changed since. It "
    "does not prove that records were clipped or noise was added: that is a claim of the program that wrote the "
    "ledger, and of whoever ran it. Whoever holds the key can sign an invented run."
)


class Signer:
    """A private key, read before anything is spent."""

    def __init__(self, path: AnyPath, what: str = "sign_with"):
        self._key = _read(path, what, private=True)
        self.public = _hex(self._key.public_key())

    def sign(self, chain: str) -> dict[str, str]:
        """Return what goes beside a ledger whose last line has this chain."""
        return {"chain": chain, "public_key": self.public, "signature": self._key.sign(chain.encode()).hex()}


def make_key(path: AnyPath) -> tuple[Path, Path]:
    """Write a new private key that its owner alone can read, and the public one beside it; return both paths."""
    serialization, ed25519 = _cryptography("keygen")
    secret = Path(path)
    public = secret.with_name(f"{secret.stem}.pub.pem")
    for file in (secret, public):
        if file.exists():
            raise InvalidArgument(f"{file} exists: a key is never overwritten; choose another name")
    key, pem = ed25519.Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_whole(secret, private, secret=True)
    write_whole(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return secret, public


def sign_ledger(ledger: Ledger, path: Path, signer: Signer) -> Path:
    """Put the signature of a complete ledger beside it; return where it is."""
    file, header = path.with_name(SIGNATURE), ledger.header
    if not ledger.complete:
        raise LedgerError(f"{path} is not complete: more will be released; sign the run when it has ended")
    other = header["signed_by"] or (read_json(file) or {}).get("public_key")
    if other not in (None, signer.public):
        whose = "its header names" if header["signed_by"] else f"{file} is by"
        raise LedgerError(f"{path}: {whose} the key {other}, and this is {signer.public}; nothing was signed")
    write_json(file, signer.sign(ledger.chain))
    return file


def read_public(path: AnyPath) -> str:
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


def _cryptography(what: str) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise InvalidArgument(f"{what} needs the package cryptography: pip install 'diff2[sign]'") from None
    return serialization, ed25519


def _read(path: AnyPath, what: str, *, private: bool) -> Any:
    serialization, ed25519 = _cryptography(what)
    try:
        data = Path(path).read_bytes()
        if private:
            key: Any = serialization.load_pem_private_key(data, password=None)
        else:
            key = serialization.load_pem_public_key(data)
    except FileNotFoundError:
        raise InvalidArgument(f"no key at {what}={path}; {HOW}") from None
    except (ValueError, TypeError) as error:
        kind = "private key without a password" if private else "public key"
        raise InvalidArgument(f"{what}={path} is not a PEM {kind} ({type(error).__name__}); {HOW}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey):
        raise InvalidArgument(f"{what}={path} is not an Ed25519 key; {HOW}")
    if private and os.name == "posix" and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise InvalidArgument(f"{what}={path} can be read by others; run: chmod 600 {path}")
    return key


def _hex(key: Any) -> str:
    return str(key.public_bytes_raw().hex())
