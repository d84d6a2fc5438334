// All panels. The stage offers those that fit.

import { actions } from "./actions";
import { bytes } from "./bytes";
import { ends } from "./ends";
import { findings } from "./findings";
import { heatmap } from "./heatmap";
import { image } from "./image";
import { latent } from "./latent";
import type { Panel } from "./panel";
import { points } from "./points";
import { residual } from "./residual";
import { series } from "./series";
import { statistics } from "./statistics";
import { text } from "./text";

export const panels: readonly Panel[] = [
  ...[series, image, points, heatmap, latent],
  ...[ends, text, residual, actions, statistics, findings, bytes],
];
