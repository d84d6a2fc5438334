// Small marks that say what is special about a channel.

import type { ChannelFacts } from "../model/facts";
import { words } from "../words";
import { shown } from "./escape";

export function Badges({ channel }: { readonly channel: ChannelFacts }) {
  const { badges } = words;
  const found: { text: string; hint: string; kind: string }[] = [];
  const add = ([text, hint]: readonly [string, string], kind = "", more = "") => {
    found.push({ text, hint: hint + more, kind });
  };
  if (channel.problem !== null) add(badges.damaged, "bad", shown(channel.problem));
  if (channel.isInferred) add(badges.inferred, "warn");
  if (channel.lossy !== null) add(badges.lossy, "warn", ` ${shown(JSON.stringify(channel.lossy))}`);
  if (channel.hasOwnClock) add(badges.clock);
  if (channel.layout === "ragged") add(badges.ragged);
  if (channel.horizon !== null) add(badges.horizon, "", String(channel.horizon));
  if (channel.sidecar !== "") add(badges.sidecar, "", shown(channel.sidecar));
  return (
    <>
      {found.map(({ text, hint, kind }) => (
        <span key={text} class={`badge ${kind}`} title={hint}>
          {text}
        </span>
      ))}
    </>
  );
}
