import type { ChannelFacts } from "../../model/facts";
import { controlsHeight } from "../controls";
import type { Panel } from "../panel";
import { values } from "../table";
import { Heatmap, mostDimensions } from "./Heatmap";
import { words } from "./words";

/** Many dimensions over time, a row each. */
export const heatmap: Panel = {
  name: "heatmap",
  title: words.title,
  isOverTime: true,
  component: Heatmap,
  table: values,
  fits: ({ channel }) => score(channel),
  height: ({ channel }) => Math.min(320, Math.max(120, channel.dimensions * 3)) + controlsHeight,
};

function score({ layout, lane, shape, dimensions, horizon }: ChannelFacts): number {
  if (layout !== "dense" || lane === "extra" || dimensions < 2 || dimensions > mostDimensions) return 0;
  if (shape.length !== 1 || horizon !== null) return 2;
  return dimensions > 16 ? (dimensions <= 256 ? 9 : 6) : 2;
}
