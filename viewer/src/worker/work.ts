import { answerProjections } from "../panels/latent/projection-worker";
import { answerReads } from "./index";
import type { Work } from "./start";

/** In a worker: does what the worker was started for. */
export function work(): void {
  if (self.name === ("project" satisfies Work)) answerProjections();
  else answerReads();
}
