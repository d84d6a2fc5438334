import type { ChannelFacts } from "../../model/facts";
import { heatmap } from "../heatmap";
import type { Panel, PanelProps } from "../panel";
import { values } from "../table";
import { Codes, listHeight } from "./Codes";
import { Embedding, projectionHeight } from "./Embedding";
import { words } from "./words";
import "./latent.css";

const integers = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"];
const mostBooks = 16;

/** What a model knows in its own terms: codes of a codebook, or embeddings. */
export const latent: Panel = {
  name: "latent",
  title: words.title,
  isOverTime: true,
  component: (props: PanelProps) => (areCodes(props.subject.channel) ? <Codes {...props} /> : <Embedding {...props} />),
  fits: ({ channel }) => score(channel),
  table: values,
  height(subject, settings) {
    const { channel } = subject;
    if (areCodes(channel)) return listHeight + Math.max(40, Math.min(160, 20 * channel.dimensions));
    return Math.min(180, heatmap.height(subject, settings)) + projectionHeight;
  },
};

function areCodes({ dtype, shape, dimensions }: ChannelFacts): boolean {
  return integers.includes(dtype) && shape.length <= 1 && dimensions <= mostBooks;
}

function score(channel: ChannelFacts): number {
  const { layout, lane, id, shape, dimensions, row, horizon } = channel;
  if (layout !== "dense" || lane === "extra" || horizon !== null || shape.length > 1 || dimensions < 1) return 0;
  const said = ["semantics", "modality"].some((field) => {
    const text = row[field];
    return typeof text === "string" && /codebook|token|latent|embedding/i.test(text);
  });
  // The format itself has names for the latents of a model.
  const named = lane === "omen" && (id === "latent_action" || id === "latent_action_codebook");
  if (areCodes(channel)) return said || named ? 10 : 1;
  if (dimensions < 3 || channel.dtype === "bool") return 0;
  return said || named ? 10 : 1;
}
