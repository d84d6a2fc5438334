// A tab of the inspector, beside the stage. The list is in inspector/tabs.ts.

import type { ComponentType } from "preact";
import type { EpisodeModel } from "../model/episode";
import type { App } from "../state/app";
import type { View } from "../state/view";

export interface TabProps {
  readonly app: App;
  readonly episode: EpisodeModel;
  readonly view: View;
  /** Puts a channel on the stage and scrolls to it. */
  readonly show: (key: string) => void;
}

export interface Tab {
  /** Short and lasting: it is in links. */
  readonly name: string;
  readonly title: string;
  readonly component: ComponentType<TabProps>;
}
