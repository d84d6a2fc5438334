// The channels of a recording: what the caller declares, and what waits to be written.

import { encodeUtf8 } from "../core/bytes.js";
import { invalid } from "../core/errors.js";
import type { JsonObject } from "../core/json.js";
import { type DType, dtypeSizes } from "../core/registry.js";
import { concatenated } from "../wshard/blocks.js";
import { parseRow, rowId } from "../wshard/metadata.js";
import { checkId } from "../wshard/names.js";
import { type NumbersInput, rawBytes, toBytes } from "../wshard/values.js";

/** A channel that is to be recorded. */
export interface ChannelDef {
  readonly id: string;
  /** An observation (`signal`, the default) or an action. */
  readonly lane?: "signal" | "action";
  /** By default u8 for text and f32 otherwise. */
  readonly dtype?: DType;
  /** The shape of one step; of one item of a ragged channel. */
  readonly shape?: readonly number[];
  readonly layout?: "dense" | "ragged" | "text";
  /** Whether it advances independently of the steps; `write` then records it. */
  readonly ownClock?: boolean;
  readonly modality?: string;
  readonly unit?: string;
  readonly description?: string;
}

/** A value of a channel: numbers, or a string for text. */
export type StepValue = NumbersInput | number | bigint | boolean | string;

const largestEntry = 2 ** 26;

/** Entries of a channel that wait to be written as one run. */
export interface PendingRun {
  readonly channel: RecordedChannel;
  readonly content: Uint8Array;
  /** Of a ragged or text channel: items of each entry; otherwise null. */
  readonly sizes: readonly number[] | null;
}

/** A channel while it is recorded. */
export class RecordedChannel {
  readonly block: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly isRagged: boolean;
  readonly isText: boolean;
  /** Bytes of an entry or item. */
  readonly stepBytes: number;
  /** Its number in the journal; its offsets have the next one. */
  number = -1;
  /** Items in the journal so far; null before the first entry. */
  items: number | null = null;
  readonly #row: JsonObject;
  #pending: Uint8Array[] = [];
  #count = 0;

  constructor(block: string, def: Omit<ChannelDef, "id" | "lane">, timeBlock: string | null = null) {
    const { layout = "dense", modality, unit, description } = def;
    this.block = block;
    this.isText = layout === "text";
    this.isRagged = layout !== "dense";
    this.dtype = def.dtype ?? (this.isText ? "u8" : "f32");
    this.shape = def.shape ?? [];
    this.stepBytes = this.shape.reduce((product, size) => product * size, dtypeSizes[this.dtype]);
    const row: JsonObject = { dtype: this.dtype, id: rowId(block), shape: [...this.shape], signal_block: block };
    if (this.isRagged) Object.assign(row, { layout, offsets_block: `offsets/${block}` });
    if (timeBlock !== null) row.time_block = timeBlock;
    for (const [key, text] of Object.entries({ modality, unit, description }))
      if (text !== undefined && text !== "") row[key] = text;
    this.#row = row;
    parseRow(row);
    if (
      this.stepBytes < 1 ||
      this.stepBytes > largestEntry ||
      (this.isText && (this.dtype !== "u8" || this.shape.length > 0))
    ) {
      throw invalid("one step of this channel is empty, too large or not text", {
        entry: block,
        found: `${this.dtype} [${this.shape}]`,
      });
    }
  }

  /** The channel of a declaration. */
  static of(def: ChannelDef): RecordedChannel {
    checkId(def.id, "a channel");
    const block = `${def.lane ?? "signal"}/${def.id}`;
    return new RecordedChannel(block, def, def.ownClock ? `time/${block}` : null);
  }

  /** What the journal says about it. */
  get rows(): JsonObject[] {
    if (!this.isRagged) return [this.#row];
    const offsets = `offsets/${this.block}`;
    return [this.#row, { dtype: "i64", id: offsets, shape: [], signal_block: offsets }];
  }

  /** The stored bytes of a value, or an error if it does not fit. */
  checked(value: StepValue | undefined): Uint8Array {
    if (value === undefined) throw invalid("a step lacks a value", { entry: this.block });
    if (this.isText) {
      const text = typeof value === "string" ? encodeUtf8(value) : undefined;
      if (text === undefined || text.length > largestEntry)
        throw invalid("a value is not a string that can be stored", { entry: this.block });
      return text;
    }
    if (typeof value === "string") throw invalid("a value is a string", { entry: this.block, expected: this.dtype });
    const values = typeof value === "object" ? value : ([value] as readonly number[]);
    const bytes = toBytes(this.dtype, values, this.block);
    const isFitting = this.isRagged
      ? bytes.length % this.stepBytes === 0 && bytes.length <= largestEntry
      : bytes.length === this.stepBytes;
    if (!isFitting) {
      const expected = `${this.isRagged ? "items" : "values"} of shape [${this.shape}]`;
      throw invalid("a value has another shape than its channel", {
        entry: this.block,
        expected,
        found: `${values.length} values`,
      });
    }
    return bytes;
  }

  /** Adds the stored bytes of one entry. The caller may change its arrays afterwards. */
  add(bytes: Uint8Array): void {
    this.#pending.push(bytes.slice());
    this.#count++;
  }

  /** Takes what waits as one run; null if nothing does. */
  take(): PendingRun | null {
    if (this.#count === 0) return null;
    const sizes = this.isRagged ? this.#pending.map((piece) => piece.length / this.stepBytes) : null;
    const content = concatenated(this.#pending);
    this.#pending = [];
    this.#count = 0;
    return { channel: this, content, sizes };
  }

  /** Where entries end whose items follow those before: the next run of offsets (J-RAG). */
  offsetsOf(sizes: readonly number[]): Uint8Array {
    const ends = this.items === null ? [0n] : [];
    let end = BigInt(this.items ?? 0);
    for (const size of sizes) {
      end += BigInt(size);
      ends.push(end);
    }
    this.items = Number(end);
    return rawBytes(BigInt64Array.from(ends));
  }
}
