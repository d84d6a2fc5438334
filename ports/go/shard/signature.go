package shard

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	signatureAlgorithm = "ed25519"
	longestKeyFile     = 4096
)

// Signature is a detached signature of the identity of a file, by convention in <file>.sig.
type Signature struct {
	// Identity is what was signed: 64 hex digits.
	Identity string
	// PublicKey is the key that the signature claims: 64 hex digits. VerifySignature does not use it.
	PublicKey string
	// Signature is the Ed25519 signature: 128 hex digits.
	Signature string
	// Version of the identity: 2, or 1 for one that does not cover the role and the schema section.
	Version int
}

// Text is the content of a signature file.
func (s Signature) Text() []byte {
	text, _ := CanonicalJSON(Object{ // strings of hex digits
		"algorithm": signatureAlgorithm, "identity": s.Identity, "public_key": s.PublicKey, "signature": s.Signature, "v": s.Version,
	})
	return text
}

// ParseSignature reads the content of a signature file (S-SIG-2).
func ParseSignature(text []byte) (Signature, error) {
	fields, err := parseObject(text, "the signature", "S-SIG-2", Limits{}.withDefaults())
	if err != nil {
		return Signature{}, err
	}
	isRight := fields["algorithm"] == signatureAlgorithm
	digits := func(key string, count int) string {
		value, _ := fields[key].(string)
		isRight = isRight && len(value) == count && strings.Trim(value, "0123456789abcdef") == ""
		return value
	}
	found := Signature{Identity: digits("identity", 64), PublicKey: digits("public_key", 64), Signature: digits("signature", 128)}
	version, _ := fields["v"].(int64)
	if !isRight || (version != 1 && version != 2) {
		return Signature{}, broken(CodeBadMetadata, "S-SIG-2", "not a signature").
			expected("v 1 or 2, algorithm ed25519, and hex digits: identity (64), public_key (64), signature (128)").
			found("%.80q", text)
	}
	found.Version = int(version)
	return found, nil
}

// ReadSignature reads a signature file.
func ReadSignature(path string) (Signature, error) {
	text, err := readShort(path)
	if err != nil {
		return Signature{}, err
	}
	found, err := ParseSignature(text)
	return found, located(err, path, "")
}

// message is what is signed. It has the version, so a signature fits one version only.
func message(identity string, version int) []byte {
	return fmt.Appendf(nil, "shard-identity-v%d:%s", version, identity)
}

// Sign computes the identity of the file and signs it (S-SIG-3).
func (r *ShardReader) Sign(key ed25519.PrivateKey) (Signature, error) {
	if len(key) != ed25519.PrivateKeySize {
		return Signature{}, invalid("not an Ed25519 private key").expected("%d bytes", ed25519.PrivateKeySize).found("%d", len(key))
	}
	identity, err := r.Identity()
	if err == nil {
		err = r.checkManifest(identity)
	}
	if err != nil {
		return Signature{}, located(err, r.name, "")
	}
	digest := identity.Digest()
	public := key.Public().(ed25519.PublicKey)
	return Signature{
		Identity: digest, PublicKey: hex.EncodeToString(public), Version: identity.Version,
		Signature: hex.EncodeToString(ed25519.Sign(key, message(digest, identity.Version))),
	}, nil
}

// VerifySignature returns the identity if the file has the content that the holder of the key signed (S-SIG-1). The key
// must come from somewhere you trust. Look at the version of the identity: version 1 does not cover the role and the
// schema section of the file.
func (r *ShardReader) VerifySignature(s Signature, key ed25519.PublicKey) (Identity, error) {
	found, err := r.verifySignature(s, key)
	if err != nil {
		return Identity{}, located(err, r.name, "")
	}
	return found, nil
}

func (r *ShardReader) verifySignature(s Signature, key ed25519.PublicKey) (Identity, error) {
	if len(key) != ed25519.PublicKeySize {
		return Identity{}, invalid("not an Ed25519 public key").expected("%d bytes", ed25519.PublicKeySize).found("%d", len(key))
	}
	if s.Version != 1 && s.Version != 2 {
		return Identity{}, invalid("unknown version of identities").expected("1 or 2").found("%d", s.Version)
	}
	signature, err := hex.DecodeString(s.Signature)
	if err != nil || !ed25519.Verify(key, message(s.Identity, s.Version), signature) {
		return Identity{}, broken(CodeBadSignature, "S-SIG-1", "the signature was not made with this key for this identity").
			found("a signature that claims the key %.64q", s.PublicKey)
	}
	found, err := r.Identity()
	if err != nil {
		return Identity{}, err
	}
	if r.HasEntry(identityEntry) {
		if _, err := r.compareStored(found); err != nil {
			return Identity{}, err
		}
	}
	found.Version = s.Version
	if digest := found.Digest(); digest != s.Identity {
		return Identity{}, broken(CodeIdentityMismatch, "S-SIG-1", "the content does not fit the signed identity").
			expected("%s", s.Identity).found("%s (version %d)", digest, s.Version)
	}
	return found, r.checkManifest(found)
}

// LoadPrivateKey reads an Ed25519 key from an unencrypted PEM file (openssl genpkey -algorithm ed25519).
func LoadPrivateKey(path string) (ed25519.PrivateKey, error) {
	return loadKey[ed25519.PrivateKey](path, x509.ParsePKCS8PrivateKey)
}

// LoadPublicKey reads an Ed25519 key from a PEM file (openssl pkey -pubout).
func LoadPublicKey(path string) (ed25519.PublicKey, error) {
	return loadKey[ed25519.PublicKey](path, x509.ParsePKIXPublicKey)
}

func loadKey[K any](path string, parse func([]byte) (any, error)) (key K, err error) {
	text, err := readShort(path)
	if err != nil {
		return key, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return key, &Error{Code: CodeInvalidArgument, Path: path, Problem: "cannot load the key", Err: errors.New("not PEM")}
	}
	parsed, err := parse(block.Bytes)
	if err != nil {
		return key, &Error{Code: CodeInvalidArgument, Path: path, Problem: "cannot load the key", Err: err}
	}
	key, ok := parsed.(K)
	if !ok {
		return key, &Error{Code: CodeInvalidArgument, Path: path, Problem: "not an Ed25519 key", Found: fmt.Sprintf("%T", parsed)}
	}
	return key, nil
}

// readShort reads a file of a few lines.
func readShort(path string) ([]byte, error) {
	file, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, longestKeyFile+1))
	if err != nil {
		return nil, ioError("cannot read", path, err)
	}
	if len(text) > longestKeyFile {
		return nil, &Error{Code: CodeLimitExceeded, Path: path, Problem: "the file is too long", Expected: "at most 4096 bytes"}
	}
	return text, nil
}
