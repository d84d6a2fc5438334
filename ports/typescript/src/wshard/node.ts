// Episodes on disk, with everything of @shard-format/core/wshard.
export { openEpisode, openOverviews, openRecording, saveEpisode, saveOverviews, sidecarsOf } from "../node/episodes.js";
export { Recorder } from "../node/recorder.js";
export type { ChannelDef, StepValue } from "../node/recorder-channels.js";
export type { Annotation, RecorderOptions, StepFacts } from "../node/recorder-options.js";
export { type Recovery, recoverChunks, recoverRecording } from "../node/recovery.js";
export { checkEpisode } from "./checking.js";
export * from "./index.js";
