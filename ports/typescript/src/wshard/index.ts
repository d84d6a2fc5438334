// Episodes: spec/wshard.md.
export { BaseChannel } from "./base-channel.js";
export type { Block } from "./blocks.js";
export { type Channel, DenseChannel, RaggedChannel, TextChannel, UnreadableChannel } from "./channels.js";
export { type ChunkManifest, type ChunkRow, parseChunkManifest } from "./chunks.js";
export type { Timebase } from "./clocks.js";
export { Episode } from "./episode.js";
export type {
  ChannelFields,
  ChannelInput,
  DenseInput,
  EpisodeInput,
  IntervalInput,
  LabelInput,
  RaggedInput,
  ResidualInput,
  TextInput,
  VideoInput,
} from "./input.js";
export type { Extra, LabelLane } from "./lanes.js";
export type { Interval, Label, Row } from "./metadata.js";
export { type EpisodeOptions, openEpisode } from "./opening.js";
export { imageSize, type Overview, type OverviewOptions, Overviews, openOverviews, type Poster } from "./overviews.js";
export { openRecording, Recording } from "./recording.js";
export { Residual } from "./residual.js";
export {
  dequantise,
  type Edges,
  packSigns,
  type Quantised,
  quantise,
  secondDifferenceSigns,
  unpackSigns,
} from "./residual-codes.js";
export { fingerprint } from "./sidecars.js";
export type { NumbersInput } from "./values.js";
export { type FrameIndex, type Packet, VideoChannel } from "./video.js";
export { encodeEpisode, type SaveOptions, writeEpisode } from "./writing.js";
