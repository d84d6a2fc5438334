// All panels. The stage offers those that fit.

import { heatmap } from "./heatmap";
import { image } from "./image";
import { latent } from "./latent";
import type { Panel } from "./panel";
import { points } from "./points";
import { series } from "./series";

export const panels: readonly Panel[] = [series, image, points, heatmap, latent];
