//! Episodes.
