import type { ChannelFacts } from "../../model/facts";
import { words as common } from "../../words";
import { controlsHeight } from "../controls";
import type { Panel } from "../panel";
import { atCursor } from "../table";
import { Points } from "./Points";
import { words } from "./words";

/** Points in space at the cursor: scans, tracked objects, key points. */
export const points: Panel = {
  name: "points",
  title: words.title,
  isOverTime: false,
  component: Points,
  fits: ({ channel }) => score(channel),
  height: () => 300 + controlsHeight,
  table: atCursor(({ shape }) => ({
    names: Array.from({ length: shape.at(-1) ?? 3 }, (_, at) => "xyz"[at] ?? common.numbers.column(at)),
  })),
};

function score({ layout, shape, horizon, dtype }: ChannelFacts): number {
  const columns = shape.at(-1) ?? 0;
  if (columns < 3 || columns > 6 || dtype === "bool") return 0;
  if (layout === "ragged") return shape.length === 1 ? 10 : 0;
  if (layout !== "dense" || shape.length !== 2 || horizon !== null) return 0;
  // Three rows of three are a rotation rather than points.
  return (shape[0] ?? 0) >= 8 ? 9 : 3;
}
