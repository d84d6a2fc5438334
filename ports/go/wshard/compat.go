package wshard

import (
	"errors"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

// Names of the package github.com/phenomenon0/wshard, for programs that use them.
type (
	// WShardEpisode is Episode.
	WShardEpisode = Episode
	// WShardChannel is Channel.
	WShardChannel = Channel
	// WShardTimebase is Timebase.
	WShardTimebase = Timebase
	// WShardResidual is Residual.
	WShardResidual = Residual
)

// OpenWShard is Open.
func OpenWShard(path string) (*Episode, error) { return Open(path) }

// CreateWShard is Save.
func CreateWShard(path string, ep *Episode) error { return Save(path, ep) }

// AddMultiModalObservation adds one modality of a group of observations.
func (ep *Episode) AddMultiModalObservation(group, modality string, c *Channel) {
	c.Modality = modality
	if ep.Observations == nil {
		ep.Observations = map[string]*Channel{}
	}
	ep.Observations[group+"/"+modality] = c
}

// GetMultiModalObservations gives the observations of a group by modality.
func (ep *Episode) GetMultiModalObservations(group string) map[string]*Channel {
	found := map[string]*Channel{}
	for key, c := range ep.Observations {
		if modality, isOfGroup := strings.CutPrefix(key, group+"/"); isOfGroup {
			found[modality] = c
		}
	}
	return found
}

// SetLatentActions adds the latent actions of a model, f32 [T, D].
func (ep *Episode) SetLatentActions(model string, c *Channel) { ep.SetOmen(latentAction, model, c) }

// GetLatentActions gives the latent actions of a model; nil if there are none.
func (ep *Episode) GetLatentActions(model string) *Channel { return ep.Omens[latentAction][model] }

// SetLatentActionCodebook adds the codebook indices of a model's latent actions, i32 [T].
func (ep *Episode) SetLatentActionCodebook(model string, c *Channel) {
	ep.SetOmen(latentCodebook, model, c)
}

// GetLatentActionCodebook gives the codebook indices of a model's latent actions; nil if there are none.
func (ep *Episode) GetLatentActionCodebook(model string) *Channel {
	return ep.Omens[latentCodebook][model]
}

// ChunkManifestFromJSON reads the text of a manifest.
func ChunkManifestFromJSON(text []byte) (*ChunkManifest, error) {
	fields, err := shard.ParseObject(text)
	if err != nil {
		return nil, withRule(err, "W-CHK-1")
	}
	return parseManifest(fields)
}

// IterChunks calls a function for each chunk in order, until it returns an error. A chunk is open while the function runs.
func (r *ChunkedEpisodeReader) IterChunks(each func(chunk *Episode) error) error {
	for i := range r.manifest.Chunks {
		chunk, err := r.LoadChunk(i)
		if err != nil {
			return err
		}
		err = each(chunk)
		if err := errors.Join(err, chunk.Close()); err != nil {
			return err
		}
	}
	return nil
}
