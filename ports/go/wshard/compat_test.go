package wshard

import (
	"path/filepath"
	"testing"
)

func TestTheNamesOfTheOlderPackageGiveTheSameFiles(t *testing.T) {
	ep := randomEpisode(21, 12)
	ep.SetLatentActions("m", FromValues(make([]float32, 24), 2))
	ep.SetLatentActionCodebook("m", FromValues(make([]int32, 12)))
	ep.AddMultiModalObservation("robot", "rgb", FromValues(make([]uint8, 48), 4))
	path := filepath.Join(t.TempDir(), "ep.wshard")
	if err := CreateWShard(path, ep); err != nil {
		t.Fatal(err)
	}
	found := must[*WShardEpisode](t)(OpenWShard(path))
	defer func() { _ = found.Close() }()
	expectSame(t, values(t, found), values(t, ep))
	if found.GetLatentActions("m") == nil || found.GetLatentActionCodebook("m") == nil {
		t.Error("the latent actions are missing")
	}
	if found.GetMultiModalObservations("robot")["rgb"] == nil {
		t.Error("the modality is missing")
	}
	for name, wanted := range map[string]string{
		LatentActionBlockName("m"):                "omen/latent_action/m",
		LatentCodebookBlockName("m"):              "omen/latent_action_codebook/m",
		MultiModalSignalBlockName("robot", "rgb"): "signal/robot/rgb",
		OmenBlockName("c", "m"):                   "omen/c/m",
		UncertBlockName("c", "m", "std"):          "uncert/c/m/std",
		ResidualSign2ndDiffBlockName("c"):         "residual/c/sign2nddiff",
	} {
		if name != wanted {
			t.Errorf("%s is not %s", name, wanted)
		}
	}
	steps := 0
	reader := must[*ChunkedEpisodeReader](t)(NewChunkedEpisodeReader(must[string](t)(SaveChunked(t.TempDir(), ep, 5))))
	err := reader.IterChunks(func(chunk *Episode) error {
		steps += chunk.LengthT
		return nil
	})
	if err != nil || steps != 12 {
		t.Errorf("the chunks have %d steps: %v", steps, err)
	}
}
