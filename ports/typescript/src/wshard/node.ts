// Episodes on disk, with everything of @shard-format/core/wshard.
export { openEpisode, saveEpisode, sidecarsOf } from "../node/episodes.js";
export { checkEpisode } from "./checking.js";
export * from "./index.js";
