// Residuals of an episode, read when they are asked for (spec/wshard.md, section 9).

import { toTypedArray } from "../core/dtypes.js";
import { broken } from "../core/errors.js";
import type { Block, FindBlock } from "./blocks.js";
import type { Row } from "./metadata.js";
import { differences, parseBlock, scalesSuffix, signs } from "./names.js";
import { defaultWindow, dequantise, type Edges, packedSize, unpackSigns } from "./residual-codes.js";

/** What a residual is about. */
export interface ResidualKeys {
  readonly channel: string;
  /** Whose prediction was compared; empty if the residual is of the signal alone. */
  readonly model: string;
  readonly type: "sign2nddiff" | "delta_q";
}

/** How a signal bends (`sign2nddiff`), or how far it is from a prediction (`delta_q`). */
export class Residual implements ResidualKeys {
  readonly channel: string;
  readonly model: string;
  readonly type: "sign2nddiff" | "delta_q";
  readonly block: string;

  constructor(
    keys: ResidualKeys,
    readonly source: Block,
    readonly row: Row | null,
    readonly scalesSource: Block | null,
    /** The number of steps. */
    readonly length: number,
    readonly edges: Edges,
  ) {
    this.channel = keys.channel;
    this.model = keys.model;
    this.type = keys.type;
    this.block = source.name;
  }

  /** The shape of one step of `delta_q`; of signs, the number of dimensions. */
  get shape(): readonly number[] {
    if (this.type === "delta_q") return this.row?.shape ?? [];
    const size = packedSize(this.length);
    return [size ? this.source.size / size : 0];
  }

  /** TypedArray of one step. */
  get dimensions(): number {
    return this.shape.reduce((product, size) => product * size, 1);
  }

  /** Steps that share a scale. */
  get window(): number {
    return this.row?.window ?? defaultWindow;
  }

  /** Checks what the index says (W-RES-1, W-RES-2). */
  check(): void {
    const { source, length } = this;
    const wrong = (code: "size_mismatch" | "bad_profile", rule: string, problem: string, found?: string) =>
      broken(code, rule, problem, { path: source.path, entry: this.block, found });
    if (this.type === "sign2nddiff") {
      const size = packedSize(length);
      if (size ? source.size % size === 0 : source.size === 0) return;
      throw wrong("size_mismatch", "W-RES-1", "the bits do not fit the steps", `${source.size} bytes`);
    }
    if (this.row === null || this.scalesSource === null) {
      throw wrong("bad_profile", "W-RES-2", "the row or the scales are missing");
    }
    const columns = this.row.shape.reduce((product, size) => product * BigInt(size), 1n);
    if (this.row.dtype !== "i8" || BigInt(source.size) !== BigInt(length) * columns) {
      throw wrong("size_mismatch", "W-RES-2", "the differences do not fit the steps", `${source.size} bytes`);
    }
    const rows = BigInt(Math.ceil(length / this.window));
    if (BigInt(this.scalesSource.size) !== 4n * columns * rows) {
      throw wrong("size_mismatch", "W-RES-2", "the scales do not fit the windows", `${this.scalesSource.size} bytes`);
    }
  }

  /** The stored bytes. */
  async bytes(): Promise<Uint8Array> {
    this.check();
    return this.source.read();
  }

  /** The signs +1, −1 and 0 of each step, or the codes of the differences. */
  async data(): Promise<Int8Array> {
    const bytes = await this.bytes();
    return this.type === "sign2nddiff"
      ? unpackSigns(bytes, this.length, this.edges)
      : (toTypedArray("i8", bytes) as Int8Array);
  }

  /** The scales of `delta_q`: one for each window and dimension; null for signs. */
  async scales(): Promise<Float32Array | null> {
    this.check();
    return this.scalesSource === null ? null : (toTypedArray("f32", await this.scalesSource.read()) as Float32Array);
  }

  /** The signal that `delta_q` stands for: the prediction, if there is one, plus the differences. */
  async reconstruct(omen?: ArrayLike<number>): Promise<Float64Array> {
    const scales = await this.scales();
    if (scales === null) throw broken("invalid_argument", "W-RES-2", "signs cannot be undone", { entry: this.block });
    const found = dequantise({ codes: await this.data(), scales }, this.dimensions, this.window);
    if (omen === undefined) return found;
    return found.map((difference, at) => omen[at] + difference);
  }
}

/** The residual of a block; null if its name and row do not make one. */
export function residualOf(
  source: Block,
  row: Row | null,
  find: FindBlock,
  length: number,
  edges: Edges,
): Residual | null {
  const named = parseBlock(source.name);
  const channel = row?.channel || named.channel;
  const type = row?.type || named.kind;
  if (channel === "" || (type !== signs && type !== differences)) return null;
  const keys = { channel, model: row?.model ?? "", type: type as ResidualKeys["type"] };
  return new Residual(keys, source, row, find(source.name + scalesSuffix), length, edges);
}
