package wshard

import (
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

// Provenance says which recording an episode was made from (spec/wshard.md, section 13).
type Provenance struct {
	// StartState, EndState and PrevIdentity are empty or 64 hex digits.
	StartState, EndState, PrevIdentity string
	RunID                              string
	Epoch, FirstSeq, LastSeq           int64
	Source                             map[string]string
}

const exactInFloat = 1<<53 - 1

func isDigest(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

func parseProvenance(fields shard.Object) (*Provenance, error) {
	found := &Provenance{Source: map[string]string{}}
	texts := []struct {
		field string
		place *string
	}{
		{"start_state", &found.StartState}, {"end_state", &found.EndState}, {"prev_identity", &found.PrevIdentity}, {"run_id", &found.RunID},
	}
	for _, one := range texts {
		text, ok := fields[one.field].(string)
		if !ok || (one.field != "run_id" && text != "" && !isDigest(text)) {
			return nil, wrongField("W-PRV-1", one.field, "a string, of 64 lower-case hex digits if it is a state", fields[one.field])
		}
		*one.place = text
	}
	numbers := []struct {
		field string
		place *int64
	}{{"epoch", &found.Epoch}, {"first_seq", &found.FirstSeq}, {"last_seq", &found.LastSeq}}
	for _, one := range numbers {
		number, ok := fields[one.field].(int64)
		if !ok || number > exactInFloat || number < -exactInFloat {
			return nil, wrongField("W-PRV-1", one.field, "an integer within 2**53", fields[one.field])
		}
		*one.place = number
	}
	source, ok := fields["source"].(map[string]any)
	if !ok {
		return nil, wrongField("W-PRV-1", "source", "an object of strings", fields["source"])
	}
	for key, value := range source {
		text, ok := value.(string)
		if !ok {
			return nil, wrongField("W-PRV-1", "source", "an object of strings", value)
		}
		found.Source[key] = text
	}
	if fields["v"] != int64(1) {
		return nil, wrongField("W-PRV-1", "v", "1", fields["v"])
	}
	if len(fields) != len(texts)+len(numbers)+2 {
		return nil, badMetadata("W-PRV-1", "meta/provenance has a field that it must not have")
	}
	return found, nil
}

func (p *Provenance) fields() (shard.Object, error) {
	source := shard.Object{}
	for key, value := range p.Source {
		source[key] = value
	}
	fields := shard.Object{
		"end_state": p.EndState, "epoch": p.Epoch, "first_seq": p.FirstSeq, "last_seq": p.LastSeq,
		"prev_identity": p.PrevIdentity, "run_id": p.RunID, "source": source, "start_state": p.StartState, "v": int64(1),
	}
	_, err := parseProvenance(fields)
	return fields, err
}
