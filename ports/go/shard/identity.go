package shard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

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

// Identity computes the identity of the file, of version 2. It reads every entry, several at once.
func (r *ShardReader) Identity() (Identity, error) {
	digests := make([]string, r.index.count)
	err := inParallel(r.index.count, func(i int) error {
		digest := sha256.New()
		if err := r.scan(i, func(piece []byte) { _, _ = digest.Write(piece) }); err != nil {
			return err
		}
		digests[i] = hex.EncodeToString(digest.Sum(nil))
		return nil
	})
	if err != nil {
		return Identity{}, err
	}
	found := Identity{Entries: make(map[string]string, r.index.count), Role: r.header.Role, Version: 2}
	for i, digest := range digests {
		if name := r.index.name(i); name != identityEntry {
			found.Entries[name] = digest
		}
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

// VerifyIdentity compares the stored meta/identity with the file, and returns its version (S-IDN-1, S-IDN-2, S-IDN-4).
// It finds damage; against deliberate changes use VerifySignature. Version 1 does not cover the role and the schema section.
func (r *ShardReader) VerifyIdentity() (int, error) {
	if _, err := r.row(identityEntry); err != nil {
		return 0, err
	}
	found, err := r.Identity()
	if err == nil {
		found, err = r.compareStored(found)
	}
	if err == nil {
		err = r.checkManifest(found)
	}
	if err != nil {
		return 0, located(err, r.name, "")
	}
	return found.Version, nil
}

// compareStored compares the stored identity with the computed one, which it returns in the version of the stored one.
func (r *ShardReader) compareStored(found Identity) (Identity, error) {
	stored, err := r.storedIdentity()
	if err != nil {
		return Identity{}, err
	}
	found.Version = stored.Version
	return found, found.difference(stored)
}

// storedIdentity reads meta/identity (S-IDN-1, S-IDN-4). What it says is not compared with the file.
func (r *ShardReader) storedIdentity() (Identity, error) {
	bad := func(problem string) error {
		e := broken(CodeIdentityMismatch, "S-IDN-1", problem)
		e.Entry = identityEntry
		return e
	}
	i, err := r.row(identityEntry)
	if err != nil {
		return Identity{}, err
	}
	limits := r.identityLimits()
	if size := r.index.entry(i).OrigSize; size > limits.MaxJSONBytes {
		return Identity{}, located(jsonTooLong(size, "meta/identity", limits), "", identityEntry)
	}
	text, err := r.ReadEntryAt(i)
	if err != nil {
		return Identity{}, err
	}
	fields, err := parseObject(text, "meta/identity", "S-IDN-1", limits)
	if errors.Is(err, ErrLimitExceeded) {
		return Identity{}, err
	}
	if err != nil {
		return Identity{}, bad("meta/identity is not a JSON object")
	}
	version, isInteger := fields["v"].(int64)
	if !isInteger {
		return Identity{}, bad("meta/identity has no version")
	}
	if version != 1 && version != 2 {
		return Identity{}, broken(CodeUnsupportedVersion, "S-IDN-4", "unknown version of the identity").found("%d", version)
	}
	if !isIdentity(fields, version) {
		return Identity{}, bad("meta/identity has other fields than an identity")
	}
	stored := Identity{Version: int(version), Entries: map[string]string{}}
	entries, _ := fields["entries"].(map[string]any)
	for name, digest := range entries {
		stored.Entries[name], _ = digest.(string)
	}
	if version == 2 {
		role, _ := fields["role"].(int64)
		if role < 0 || role > math.MaxUint8 {
			return Identity{}, broken(CodeIdentityMismatch, "S-IDN-2", "the role is not that of the identity").found("%d", role)
		}
		stored.Role = Role(role)
		stored.Schema, _ = fields["schema"].(string)
	}
	if string(stored.Text()) != string(text) {
		return Identity{}, bad("meta/identity is not the canonical text")
	}
	return stored, nil
}

// identityLimits lets meta/identity be as long as the names of the file make it.
func (r *ShardReader) identityLimits() Limits {
	limits := r.limits
	count, bytes := uint64(r.index.count), uint64(0)
	for i := range r.index.count {
		bytes += uint64(len(r.index.nameBytes(i)))
	}
	limits.MaxJSONBytes = max(limits.MaxJSONBytes, 256+72*count+6*bytes)
	limits.MaxJSONNodes = max(limits.MaxJSONNodes, 8+2*count)
	return limits
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

// difference names the first difference from what was stated (S-IDN-2).
func (d Identity) difference(stated Identity) error {
	bad := func(problem, entry string) error {
		e := broken(CodeIdentityMismatch, "S-IDN-2", problem)
		e.Entry = entry
		return e
	}
	if d.Version >= 2 && d.Role != stated.Role {
		return bad("the role is not that of the identity", "")
	}
	if d.Version >= 2 && d.Schema != stated.Schema {
		return bad("the schema section is not that of the identity", "")
	}
	names := slices.Collect(maps.Keys(d.Entries))
	for name := range stated.Entries {
		if _, there := d.Entries[name]; !there {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		digest, there := d.Entries[name]
		switch wanted, isStated := stated.Entries[name]; {
		case !there:
			return bad("an entry of the identity is missing", name)
		case !isStated:
			return bad("the identity does not have this entry", name)
		case wanted != digest:
			return bad("the entry is not that of the identity", name)
		}
	}
	return nil
}
