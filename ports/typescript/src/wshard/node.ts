// Episodes on disk, with everything of @shard-format/core/wshard.
export { openEpisode, saveEpisode, sidecarsOf } from "../node/episodes.js";
export {
  type Annotation,
  Recorder,
  type RecorderOptions,
  type Recovery,
  recoverRecording,
  type StepFacts,
} from "../node/recorder.js";
export type { ChannelDef, StepValue } from "../node/recorder-channels.js";
export { checkEpisode } from "./checking.js";
export * from "./index.js";
