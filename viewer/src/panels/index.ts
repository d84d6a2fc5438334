// All panels. The stage offers those that fit.

import { actions } from "./actions";
import { bytes } from "./bytes";
import { ends } from "./ends";
import { findings } from "./findings";
import type { Panel } from "./panel";
import { residual } from "./residual";
import { statistics } from "./statistics";
import { text } from "./text";

export const panels: readonly Panel[] = [ends, text, residual, actions, statistics, findings, bytes];
