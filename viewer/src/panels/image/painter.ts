// Paints truth and prediction: how their values become colours, and what of each is seen.

import type { TypedArray } from "@shard-format/core";
import type { ChannelFacts } from "../../model/facts";
import type { ColourMap } from "../../plot-data/colours";
import { Layer, type Place } from "./drawing";
import {
  colourRange,
  differences,
  frameRange,
  type Look,
  type Picture,
  paintPicture,
  percentileRange,
  pictureAt,
  type Range,
} from "./pixels";

export type Mode = "truth" | "prediction" | "split" | "blink" | "difference";
export const rangeKinds = ["percentile", "frame", "fixed"] as const;
export type RangeKind = (typeof rangeKinds)[number];

/** A channel that has pictures. */
export interface Source {
  readonly channel: ChannelFacts;
  readonly picture: Picture;
}

/** A picture that is there, and what it is a picture of. */
export interface Shown extends Source {
  readonly values: TypedArray;
  readonly entry: number;
}

export interface Style {
  readonly map: ColourMap;
  readonly kind: RangeKind;
  readonly fixed: Range;
  /** The value that means "no value". */
  readonly none: number | undefined;
  /** Which picture of an entry with a horizon is shown. */
  readonly ahead: number;
}

export class Painter {
  private readonly layers = { truth: new Layer(), prediction: new Layer(), difference: new Layer() };
  /** The range of all parts of the channel that were shown: reading all of it would take too long. */
  private grown: Range | null = null;
  private readonly parts = new Set<string>();
  private compared: { readonly inputs: readonly unknown[]; readonly error: Float32Array } | null = null;

  /** The part of the picture from the left up to `split` shows the truth, the rest the prediction. */
  drawBoth(
    context: CanvasRenderingContext2D,
    place: Place,
    a: Shown | null,
    b: Shown | null,
    split: number,
    style: Style,
  ): Range {
    const first = a ?? b;
    if (first === null) return style.fixed;
    // The prediction has the colours of the truth: with its own, it could look the same and be far off.
    const range = this.rangeOf(first, style);
    const look = { map: style.map, range, none: style.none };
    for (const [one, layer] of [
      [a, this.layers.truth],
      [b, this.layers.prediction],
    ] as const) {
      if (one === null) continue;
      const inputs = [one.values, style.ahead, look.map, range.min, range.max, look.none];
      layer.paint(one.picture, inputs, (pixels) => paintPicture(valuesOf(one, style), one.picture, look, pixels));
    }
    if (a !== null) this.layers.truth.draw(context, place, 0, b === null ? 1 : split);
    if (b !== null) this.layers.prediction.draw(context, place, a === null ? 0 : split, 1);
    return range;
  }

  /** How far each pixel of the prediction is from the truth. */
  drawDifference(context: CanvasRenderingContext2D, place: Place, a: Shown, b: Shown, style: Style): Range {
    const [truth, prediction] = [valuesOf(a, style), valuesOf(b, style)];
    const inputs = [a.values, b.values, style.ahead, style.none];
    if (!inputs.every((one, at) => one === this.compared?.inputs[at])) {
      this.compared = { inputs, error: differences(truth, a.picture, prediction, b.picture, style.none) };
    }
    const { error } = this.compared as { error: Float32Array };
    const range = { min: 0, max: frameRange(error).max || 1 };
    const look: Look = { map: "viridis", range, none: undefined };
    const { difference } = this.layers;
    difference.paint(a.picture, [error], (pixels) => paintPicture(error, { ...a.picture, planes: 1 }, look, pixels));
    difference.draw(context, place);
    return range;
  }

  private rangeOf(one: Shown, style: Style): Range {
    if (style.kind === "fixed") return style.fixed;
    const values = valuesOf(one, style);
    if (style.kind === "frame") return frameRange(values, style.none);
    const part = `${one.channel.key} ${one.entry >> 4}`;
    if (this.grown === null || !this.parts.has(part)) {
      this.parts.add(part);
      const found = percentileRange(values, style.none);
      const { min, max } = one.picture.planes > 1 ? colourRange(found) : found;
      const before = this.grown ?? { min, max };
      this.grown = { min: Math.min(before.min, min), max: Math.max(before.max, max) };
    }
    return this.grown;
  }
}

/** The values of the picture of an entry that is shown. */
export function valuesOf({ values, picture }: Shown, { ahead }: Pick<Style, "ahead">): TypedArray {
  return pictureAt(values, picture, picture.count > 1 ? ahead : 0);
}
