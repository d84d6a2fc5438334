// All panels. The stage offers those that fit.

import { image } from "./image";
import type { Panel } from "./panel";
import { points } from "./points";

export const panels: readonly Panel[] = [image, points];
