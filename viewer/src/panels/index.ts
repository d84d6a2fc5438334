// All panels. The stage offers those that fit.

import type { Panel } from "./panel";
import { series } from "./series";

export const panels: readonly Panel[] = [series];
