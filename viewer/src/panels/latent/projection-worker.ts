// Projects embeddings away from the page, which stays alive meanwhile.

import type { TypedArray } from "@shard-format/core";
import { project } from "../../plot-data/pca";

export function answerProjections(): void {
  self.onmessage = ({ data }: MessageEvent<{ values: TypedArray; width: number }>) => {
    const projection = project(data.values, data.width);
    postMessage(projection, { transfer: [projection.points.buffer as ArrayBuffer] });
  };
}
