"""Detached Ed25519 signatures over a file's identity (spec/shard.md, section 13).

Needs the extra `sign`: `pip install 'shard-format[sign]'`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shard_format.canonical_json import canonical, parse_object
from shard_format.errors import BadMetadata, BadSignature, InvalidArgument
from shard_format.extras import require
from shard_format.identity import VERSIONS, check_manifest, compute_identity, verify_identity
from shard_format.reader import ShardReader
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    from shard_format.identity import Identity
    from shard_format.sources import SourceLike

__all__ = ["Signature", "load_private_key", "load_public_key", "sign", "verify"]

_ALGORITHM = "ed25519"
_FIELD_DIGITS = {"identity": 64, "public_key": 64, "signature": 128}
_LONGEST_SIGNATURE_FILE = 4096


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of the identity of a file."""

    identity: str
    """The signed identity: 64 hex digits."""
    public_key: str
    """The key that made it, as 64 hex digits. Only a claim: compare it with a key you trust."""
    signature: str
    """The Ed25519 signature: 128 hex digits."""
    version: int = 2
    """The version of the identity."""

    def to_bytes(self) -> bytes:
        """The content of a signature file."""
        fields = {name: getattr(self, name) for name in _FIELD_DIGITS}
        return canonical({**fields, "algorithm": _ALGORITHM, "v": self.version})

    @classmethod
    def from_bytes(cls, text: bytes, *, path: str | None = None) -> Signature:
        """Parses a signature file."""
        try:
            fields = parse_object(text, "the signature", DEFAULT_LIMITS, rule="S-SIG-2")
        except BadMetadata as error:
            raise error.located(path=path) from None
        good = (
            type(fields.get("v")) is int
            and fields["v"] in VERSIONS
            and fields.get("algorithm") == _ALGORITHM
            and all(
                isinstance(fields.get(name), str)
                and re.fullmatch(f"[0-9a-f]{{{digits}}}", fields[name])
                for name, digits in _FIELD_DIGITS.items()
            )
        )
        if not good:
            raise BadMetadata(
                "this is not a signature",
                path=path,
                expected="v 1 or 2, algorithm ed25519, and hex strings "
                + ", ".join(f"{name} ({digits} digits)" for name, digits in _FIELD_DIGITS.items()),
                found=repr(text[:80]),
                rule="S-SIG-2",
            )
        return cls(**{name: fields[name] for name in _FIELD_DIGITS}, version=fields["v"])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Signature:
        """Reads a signature file, by convention `<file>.sig`."""
        return cls.from_bytes(read_file(path, _LONGEST_SIGNATURE_FILE), path=os.fspath(path))


def sign(
    source: SourceLike | ShardReader,
    private_key: Ed25519PrivateKey,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Signature:
    """Computes the identity of a file and signs it; `progress` as for `compute_identity`."""
    if not isinstance(source, ShardReader):
        with ShardReader(source) as reader:
            return sign(reader, private_key, progress=progress)
    serialization = require("cryptography.hazmat.primitives.serialization", "sign")
    identity = compute_identity(source, progress=progress)
    check_manifest(source, identity)
    public = private_key.public_key().public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )
    signature = private_key.sign(_message(identity.digest, identity.version))
    return Signature(identity.digest, public.hex(), signature.hex(), identity.version)


def _message(identity: str, version: int) -> bytes:
    """What is signed. It has the version, so a genuine signature fits one version only."""
    return f"shard-identity-v{version}:{identity}".encode()


def verify(
    source: SourceLike | ShardReader,
    signature: Signature | str | os.PathLike[str],
    public_key: Ed25519PublicKey,
    *,
    hashes: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Identity:
    """Returns the identity if the file has the content that the holder of the key signed.

    Look at its `version`: a signature of version 1 does not cover the role and the schema section of the file.

    Args:
        source: the file.
        signature: the signature, or the path of its file.
        public_key: a key that you trust. The one inside the signature is not used.
        hashes, progress: as for `verify_identity`.

    Raises:
        BadSignature: the signature was made with another key or for another identity.
        IdentityMismatch: the signature is genuine, but the content does not match the identity.
    """
    if not isinstance(signature, Signature):
        signature = Signature.read(signature)
    exceptions = require("cryptography.exceptions", "sign")
    try:
        public_key.verify(
            bytes.fromhex(signature.signature), _message(signature.identity, signature.version)
        )
    except exceptions.InvalidSignature:
        raise BadSignature(
            "the signature was not made with this key for this identity",
            found=f"a signature that claims the key {signature.public_key}",
            rule="S-SIG-1",
            hint="check which public key the signer published",
        ) from None
    return verify_identity(
        source,
        signature.identity,
        version=signature.version,
        hashes=hashes,
        progress=progress,
    )


def load_private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """An Ed25519 private key from an unencrypted PEM file (`openssl genpkey -algorithm ed25519`)."""
    key: Ed25519PrivateKey = _load_key(path, "load_pem_private_key", "Ed25519PrivateKey")
    return key


def load_public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    """An Ed25519 public key from a PEM file (`openssl pkey -pubout`)."""
    key: Ed25519PublicKey = _load_key(path, "load_pem_public_key", "Ed25519PublicKey")
    return key


def _load_key(path: str | os.PathLike[str], loader: str, kind: str) -> Any:  # noqa: ANN401 - two types
    serialization = require("cryptography.hazmat.primitives.serialization", "sign")
    ed25519 = require("cryptography.hazmat.primitives.asymmetric.ed25519", "sign")
    exceptions = require("cryptography.exceptions", "sign")
    pem = read_file(path, _LONGEST_SIGNATURE_FILE)
    arguments = (pem, None) if loader == "load_pem_private_key" else (pem,)
    try:
        key = getattr(serialization, loader)(*arguments)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"cannot load the key: {error}", path=os.fspath(path)) from None
    if not isinstance(key, getattr(ed25519, kind)):
        raise InvalidArgument(
            "not an Ed25519 key", path=os.fspath(path), expected=kind, found=type(key).__name__
        )
    return key
