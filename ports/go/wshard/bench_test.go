package wshard

import (
	"path/filepath"
	"testing"
)

func benchmarkFile(b *testing.B, options SaveOptions) string {
	b.Helper()
	const steps = 2000
	ep := New("bench", steps)
	camera := make([]uint8, steps*64*64*3)
	for i := range camera {
		camera[i] = uint8(i / 1000)
	}
	ep.Observations["camera"] = FromValues(camera, 64, 64, 3)
	ep.Observations["state"] = FromValues(make([]float32, steps*14), 14)
	ep.Actions["u"] = FromValues(make([]float32, steps*7), 7)
	path := filepath.Join(b.TempDir(), "bench.wshard")
	options.NoSync = true
	if err := Save(path, ep, options); err != nil {
		b.Fatal(err)
	}
	return path
}

func BenchmarkOpen(b *testing.B) {
	path := benchmarkFile(b, SaveOptions{})
	b.ReportAllocs()
	for b.Loop() {
		ep, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		_ = ep.Close()
	}
}

func BenchmarkWindow(b *testing.B) {
	for name, options := range map[string]SaveOptions{"raw": {}, "training": {Profile: ProfileTraining}} {
		b.Run(name, func(b *testing.B) {
			ep := reopen(b, benchmarkFile(b, options))
			b.SetBytes(64 * 64 * 64 * 3)
			t := 0
			for b.Loop() {
				window, err := ep.Observations["camera"].Window(t, t+64)
				if err == nil {
					_, err = window.Data()
				}
				if err != nil {
					b.Fatal(err)
				}
				t = (t + 777) % 1900
			}
		})
	}
}
