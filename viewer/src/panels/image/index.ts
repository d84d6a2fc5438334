import type { ChannelFacts } from "../../model/facts";
import { words as common } from "../../words";
import { controlsHeight } from "../controls";
import type { Panel } from "../panel";
import { atCursor } from "../table";
import { Image } from "./Image";
import { isColour, pictureOf } from "./pixels";
import { words } from "./words";

/** Pictures at the cursor: cameras, depth, and what a model predicted of them. */
export const image: Panel = {
  name: "image",
  title: words.title,
  isOverTime: false,
  component: Image,
  fits: ({ channel }) => score(channel),
  height({ channel, predictions }) {
    const picture = pictureOf(channel);
    if (picture === null) return 240;
    const needsControls = predictions.length > 0 || !isColour(channel, picture);
    return 260 + (needsControls ? controlsHeight : 0);
  },
  table: atCursor((channel) => {
    const { planes = 0, channelFirst = false } = pictureOf(channel) ?? {};
    const { colours, value } = common.numbers;
    // The bytes that decoders add to each pixel say nothing.
    const names = planes === 1 ? [value] : colours.slice(0, channel.layout === "video" ? 3 : planes);
    return { names, width: planes, isPlanar: channelFirst };
  }),
};

function score(channel: ChannelFacts): number {
  if (channel.layout === "video") return 10;
  if (channel.layout !== "dense") return 0;
  const picture = pictureOf(channel);
  if (picture === null) return 0;
  // A few rows or columns are a matrix, or points, rather than a picture.
  if (Math.min(picture.height, picture.width) < 8) return picture.height * picture.width > 1 ? 2 : 0;
  return picture.guess ? 4 : 9;
}
