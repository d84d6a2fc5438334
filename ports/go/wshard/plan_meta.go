package wshard

import (
	"maps"
	"slices"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

// addDescriptions plans meta/wshard, meta/episode and meta/channels.
func (p *planner) addDescriptions() error {
	if p.origin == nil {
		for name, fields := range map[string]shard.Object{
			MetaWShard: p.ep.wshardFields(), MetaEpisode: p.ep.episodeFields(), MetaChannels: {"channels": p.rowList(slices.Collect(maps.Keys(p.rows)))},
		} {
			if err := p.addJSON(name, fields); err != nil {
				return err
			}
		}
		return nil
	}
	// What is still true stays as it is. What was true is what the file says when it is read again.
	before, err := openFile(p.origin.reader, nil)
	if err != nil {
		return err
	}
	wshard := merged(p.origin.wshard, before.wshardFields(), p.ep.wshardFields())
	if !sameJSON(before.Timebase.fields(), p.ep.Timebase.fields()) {
		delete(wshard, "timebase")
	}
	channels, err := p.changedRows(before)
	if err != nil {
		return err
	}
	for _, one := range []struct {
		name     string
		old, now shard.Object
	}{
		{MetaWShard, p.origin.wshard, wshard},
		{MetaEpisode, p.origin.episode, merged(p.origin.episode, before.episodeFields(), p.ep.episodeFields())},
		{MetaChannels, p.origin.channels, channels},
	} {
		switch isThere := p.origin.reader.HasEntry(one.name); {
		case isThere && sameJSON(one.old, one.now):
			err = p.keepText(one.name)
		case isThere || len(one.now) > 0:
			err = p.addJSON(one.name, one.now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rowList gives the rows of blocks in the order of a new file.
func (p *planner) rowList(blocks []string) []any {
	slices.SortFunc(blocks, func(a, b string) int {
		if x, y := rowPlace(a), rowPlace(b); x != y {
			return x - y
		}
		return strings.Compare(p.rows[a]["id"].(string), p.rows[b]["id"].(string))
	})
	list := make([]any, len(blocks))
	for i, block := range blocks {
		list[i] = p.rows[block]
	}
	return list
}

func sameJSON(a, b any) bool {
	x, err1 := shard.CanonicalJSON(a)
	y, err2 := shard.CanonicalJSON(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// merged gives the stored fields with those replaced that mean something else now.
func merged(stored, before, wanted shard.Object) shard.Object {
	fields := shard.Object{}
	maps.Copy(fields, stored)
	older := map[string]string{"episode_id": "id", "length_T": "length_t"}
	keys := maps.Clone(before)
	if keys == nil {
		keys = shard.Object{}
	}
	maps.Copy(keys, wanted)
	for key := range keys {
		if _, isWanted := wanted[key]; isWanted && sameJSON(before[key], wanted[key]) {
			continue
		}
		if old, there := older[key]; there {
			delete(fields, old)
		}
		delete(fields, key)
		if value, isWanted := wanted[key]; isWanted {
			fields[key] = value
		}
	}
	return fields
}

// changedRows gives meta/channels of an episode that was loaded: a row that still says what is true stays as it is.
func (p *planner) changedRows(before *Episode) (shard.Object, error) {
	listed, err := parseRows(p.origin.channels)
	if err != nil {
		return nil, err
	}
	loaded := newPlanner(before).planRows()
	isTrue := func(block string) bool {
		mine, there := p.rows[block]
		old, was := loaded[block]
		isOutdated := p.ep.LengthT != before.LengthT && mine["length"] != nil
		return there == was && !isOutdated && sameJSON(mine, old)
	}
	var kept []any
	isChanged := false
	known := map[string]bool{}
	for _, row := range listed {
		known[row.block] = true
		isGone := p.origin.reader.HasEntry(row.block) && p.entries[row.block] == nil
		mine := p.rows[row.block]
		switch {
		case isGone:
			isChanged = true
		case isTrue(row.block):
			fields := shard.Object{"id": row.id, "signal_block": row.block}
			if _, hasID := row.fields["id"]; hasID {
				fields = row.fields
			} else { // an older map has the block as its key
				maps.Copy(fields, row.fields)
			}
			kept = append(kept, fields)
		default:
			isChanged = true
			if mine != nil {
				fields := others(row.fields, knownRowFields)
				if fields == nil {
					fields = shard.Object{}
				}
				maps.Copy(fields, mine)
				kept = append(kept, fields)
			}
		}
	}
	var added []string
	for block := range p.rows {
		// What another description than a row says need not be said again.
		if !known[block] && !(p.origin.reader.HasEntry(block) && isTrue(block)) {
			added = append(added, block)
		}
	}
	if len(added) == 0 && !isChanged {
		return p.origin.channels, nil
	}
	fields := shard.Object{}
	if _, isList := p.origin.channels["channels"]; isList {
		maps.Copy(fields, p.origin.channels)
	}
	delete(fields, "modality_groups") // derived by older writers, and no longer right
	fields["channels"] = append(kept, p.rowList(added)...)
	return fields, nil
}

var knownRowFields = func() map[string]bool {
	known := map[string]bool{}
	for field := range rowFields {
		known[field] = true
	}
	return known
}()
