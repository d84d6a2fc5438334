// Reads of channels that are in memory.

import { signal } from "@preact/signals";
import type { TypedArray } from "@shard-format/core";
import { parseDerived } from "../../../src/model/derived";
import type { ChannelFacts } from "../../../src/model/facts";
import type { Columns, Extent, Packet, Range, Reads, Window } from "../../../src/model/reads";
import { type Clock, secondsClock, stepAt, stepClock } from "../../../src/plot-data/clocks";
import { columns } from "../../../src/plot-data/columns";
import { Pyramid } from "../../../src/plot-data/pyramid";
import { samplesOf } from "../../../src/plot-data/samples";
import { summarize } from "../../../src/plot-data/summary";

export interface MadeUpChannel {
  readonly facts: ChannelFacts;
  readonly values?: TypedArray;
  readonly items?: readonly TypedArray[];
  readonly packets?: readonly Packet[];
  readonly extradata?: Uint8Array;
  readonly positions?: Float64Array;
}

export interface Scene {
  readonly length: number;
  readonly channels: readonly MadeUpChannel[];
}

export class MadeUpReads implements Reads {
  /** How often a window was asked for. */
  windows = 0;

  constructor(private readonly scene: Scene) {}

  private channel(key: string): MadeUpChannel {
    const derived = parseDerived(key);
    if (derived !== null) {
      const [a, b] = [this.channel(derived.a), this.channel(derived.b)];
      const ahead = a.facts.dimensions / b.facts.dimensions;
      const values = Float64Array.from(b.values as Float32Array, (value, at) => {
        return Number(a.values?.[at * ahead]) + derived.times * value;
      });
      return { facts: b.facts, values };
    }
    const found = this.scene.channels.find((channel) => channel.facts.key === key);
    if (found === undefined) throw new Error(`no channel ${key}`);
    return found;
  }

  private clock({ facts, positions }: MadeUpChannel): Clock {
    return positions === undefined ? stepClock(facts.length) : secondsClock(positions.slice());
  }

  async columns(key: string, dims: readonly number[], range: Range, width: number): Promise<Columns> {
    const channel = this.channel(key);
    const values = channel.values ?? new Float32Array(0);
    const lines = dims.map((dimension) => {
      const samples = samplesOf(values, { width: channel.facts.dimensions, dimension });
      const view = { from: range.start, to: range.end, width };
      return columns({ pyramid: Pyramid.of(samples), samples }, this.clock(channel), view);
    });
    const [first] = lines;
    const factor = first === undefined || first.original ? 1 : first.samples / width;
    return { range, lines, factor, read: 1, timesOff: 0 };
  }

  arrived() {
    return signal(0);
  }

  async window(key: string, start: number, end: number): Promise<Window> {
    this.windows++;
    const { facts, values, items, packets, extradata = new Uint8Array(0) } = this.channel(key);
    if (values !== undefined) {
      const width = facts.dimensions;
      return { kind: "dense", start, values: values.slice(start * width, end * width) };
    }
    if (items !== undefined) return { kind: "ragged", start, items: items.slice(start, end) };
    let first = start;
    while (first > 0 && !packets?.[first]?.isKeyframe) first--;
    return { kind: "video", start, packets: (packets ?? []).slice(first, end), extradata };
  }

  async entryAt(key: string, position: number): Promise<number> {
    return stepAt(this.clock(this.channel(key)), position);
  }

  async positions(key: string, start: number, end: number): Promise<Float64Array> {
    const clock = this.clock(this.channel(key));
    return Float64Array.from({ length: end - start }, (_, i) => clock.at(start + i));
  }

  async times(): Promise<null> {
    return null;
  }

  async extent(key: string, dims: readonly number[]): Promise<readonly Extent[]> {
    const { facts, values = new Float32Array(0) } = this.channel(key);
    return dims.map((dimension) => summarize(samplesOf(values, { width: facts.dimensions, dimension })));
  }

  async intervals() {
    return [];
  }

  async posters() {
    return [];
  }

  async scales() {
    return null;
  }

  async entries() {
    return [];
  }

  async bytes() {
    return new Uint8Array(0);
  }

  async identity() {
    return null;
  }

  async provenance() {
    return null;
  }

  async frames() {
    return null;
  }

  async checkEntry() {}

  computeIdentity(): Promise<never> {
    return Promise.reject(new Error("made up"));
  }

  async signature() {
    return null;
  }

  async checkSignature() {}

  async findings() {
    return null;
  }

  async traffic() {
    return { bytes: 0, requests: 0 };
  }
}
