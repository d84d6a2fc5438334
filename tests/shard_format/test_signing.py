"""Detached signatures (spec/shard.md, section 13)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from shard_format import Identity, Manifest, compute_identity, signing, verify_identity
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


LISTED = {"manifest": {"files": [{"uri": "evil.shard"}]}}
CONTENTS = {"a": b"1", "b": b"2" * 1000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file worth signing."""
    return write_shard(tmp_path / "a.shard", CONTENTS)


def signature_1(path: Path) -> signing.Signature:
    """A signature of version 1, as earlier releases made it."""
    digest = Identity(compute_identity(path).entries).digest
    signature = KEY.sign(b"shard-identity-v1:" + digest.encode()).hex()
    public = KEY.public_key().public_bytes_raw().hex()
    fields = {"algorithm": "ed25519", "identity": digest, "public_key": public}
    text = json.dumps({**fields, "signature": signature, "v": 1})
    return signing.Signature.from_bytes(text.encode())


@pytest.fixture
def signature(path: Path) -> signing.Signature:
    """The signature of the file by `KEY`."""
    return signing.sign(path, KEY)


class TestSigning:
    """A signature fits one content and one key."""

    def test_a_signature_verifies_with_its_key(
        self, path: Path, signature: signing.Signature
    ) -> None:
        identity = signing.verify(path, signature, KEY.public_key())
        assert (identity.digest, identity.version) == (signature.identity, 2)

    def test_the_signed_message_is_that_of_the_specification(
        self, path: Path, signature: signing.Signature
    ) -> None:
        digest = compute_identity(path).digest
        assert signature.identity == digest
        assert signature.public_key == KEY.public_key().public_bytes_raw().hex()
        assert signature.version == 2
        assert signature.signature == KEY.sign(b"shard-identity-v2:" + digest.encode()).hex()

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


class TestVersions:
    """Version 2 covers the role and the schema section; nobody can have it checked as version 1."""

    @pytest.mark.parametrize("change", [{"role": 4}, {"schema": LISTED}], ids=["role", "schema"])
    def test_a_changed_role_or_schema_is_refused(
        self, path: Path, signature: signing.Signature, change: dict[str, Any]
    ) -> None:
        write_shard(path, CONTENTS, **change)
        with pytest.raises(IdentityMismatch) as caught:
            signing.verify(path, signature, KEY.public_key())
        assert caught.value.rule == "S-SIG-1"

    def test_a_signature_of_version_1_verifies_and_says_so(self, path: Path) -> None:
        old = signature_1(path)
        assert json.loads(old.to_bytes())["v"] == 1
        assert signing.Signature.from_bytes(old.to_bytes()) == old
        write_shard(path, CONTENTS, role=7, schema={"x": 1})
        identity = signing.verify(path, old, KEY.public_key())
        assert (identity.digest, identity.version) == (old.identity, 1)

    @pytest.mark.parametrize("stored", [False, True], ids=["detached", "stored"])
    def test_a_signature_of_version_2_cannot_be_checked_as_version_1(
        self, path: Path, signature: signing.Signature, stored: bool
    ) -> None:
        """Somebody changes the role, and everything that could have it checked as version 1."""
        old_identity = Identity(compute_identity(path).entries)
        more = {"meta/identity": old_identity.text} if stored else {}
        write_shard(path, {**CONTENTS, **more}, role=7)
        assert verify_identity(path, old_identity).version == 1
        for forged, error in (
            (signature, IdentityMismatch),
            (replace(signature, version=1), BadSignature),
            (replace(signature, identity=old_identity.digest), BadSignature),
            (replace(signature, version=1, identity=old_identity.digest), BadSignature),
        ):
            with pytest.raises(error):
                signing.verify(path, forged, KEY.public_key())

    def test_a_signature_is_compared_with_the_identity_of_its_version_only(
        self, path: Path
    ) -> None:
        digest = compute_identity(path).digest
        signed = KEY.sign(b"shard-identity-v1:" + digest.encode()).hex()
        odd = signing.Signature(digest, KEY.public_key().public_bytes_raw().hex(), signed, 1)
        with pytest.raises(IdentityMismatch):
            signing.verify(path, odd, KEY.public_key())


class TestManifests:
    """S-MAN-7: what a signed manifest lists is signed."""

    def test_a_signed_file_cannot_become_a_manifest(self, path: Path) -> None:
        old = signature_1(path)
        write_shard(path, CONTENTS, role=4, schema=LISTED)
        assert [row.uri for row in Manifest.read(path).files] == ["evil.shard"]  # not signed
        with pytest.raises(IdentityMismatch, match="schema section lists files") as caught:
            signing.verify(path, old, KEY.public_key())
        assert (caught.value.rule, caught.value.path) == ("S-MAN-7", str(path))

    def test_a_signed_manifest_cannot_get_another_list(self, path: Path) -> None:
        entries = {"meta/manifest": b'{"files":[{"uri":"good.shard"}]}'}
        write_shard(path, entries, role=4)
        old = signature_1(path)
        signing.verify(path, old, KEY.public_key())
        write_shard(path, entries, role=4, schema=LISTED)
        with pytest.raises(IdentityMismatch, match="S-MAN-7"):
            signing.verify(path, old, KEY.public_key())
        write_shard(path, entries, role=4, schema=LISTED, identity=True)
        with pytest.raises(IdentityMismatch, match="S-MAN-7"):
            Manifest.read(path)

    def test_a_list_that_stands_in_the_schema_alone_is_not_signed(self, path: Path) -> None:
        write_shard(path, CONTENTS, role=4, schema=LISTED)
        with pytest.raises(IdentityMismatch, match="S-MAN-7"):
            signing.sign(path, KEY)


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
            "v": 2,
        }
        assert text == json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @pytest.mark.parametrize(
        "change",
        [
            {"v": 0},
            {"v": 3},
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
        with pytest.raises(ShardIOError, match=r"none\.sig: cannot open: no such"):
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
        with pytest.raises(ShardIOError, match=r"none\.pem: cannot open"):
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
