//! Packs of samples.
