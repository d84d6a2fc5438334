// A Shard file that holds no episode: its entries, their bytes, and its identity.

import type { JSX } from "preact";
import type { ContainerModel } from "../model/library";
import { EntryList } from "./entries";
import { FileIdentity } from "./identity";
import { words } from "./words";
import "./inspect.css";

export function Container({ container }: { readonly container: ContainerModel }): JSX.Element {
  const { reads, name, size } = container;
  return (
    <div class="inspect inspect-container">
      <p class="soft">{words.entries.container}</p>
      <EntryList reads={reads} />
      <FileIdentity reads={reads} file={name} size={size} stated={null} />
    </div>
  );
}
