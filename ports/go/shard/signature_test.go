package shard_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func seededKey(first byte) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	for i := range seed {
		seed[i] = first + byte(i)
	}
	return ed25519.NewKeyFromSeed(seed)
}

var key, otherKey = seededKey(0), seededKey(1)

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// write makes a file of entries in the order of their names, and opens it.
func write(t *testing.T, options shard.ShardOptions, names []string, contents map[string]string) *shard.ShardReader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.shard")
	w, err := shard.NewShardStreamWriter(path, options)
	check(t, err)
	for _, name := range names {
		check(t, w.WriteEntry(name, []byte(contents[name])))
	}
	check(t, w.Finalize())
	r, err := shard.OpenShard(path)
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

var twoEntries = map[string]string{"a": "1", "b": strings.Repeat("2", 1000)}

// signed1 is a signature of version 1, which this library verifies but does not make.
func signed1(t *testing.T, r *shard.ShardReader) shard.Signature {
	t.Helper()
	identity, err := r.Identity()
	check(t, err)
	identity.Version = 1
	digest := identity.Digest()
	signature := ed25519.Sign(key, []byte("shard-identity-v1:"+digest))
	return shard.Signature{Identity: digest, PublicKey: hex.EncodeToString(public(key)), Signature: hex.EncodeToString(signature), Version: 1}
}

func expect(t *testing.T, err error, code shard.Code, rule string) {
	t.Helper()
	var found *shard.Error
	if !errors.As(err, &found) || found.Code != code || found.Rule != rule {
		t.Errorf("expected %s (%s), found %v", code, rule, err)
	}
}

func TestASignatureFitsOneContentAndOneKey(t *testing.T) {
	r := write(t, shard.ShardOptions{Alignment: 64}, []string{"a", "b"}, twoEntries)
	signature, err := r.Sign(key)
	check(t, err)
	message := []byte("shard-identity-v2:" + signature.Identity)
	if signature.Signature != hex.EncodeToString(ed25519.Sign(key, message)) || signature.Version != 2 {
		t.Errorf("another message was signed: %v", signature)
	}
	recompressed := write(t, shard.ShardOptions{Compression: shard.CodecZstd}, []string{"b", "a"}, twoEntries)
	identity, err := recompressed.VerifySignature(signature, public(key))
	check(t, err)
	if identity.Digest() != signature.Identity {
		t.Error("another identity came back")
	}
	_, err = r.VerifySignature(signature, public(otherKey))
	expect(t, err, shard.CodeBadSignature, "S-SIG-1")
	_, err = r.VerifySignature(signature, public(key)[:31])
	expect(t, err, shard.CodeInvalidArgument, "")
	changed := write(t, shard.ShardOptions{}, []string{"a"}, twoEntries)
	_, err = changed.VerifySignature(signature, public(key))
	expect(t, err, shard.CodeIdentityMismatch, "S-SIG-1")
	forged := signature
	forged.Version = 1
	_, err = r.VerifySignature(forged, public(key))
	expect(t, err, shard.CodeBadSignature, "S-SIG-1")
	forged.Version = 3
	_, err = r.VerifySignature(forged, public(key))
	expect(t, err, shard.CodeInvalidArgument, "")
}

func TestVersion2CoversRoleAndSchemaAndVersion1SaysThatItDoesNot(t *testing.T) {
	r := write(t, shard.ShardOptions{}, []string{"a", "b"}, twoEntries)
	signature, err := r.Sign(key)
	check(t, err)
	old := signed1(t, r)
	for _, options := range []shard.ShardOptions{{Role: 7}, {Schema: shard.Object{"x": 1}}} {
		other := write(t, options, []string{"a", "b"}, twoEntries)
		_, err := other.VerifySignature(signature, public(key))
		expect(t, err, shard.CodeIdentityMismatch, "S-SIG-1")
		identity, err := other.VerifySignature(old, public(key))
		check(t, err)
		if identity.Version != 1 {
			t.Errorf("version %d", identity.Version)
		}
	}
}

func TestASignedFileCannotBecomeAManifest(t *testing.T) {
	r := write(t, shard.ShardOptions{}, []string{"a", "b"}, twoEntries)
	listed := shard.Object{"manifest": map[string]any{"files": []any{map[string]any{"uri": "evil.shard"}}}}
	turned := write(t, shard.ShardOptions{Role: shard.RoleManifest, Schema: listed}, []string{"a", "b"}, twoEntries)
	_, err := turned.VerifySignature(signed1(t, r), public(key))
	expect(t, err, shard.CodeIdentityMismatch, "S-MAN-7")
	_, err = turned.Sign(key)
	expect(t, err, shard.CodeIdentityMismatch, "S-MAN-7")
}

func TestSignatureFiles(t *testing.T) {
	r := write(t, shard.ShardOptions{}, []string{"a"}, twoEntries)
	signature, err := r.Sign(key)
	check(t, err)
	path := filepath.Join(t.TempDir(), "a.shard.sig")
	check(t, os.WriteFile(path, signature.Text(), 0o600))
	found, err := shard.ReadSignature(path)
	check(t, err)
	if found != signature {
		t.Errorf("%v came back as %v", signature, found)
	}
	text := string(signature.Text())
	for _, changed := range []string{
		"", "5", "[]", "{}", "{\xff}", strings.Replace(text, `"v":2`, `"v":3`, 1), strings.Replace(text, `"v":2`, `"v":true`, 1),
		strings.Replace(text, "ed25519", "rsa", 1), strings.Replace(text, signature.Identity, strings.ToUpper(signature.Identity), 1),
		strings.Replace(text, signature.Signature, signature.Signature[1:], 1), strings.Replace(text, `"public_key"`, `"key"`, 1),
	} {
		_, err := shard.ParseSignature([]byte(changed))
		expect(t, err, shard.CodeBadMetadata, "S-SIG-2")
	}
	check(t, os.WriteFile(path, make([]byte, 5000), 0o600))
	if _, err := shard.ReadSignature(path); !errors.Is(err, shard.ErrLimitExceeded) {
		t.Errorf("a long file: %v", err)
	}
}

func TestKeysAreReadFromPEM(t *testing.T) {
	folder := t.TempDir()
	save := func(name, kind string, der []byte, err error) string {
		check(t, err)
		path := filepath.Join(folder, name)
		check(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	loaded, err := shard.LoadPrivateKey(save("private.pem", "PRIVATE KEY", private, err))
	check(t, err)
	der, err := x509.MarshalPKIXPublicKey(public(key))
	loadedPublic, err := shard.LoadPublicKey(save("public.pem", "PUBLIC KEY", der, err))
	check(t, err)
	if !loaded.Equal(key) || !loadedPublic.Equal(public(key)) {
		t.Error("other keys came back")
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der, err = x509.MarshalPKCS8PrivateKey(curve)
	_, err = shard.LoadPrivateKey(save("curve.pem", "PRIVATE KEY", der, err))
	expect(t, err, shard.CodeInvalidArgument, "")
	_, err = shard.LoadPublicKey(save("none.pem", "PUBLIC KEY", []byte("x"), nil))
	expect(t, err, shard.CodeInvalidArgument, "")
}
