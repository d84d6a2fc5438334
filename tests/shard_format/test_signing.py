"""Detached signatures (spec/shard.md, section 13)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from shard_format import compute_identity, signing
from shard_format.errors import (
    BadMetadata,
    BadSignature,
    IdentityMismatch,
    InvalidArgument,
    MissingExtra,
    ShardIOError,
)
from tests.shard_format.support import write_shard

if TYPE_CHECKING:
    from pathlib import Path

# Keys from fixed bytes, so that every run signs the same.
KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file worth signing."""
    return write_shard(tmp_path / "a.shard", {"a": b"1", "b": b"2" * 1000})


@pytest.fixture
def signature(path: Path) -> signing.Signature:
    """The signature of the file by `KEY`."""
    return signing.sign(path, KEY)


class TestSigning:
    """A signature fits one content and one key."""

    def test_a_signature_verifies_with_its_key(
        self, path: Path, signature: signing.Signature
    ) -> None:
        signing.verify(path, signature, KEY.public_key())

    def test_the_signed_message_is_that_of_the_specification(
        self, path: Path, signature: signing.Signature
    ) -> None:
        digest = compute_identity(path).digest
        assert signature.identity == digest
        assert signature.public_key == KEY.public_key().public_bytes_raw().hex()
        assert signature.signature == KEY.sign(b"shard-identity-v1:" + digest.encode()).hex()

    def test_recompression_keeps_the_signature(
        self, path: Path, signature: signing.Signature
    ) -> None:
        write_shard(path, {"b": b"2" * 1000, "a": b"1"}, compression="zstd", alignment=0)
        signing.verify(path, signature, KEY.public_key())

    def test_another_key_is_refused(self, path: Path, signature: signing.Signature) -> None:
        with pytest.raises(BadSignature, match="S-SIG-1") as caught:
            signing.verify(path, signature, OTHER_KEY.public_key())
        assert signature.public_key in str(caught.value)

    def test_the_key_inside_the_signature_is_not_trusted(self, path: Path) -> None:
        forged = signing.sign(path, OTHER_KEY)
        with pytest.raises(BadSignature):
            signing.verify(path, forged, KEY.public_key())

    def test_a_changed_file_is_refused(self, path: Path, signature: signing.Signature) -> None:
        write_shard(path, {"a": b"1", "b": b"3" * 1000})
        with pytest.raises(IdentityMismatch) as caught:
            signing.verify(path, signature, KEY.public_key())
        assert caught.value.expected == signature.identity

    def test_an_identity_put_under_a_genuine_signature_is_refused(
        self, path: Path, signature: signing.Signature
    ) -> None:
        write_shard(path, {"a": b"other"})
        forged = signing.Signature(
            identity=compute_identity(path).digest,
            public_key=signature.public_key,
            signature=signature.signature,
        )
        with pytest.raises(BadSignature):
            signing.verify(path, forged, KEY.public_key())


class TestFiles:
    """Signature files."""

    def test_a_signature_file_comes_back(
        self, path: Path, tmp_path: Path, signature: signing.Signature
    ) -> None:
        file = tmp_path / "a.shard.sig"
        file.write_bytes(signature.to_bytes())
        assert signing.Signature.read(file) == signature
        signing.verify(path, file, KEY.public_key())
        signing.verify(path, str(file), KEY.public_key())

    def test_the_text_is_canonical_json(self, signature: signing.Signature) -> None:
        text = signature.to_bytes()
        fields = {
            "algorithm": "ed25519",
            "identity": signature.identity,
            "public_key": signature.public_key,
            "signature": signature.signature,
            "v": 1,
        }
        assert text == json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @pytest.mark.parametrize(
        "change",
        [
            {"v": 2},
            {"v": True},
            {"v": "1"},
            {"v": None},
            {"algorithm": "rsa"},
            {"algorithm": None},
            {"identity": "0" * 63},
            {"identity": "A" * 64},
            {"identity": 5},
            {"public_key": ""},
            {"signature": "0" * 127},
            {"signature": None},
            {"signature": ["0" * 128]},
        ],
        ids=str,
    )
    def test_wrong_fields_are_refused(
        self, signature: signing.Signature, change: dict[str, Any]
    ) -> None:
        fields = json.loads(signature.to_bytes()) | change
        with pytest.raises(BadMetadata) as caught:
            signing.Signature.from_bytes(json.dumps(fields).encode(), path="a.sig")
        assert (caught.value.rule, caught.value.path) == ("S-SIG-2", "a.sig")

    @pytest.mark.parametrize("text", [b"", b"no json", b"[]", b"5", b"\xff", b"{}", b"{" * 4000])
    def test_what_is_no_such_object_is_refused(self, tmp_path: Path, text: bytes) -> None:
        file = tmp_path / "a.sig"
        file.write_bytes(text)
        with pytest.raises(BadMetadata) as caught:
            signing.Signature.read(file)
        assert caught.value.path == str(file)
        assert caught.value.rule == "S-SIG-2"

    def test_a_missing_signature_file_is_named(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"none\.sig: cannot read: no such"):
            signing.verify(path, tmp_path / "none.sig", KEY.public_key())


class TestKeys:
    """PEM files."""

    def private_pem(self, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def public_pem(self, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
        return key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def test_keys_from_files_sign_and_verify(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "private.pem").write_bytes(self.private_pem(KEY))
        (tmp_path / "public.pem").write_bytes(self.public_pem(KEY))
        signature = signing.sign(path, signing.load_private_key(tmp_path / "private.pem"))
        signing.verify(path, signature, signing.load_public_key(str(tmp_path / "public.pem")))

    def test_keys_of_another_kind_are_refused(self, tmp_path: Path) -> None:
        other = ec.derive_private_key(5, ec.SECP256R1())
        (tmp_path / "private.pem").write_bytes(self.private_pem(other))
        (tmp_path / "public.pem").write_bytes(self.public_pem(other))
        with pytest.raises(InvalidArgument, match="not an Ed25519 key"):
            signing.load_private_key(tmp_path / "private.pem")
        with pytest.raises(InvalidArgument, match="not an Ed25519 key"):
            signing.load_public_key(tmp_path / "public.pem")

    @pytest.mark.parametrize("text", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n"])
    def test_what_is_no_key_is_refused(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "key.pem").write_bytes(text)
        for load in (signing.load_private_key, signing.load_public_key):
            with pytest.raises(InvalidArgument, match="cannot load the key") as caught:
                load(tmp_path / "key.pem")
            assert caught.value.path == str(tmp_path / "key.pem")

    def test_an_encrypted_key_is_refused(self, tmp_path: Path) -> None:
        pem = KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        (tmp_path / "key.pem").write_bytes(pem)
        with pytest.raises(InvalidArgument, match="cannot load the key"):
            signing.load_private_key(tmp_path / "key.pem")

    def test_a_missing_key_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"none\.pem: cannot read"):
            signing.load_public_key(tmp_path / "none.pem")


@pytest.mark.parametrize("call", ["sign", "verify", "load_private_key", "load_public_key"])
def test_without_cryptography_the_error_names_the_extra(
    path: Path,
    tmp_path: Path,
    signature: signing.Signature,
    call: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "cryptography":
            monkeypatch.setitem(sys.modules, name, None)
    arguments: dict[str, tuple[Any, ...]] = {
        "sign": (path, KEY),
        "verify": (path, signature, KEY.public_key()),
        "load_private_key": (tmp_path / "key.pem",),
        "load_public_key": (tmp_path / "key.pem",),
    }
    with pytest.raises(MissingExtra, match=r"pip install 'shard-format\[sign\]'"):
        getattr(signing, call)(*arguments[call])
