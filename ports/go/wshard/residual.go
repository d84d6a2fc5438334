package wshard

// Residual is what is left of a channel, or of a prediction's error, in a compact form (spec/wshard.md, section 9).
type Residual struct {
	// Channel is what it is about; Model is empty if it is about the signal itself.
	Channel, Model string
	// Type is Sign2ndDiff, DeltaQ, or one that this package does not know.
	Type string
	// Window is the number of steps that share a scale; DeltaQ only.
	Window int
	// Values has the stored values: bits of Sign2ndDiff, i8 of DeltaQ.
	Values *Channel
	// Scales has one f32 for each window and dimension; nil unless the type is DeltaQ.
	Scales *Channel
	// steps and edges are those of the episode.
	steps int
	edges string
}
