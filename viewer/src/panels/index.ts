// All panels. The stage offers those that fit.

import { image } from "./image";
import type { Panel } from "./panel";

export const panels: readonly Panel[] = [image];
