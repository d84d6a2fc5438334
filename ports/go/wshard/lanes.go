package wshard

import (
	"slices"
	"strings"
)

// Names of entries (spec/wshard.md, section 2).
const (
	MetaWShard     = "meta/wshard"
	MetaEpisode    = "meta/episode"
	MetaChannels   = "meta/channels"
	MetaProvenance = "meta/provenance"
	MetaIdentity   = "meta/identity"
	MetaSidecar    = "meta/sidecar"
	MetaEdit       = "meta/edit"

	BlockReward      = "reward"
	BlockRewardExact = "reward/exact"
	BlockDone        = "done"
	BlockTerminated  = "terminated"
	BlockTruncated   = "truncated"
	BlockTicks       = "time/ticks"
	BlockTimestamps  = "time/timestamps_ns"
)

// Lanes are the prefixes of blocks.
const (
	laneMeta     = "meta"
	laneSignal   = "signal"
	laneAction   = "action"
	laneReward   = "reward"
	laneTime     = "time"
	laneOffsets  = "offsets"
	laneFrames   = "frames"
	laneOmen     = "omen"
	laneUncert   = "uncert"
	laneResidual = "residual"
	laneLabel    = "label"
	// laneExtra has no prefix: an entry that belongs to no lane, by its name.
	laneExtra = ""
)

// Types of residuals.
const (
	Sign2ndDiff = "sign2nddiff"
	DeltaQ      = "delta_q"

	scalesSuffix = "/scales"
)

// Modalities that have a name; others are kept.
const (
	ModalityRGB            = "rgb"
	ModalityDepth          = "depth"
	ModalityLanguage       = "language"
	ModalityProprioception = "proprioception"
	ModalityAudio          = "audio"
	ModalityVideo          = "video"
	ModalityPointCloud     = "pointcloud"
)

const (
	latentAction   = "latent_action"
	latentCodebook = "latent_action_codebook"
)

// fileOrder is the order of a new file: whole names, lanes with a slash, and "" for everything else.
var fileOrder = []string{
	MetaWShard, MetaEpisode, MetaChannels, "signal/", "action/", BlockReward, BlockRewardExact, BlockDone, BlockTerminated,
	BlockTruncated, BlockTicks, BlockTimestamps, "time/", "offsets/", "frames/", "omen/", "uncert/", "residual/", "label/", "",
	"meta/", MetaProvenance, MetaIdentity,
}

// placeOf is where the group of an entry is in a new file.
func placeOf(name string) int {
	if place := slices.Index(fileOrder, name); place >= 0 && name != "" {
		return place
	}
	lane, _, _ := strings.Cut(name, "/")
	if place := slices.Index(fileOrder, lane+"/"); place >= 0 {
		return place
	}
	return slices.Index(fileOrder, "")
}

// compareInFile orders entries as a new file has them.
func compareInFile(a, b string) int {
	if x, y := placeOf(a), placeOf(b); x != y {
		return x - y
	}
	return strings.Compare(a, b)
}

var rowOrder = []string{laneSignal, laneAction, laneReward, laneOmen, laneUncert, laneResidual}

// rowPlace is where the group of a row is in a new meta/channels.
func rowPlace(block string) int {
	lane, _, _ := strings.Cut(block, "/")
	if place := slices.Index(rowOrder, lane); place >= 0 {
		return place
	}
	return len(rowOrder)
}

// mayHaveOneMore tells whether blocks of a lane may hold T + 1 entries without saying so (W-BLK-2).
func mayHaveOneMore(block string) bool {
	lane, _, _ := strings.Cut(block, "/")
	return lane == laneSignal || lane == laneOmen || lane == laneUncert
}

// address says where a block belongs: its lane, and its keys there. An observation has one key, an omen a channel and a
// model, an uncertainty a channel, a model and a type, an extra entry its whole name.
type address struct {
	lane string
	keys [3]string
}

// addressOf places a block by its name and, if there is one, its row (section 2).
func addressOf(block string, row *row) address {
	lane, rest, _ := strings.Cut(block, "/")
	found := address{lane: lane}
	said := func(field, otherwise string) string {
		if row != nil {
			if text := row.text(field); text != "" {
				return text
			}
		}
		return otherwise
	}
	isPlaced := false
	switch lane {
	case laneSignal, laneAction:
		found.keys[0] = rest
		if row != nil && rest != "" {
			found.keys[0] = row.id
		}
		isPlaced = found.keys[0] != ""
	case laneOmen:
		channel, model, _ := strings.Cut(rest, "/")
		found.keys = [3]string{said("channel", channel), said("model", model)}
		isPlaced = found.keys[0] != "" && found.keys[1] != ""
	case laneUncert:
		channel, rest, _ := strings.Cut(rest, "/")
		model, kind := cutLast(rest)
		found.keys = [3]string{said("channel", channel), said("model", model), said("type", kind)}
		isPlaced = found.keys[0] != "" && found.keys[2] != ""
	case laneResidual:
		found.keys[0] = strings.TrimSuffix(rest, "/"+Sign2ndDiff)
		isPlaced = found.keys[0] != ""
	case laneLabel:
		found.keys[0] = rest
		isPlaced = rest != ""
	}
	if !isPlaced { // W-NAM-2
		return address{lane: laneExtra, keys: [3]string{block}}
	}
	return found
}

// cutLast cuts at the last slash; without one, everything is the second part.
func cutLast(text string) (before, after string) {
	if at := strings.LastIndexByte(text, '/'); at >= 0 {
		return text[:at], text[at+1:]
	}
	return "", text
}

// blockName is the name that a writer gives to a block of these keys.
func (a address) blockName() string {
	parts := []string{a.lane}
	for _, key := range a.keys {
		if key != "" {
			parts = append(parts, key)
		}
	}
	return strings.Join(parts, "/")
}

// checkID checks a key of a block that is written (W-NAM-1).
func checkID(id string) error {
	for part := range strings.SplitSeq(id, "/") {
		if part == "" || part == "." || part == ".." {
			e := invalid("the id %.80q cannot be a part of a name", id)
			e.Rule, e.Expected = "W-NAM-1", "no empty part, '.' or '..' between slashes"
			return e
		}
	}
	return nil
}

// OmenBlockName is the block of a model's prediction of a channel.
func OmenBlockName(channel, model string) string { return "omen/" + channel + "/" + model }

// UncertBlockName is the block of the uncertainty of a prediction; kind is for example std.
func UncertBlockName(channel, model, kind string) string {
	return address{laneUncert, [3]string{channel, model, kind}}.blockName()
}

// ResidualSign2ndDiffBlockName is the block of the signs of a channel's second differences.
func ResidualSign2ndDiffBlockName(channel string) string {
	return "residual/" + channel + "/" + Sign2ndDiff
}

// LatentActionBlockName is the block of a model's latent actions.
func LatentActionBlockName(model string) string { return OmenBlockName(latentAction, model) }

// LatentCodebookBlockName is the block of the codebook indices of a model's latent actions.
func LatentCodebookBlockName(model string) string { return OmenBlockName(latentCodebook, model) }

// MultiModalSignalBlockName is the block of one modality of a group of observations.
func MultiModalSignalBlockName(group, modality string) string {
	return "signal/" + group + "/" + modality
}
