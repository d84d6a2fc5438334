package shard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// ShardMetadata is the schema section with a field for each known key. Keys that it does not know survive reading and
// writing. Schema and ShardOptions.Schema have the section as plain JSON, which keeps every number exact.
type ShardMetadata struct {
	SchemaVersion string                `json:"schema_version,omitempty"`
	SchemaURI     string                `json:"schema_uri,omitempty"`
	SchemaID      string                `json:"schema_id,omitempty"`
	CreatedAt     time.Time             `json:"created_at,omitzero"`
	SourceURI     string                `json:"source_uri,omitempty"`
	Producer      string                `json:"producer,omitempty"`
	Description   string                `json:"description,omitempty"`
	Tags          []string              `json:"tags,omitempty"`
	TagDictionary []string              `json:"tag_dictionary,omitempty"`
	Extra         map[string]any        `json:"extra,omitempty"`
	Profile       string                `json:"profile,omitempty"`
	SampleShard   *SampleProfile        `json:"sample_shard,omitempty"`
	Manifest      *ManifestMeta         `json:"manifest,omitempty"`
	EntryMetadata map[string]*EntryMeta `json:"entry_metadata,omitempty"`

	// others has the keys that are not known.
	others Object
}

// EntryMeta is what the schema section says about one entry.
type EntryMeta struct {
	ContentType       string         `json:"content_type,omitempty"`
	Tags              []string       `json:"tags,omitempty"`
	Description       string         `json:"description,omitempty"`
	Extra             map[string]any `json:"extra,omitempty"`
	Codec             string         `json:"codec,omitempty"`
	CodecVersion      string         `json:"codec_version,omitempty"`
	SchemaFingerprint string         `json:"schema_fingerprint,omitempty"`
	SemanticType      string         `json:"semantic_type,omitempty"`
	CanonicalHash     string         `json:"canonical_hash,omitempty"`
	BaseHash          string         `json:"base_hash,omitempty"`
	RowCount          uint64         `json:"row_count,omitempty"`
	Shape             []int64        `json:"shape,omitempty"`
	Stats             map[string]any `json:"stats,omitempty"`
}

// SampleProfile describes a file of samples.
type SampleProfile struct {
	DatasetName   string         `json:"dataset_name,omitempty"`
	SampleIDType  string         `json:"sample_id_type,omitempty"`
	KeyEncoding   string         `json:"key_encoding,omitempty"`
	SampleCount   uint64         `json:"sample_count,omitempty"`
	DatasetSchema map[string]any `json:"dataset_schema,omitempty"`
	Splits        map[string]any `json:"splits,omitempty"`
	LabelMap      map[string]any `json:"label_map,omitempty"`
	FeatureStats  map[string]any `json:"feature_stats,omitempty"`
}

// ManifestMeta is a manifest in the schema section.
type ManifestMeta struct {
	Files      []*ManifestFileRef `json:"files,omitempty"`
	Partitions map[string]any     `json:"partitions,omitempty"`
}

// ManifestFileRef names one file.
type ManifestFileRef struct {
	URI        string `json:"uri,omitempty"`
	SHA256     string `json:"sha256,omitempty"`
	Role       string `json:"role,omitempty"`
	Profile    string `json:"profile,omitempty"`
	StartKey   string `json:"start_key,omitempty"`
	EndKey     string `json:"end_key,omitempty"`
	EntryCount uint64 `json:"entry_count,omitempty"`
}

var metadataKeys = []string{
	"schema_version", "schema_uri", "schema_id", "created_at", "source_uri", "producer", "description", "tags", "tag_dictionary",
	"extra", "profile", "sample_shard", "manifest", "entry_metadata",
}

// NewShardMetadata gives metadata of the known version, without a time: set CreatedAt if the file shall have one.
func NewShardMetadata() *ShardMetadata {
	return &ShardMetadata{SchemaVersion: "shard-v2.1", EntryMetadata: map[string]*EntryMeta{}}
}

// SetSampleProfile describes the file as one of samples.
func (m *ShardMetadata) SetSampleProfile(profile *SampleProfile) {
	m.Profile, m.SampleShard = "sampleshard.v1", profile
}

// SetManifestProfile describes the file as a manifest.
func (m *ShardMetadata) SetManifestProfile(profile *ManifestMeta) {
	m.Profile, m.Manifest = "manifest.v1", profile
}

// SetEntryMeta describes an entry.
func (m *ShardMetadata) SetEntryMeta(name string, meta *EntryMeta) {
	if m.EntryMetadata == nil {
		m.EntryMetadata = map[string]*EntryMeta{}
	}
	m.EntryMetadata[name] = meta
}

// GetEntryMeta gives the description of an entry, or nil.
func (m *ShardMetadata) GetEntryMeta(name string) *EntryMeta { return m.EntryMetadata[name] }

// AddTag adds a tag of the file, once.
func (m *ShardMetadata) AddTag(tag string) {
	if !slices.Contains(m.Tags, tag) {
		m.Tags = append(m.Tags, tag)
	}
}

// Object gives the section as plain JSON.
func (m *ShardMetadata) Object() (Object, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, &Error{Code: CodeInvalidArgument, Problem: "the metadata have no JSON form", Err: err}
	}
	object, err := ParseObject(text)
	if err != nil {
		return nil, err
	}
	maps.Copy(object, m.others)
	return object, nil
}

// Marshal gives the canonical JSON of the section.
func (m *ShardMetadata) Marshal() ([]byte, error) {
	object, err := m.Object()
	if err != nil {
		return nil, err
	}
	return CanonicalJSON(object)
}

// Unmarshal reads a section.
func (m *ShardMetadata) Unmarshal(text []byte) error {
	object, err := parseObject(text, "the schema section", "S-SCH-2", Limits{}.withDefaults())
	if err == nil {
		err = checkSchema(object)
	}
	if err != nil {
		return err
	}
	return m.set(object)
}

func (m *ShardMetadata) set(object Object) error {
	text, err := CanonicalJSON(object)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, m); err != nil {
		return &Error{Code: CodeBadMetadata, Rule: "S-SCH-4", Problem: "a key of the schema section has another type", Err: err}
	}
	m.others = maps.Clone(object)
	for _, key := range metadataKeys {
		delete(m.others, key)
	}
	return nil
}

// ParseShardMetadata reads a section.
func ParseShardMetadata(text []byte) (*ShardMetadata, error) {
	m := &ShardMetadata{}
	return m, m.Unmarshal(text)
}

// ComputeSchemaID is the schema_id of spec/shard.md, section 9.
func (m *ShardMetadata) ComputeSchemaID() string {
	digest := sha256.New()
	add := func(texts ...string) {
		for _, text := range texts {
			_, _ = digest.Write(append([]byte(text), 0))
		}
	}
	add(m.TagDictionary...)
	for _, name := range slices.Sorted(maps.Keys(m.EntryMetadata)) {
		one := m.EntryMetadata[name]
		if one == nil {
			one = &EntryMeta{}
		}
		add(name, one.ContentType, one.SemanticType)
	}
	return hex.EncodeToString(digest.Sum(nil))[:16]
}
