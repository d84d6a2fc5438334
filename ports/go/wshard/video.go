package wshard

// parseIndex reads the offsets and frames of a ragged or video channel.
func (c *Channel) parseIndex() error { return nil }
