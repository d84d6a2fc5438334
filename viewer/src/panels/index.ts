// All panels. The stage offers those that fit.

import type { Panel } from "./panel";

export const panels: readonly Panel[] = [];
