package shard

import (
	"math/big"
	"sort"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

func isNatural(value any) bool {
	switch v := value.(type) {
	case int64:
		return v >= 0
	case *big.Int:
		return v.Sign() >= 0
	}
	return false
}

// Identity names the content of a file, whatever its compression, alignment and order.
type Identity struct {
	// Entries has the SHA-256 of the uncompressed bytes of each entry but meta/identity, in hex.
	Entries map[string]string
	// Role and Schema are covered from version 2 on.
	Role   Role
	Schema string
	// Version is 1 or 2.
	Version int
}

// Text is the canonical text that is hashed, and that a file may carry as meta/identity.
func (d Identity) Text() []byte {
	entries := make(map[string]any, len(d.Entries))
	for name, digest := range d.Entries {
		entries[name] = digest
	}
	object := Object{"entries": entries, "leaf": "sha256", "v": d.Version}
	if d.Version >= 2 {
		object["role"], object["schema"] = int(d.Role), d.Schema
	}
	text, _ := strictjson.Canonical(object) // names are valid UTF-8, so this cannot fail
	return text
}

// Digest is the identity: 64 hex digits.
func (d Identity) Digest() string { return hexDigest(d.Text()) }

// Identity computes the identity of the file, of version 2. It reads every entry.
func (r *ShardReader) Identity() (Identity, error) {
	found := Identity{Entries: map[string]string{}, Role: r.header.Role, Version: 2}
	for i := range r.index.count {
		name := r.index.name(i)
		if name == identityEntry {
			continue
		}
		data, err := r.ReadEntryAt(i)
		if err != nil {
			return Identity{}, err
		}
		found.Entries[name] = hexDigest(data)
	}
	schema, err := r.Schema()
	if err != nil {
		return Identity{}, err
	}
	if found.Schema, err = schemaDigest(schema); err != nil {
		return Identity{}, err
	}
	return found, nil
}

func schemaDigest(schema Object) (string, error) {
	if schema == nil {
		schema = Object{}
	}
	text, err := strictjson.Canonical(schema)
	if err != nil {
		return "", err
	}
	return hexDigest(text), nil
}

// identityLimits lets meta/identity be as long as the file has entries.
func identityLimits(limits Limits, text []byte) Limits {
	limits.MaxJSONBytes = max(limits.MaxJSONBytes, uint64(len(text)))
	limits.MaxJSONNodes = max(limits.MaxJSONNodes, uint64(len(text)))
	return limits
}

// VerifyIdentity compares the stored meta/identity with the file, and returns its version (S-IDN-1, S-IDN-2, S-IDN-4).
func (r *ShardReader) VerifyIdentity() (int, error) {
	text, err := r.ReadEntry(identityEntry)
	if err != nil {
		return 0, err
	}
	version, err := r.verifyIdentity(text)
	return version, located(err, r.name, "")
}

func (r *ShardReader) verifyIdentity(text []byte) (int, error) {
	stored, version, err := parseIdentity(text, r.limits)
	if err != nil {
		return 0, err
	}
	found, err := r.Identity()
	if err != nil {
		return 0, err
	}
	found.Version = version
	if string(found.Text()) == string(text) {
		return version, nil
	}
	return 0, r.identityDifference(found, stored)
}

// parseIdentity takes the text of meta/identity apart and gives its version. It does not compare it with the file.
func parseIdentity(text []byte, limits Limits) (Object, int, error) {
	bad := func(problem string) *Error { return broken(CodeIdentityMismatch, "S-IDN-1", problem) }
	stored, err := parseObject(text, "meta/identity", "S-IDN-1", identityLimits(limits, text))
	if err != nil {
		return nil, 0, bad("meta/identity is not a JSON object")
	}
	version, isInteger := stored["v"].(int64)
	if !isInteger {
		return nil, 0, bad("meta/identity has no version")
	}
	if version != 1 && version != 2 {
		return nil, 0, broken(CodeUnsupportedVersion, "S-IDN-4", "unknown version of the identity").found("%d", version)
	}
	if !isIdentity(stored, version) {
		return nil, 0, bad("meta/identity is not the text of an identity")
	}
	return stored, int(version), nil
}

// isIdentity reports whether an object has the fields of an identity, and no others.
func isIdentity(stored Object, version int64) bool {
	entries, ok := stored["entries"].(map[string]any)
	count := 3
	if version >= 2 {
		_, hasRole := stored["role"].(int64)
		schema, _ := stored["schema"].(string)
		ok = ok && hasRole && isDigest(schema)
		count = 5
	}
	if !ok || stored["leaf"] != "sha256" || len(stored) != count {
		return false
	}
	for name, value := range entries {
		if digest, _ := value.(string); name == identityEntry || !isDigest(digest) {
			return false
		}
	}
	return true
}

// identityDifference names the first difference (S-IDN-2).
func (r *ShardReader) identityDifference(found Identity, stored Object) error {
	bad := func(problem, entry string) error {
		e := broken(CodeIdentityMismatch, "S-IDN-2", problem)
		e.Entry = entry
		return e
	}
	if found.Version >= 2 {
		if stored["role"] != int64(found.Role) {
			return bad("the role is not that of the identity", "")
		}
		if stored["schema"] != found.Schema {
			return bad("the schema section is not that of the identity", "")
		}
	}
	entries, _ := stored["entries"].(map[string]any)
	names := make([]string, 0, len(entries)+len(found.Entries))
	for name := range found.Entries {
		names = append(names, name)
	}
	for name := range entries {
		if _, there := found.Entries[name]; !there {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		digest, there := found.Entries[name]
		switch listed, isListed := entries[name]; {
		case !there:
			return bad("an entry of the identity is missing", name)
		case !isListed:
			return bad("the identity does not have this entry", name)
		case listed != digest:
			return bad("the entry is not that of the identity", name)
		}
	}
	return broken(CodeIdentityMismatch, "S-IDN-1", "meta/identity is not the canonical text")
}
