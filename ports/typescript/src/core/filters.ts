// Reversible transformations of a frame before it is compressed.

import { viewOf } from "./bytes.js";
import { broken, ShardError } from "./errors.js";
import { canonicalBytes, isInteger, isObject, type Json, type JsonObject, parseJsonObject } from "./json.js";

const filterFrameMagic = 0x184d2a5d;
export const filterHeadSize = 8;
export const maxDescription = 4096;
const maxFilteredFrame = 64 * 1024 * 1024;

/** What was done to each frame of an entry: `delta`, then `planes`, or one of them. */
export interface Filters {
  /** Differences of rows of `row` bytes, which hold little-endian integers of `width` bytes. */
  delta?: { order: 1 | 2; row: number; width: 1 | 2 | 4 | 8 };
  /** The first byte of every item of `width` bytes, then the second, and so on. */
  planes?: { width: 2 | 4 | 8 };
}

function bad(rule: string, problem: string, details = {}): ShardError {
  return broken("bad_filter", rule, problem, details);
}

/** The size of the frame that describes the filters, from the first bytes of the entry (S-FLT-1). */
export function filterFrameSize(head: Uint8Array, diskSize: number): number {
  const view = viewOf(head);
  if (head.length < filterHeadSize || view.getUint32(0, true) !== filterFrameMagic) {
    throw bad("S-FLT-1", "a filtered entry does not start with a description of its filters");
  }
  const size = view.getUint32(4, true);
  if (size < 1 || size > maxDescription || filterHeadSize + size > diskSize) {
    throw bad("S-FLT-1", "the description of the filters has a size that is not allowed", { found: `${size} bytes` });
  }
  return filterHeadSize + size;
}

/** Reads the description (S-FLT-2 to S-FLT-4). */
export function parseFilters(text: Uint8Array): Filters {
  const described = parseJsonObject(text, { what: "the description of filters", code: "bad_filter", rule: "S-FLT-2" });
  const list = described["filters"];
  if (!Array.isArray(list) || list.length < 1 || list.length > 2) {
    throw bad("S-FLT-2", "the description has no list of one or two filters");
  }
  const found: Filters = {};
  const names = list.map((item) => readFilter(item, found));
  const { delta, planes } = found;
  const both = names.join() === "delta,planes" && delta?.width === planes?.width;
  if (!both && names.length > 1) throw bad("S-FLT-4", "these filters do not go together", { found: names.join() });
  return found;
}

/** Reads one filter and returns its name. */
function readFilter(item: Json, found: Filters): string {
  const name = isObject(item) ? item["name"] : undefined;
  if (!isObject(item) || typeof name !== "string") throw bad("S-FLT-2", "a filter has no name");
  const count = Object.keys(item).length;
  if (name === "delta") {
    const order = oneOf(item, "order", [1, 2]);
    const width = oneOf(item, "width", [1, 2, 4, 8]);
    const row = isInteger(item, "row") ? Number(item["row"]) : 0;
    if (count !== 4 || row < 1 || row % width !== 0) throw bad("S-FLT-2", "the filter delta has wrong fields");
    found.delta = { order, row, width };
  } else if (name === "planes") {
    found.planes = { width: oneOf(item, "width", [2, 4, 8]) };
    if (count !== 2) throw bad("S-FLT-2", "the filter planes has wrong fields");
  } else {
    throw new ShardError("unknown_filter", "this version does not know the filter", { rule: "S-FLT-3", found: name });
  }
  return name;
}

function oneOf<N extends number>(item: JsonObject, key: string, allowed: readonly N[]): N {
  const value = allowed.find((one) => one === item[key]);
  if (value === undefined || !isInteger(item, key)) {
    throw bad("S-FLT-2", `'${key}' of a filter is wrong`, { expected: allowed.join(" or ") });
  }
  return value;
}

/** The filters as they are described: a list in the order in which they were applied. */
export function describeFilters({ delta, planes }: Filters): JsonObject[] {
  const list: JsonObject[] = [];
  if (delta) list.push({ name: "delta", ...delta });
  if (planes) list.push({ name: "planes", ...planes });
  return list;
}

/** The skippable frame that an entry starts with. */
export function packFilters(filters: Filters): Uint8Array {
  const text = canonicalBytes({ filters: describeFilters(filters) });
  const out = new Uint8Array(filterHeadSize + text.length);
  viewOf(out).setUint32(0, filterFrameMagic, true);
  viewOf(out).setUint32(4, text.length, true);
  out.set(text, filterHeadSize);
  return out;
}

/** Checks S-FLT-5, before memory is made for a frame. */
export function checkFilteredFrame({ delta, planes }: Filters, size: number): void {
  const multiple = delta?.row ?? planes?.width ?? 1;
  if (size <= maxFilteredFrame && size % multiple === 0) return;
  const details = { expected: `a multiple of ${multiple} bytes, at most ${maxFilteredFrame}`, found: size };
  throw bad("S-FLT-5", "a filtered frame has a size that is not allowed", details);
}

/** Restores the bytes of one frame, which may be changed. */
export function undoFilters({ delta, planes }: Filters, data: Uint8Array): Uint8Array {
  const out = planes ? joinPlanes(data, planes.width) : data.byteOffset % 8 === 0 ? data : new Uint8Array(data);
  for (let i = 0; i < (delta?.order ?? 0); i++) if (delta) addRows(out, delta.width, delta.row);
  return out;
}

/** The filtered form of one frame. */
export function applyFilters({ delta, planes }: Filters, data: Uint8Array): Uint8Array {
  const out = new Uint8Array(data);
  for (let i = 0; i < (delta?.order ?? 0); i++) if (delta) subtractRows(out, delta.width, delta.row);
  return planes ? splitPlanes(out, planes.width) : out;
}

function joinPlanes(data: Uint8Array, width: number): Uint8Array {
  const out = new Uint8Array(data.length);
  const count = data.length / width;
  for (let plane = 0, from = 0; plane < width; plane++) {
    for (let i = 0, to = plane; i < count; i++, to += width) out[to] = data[from++];
  }
  return out;
}

function splitPlanes(data: Uint8Array, width: number): Uint8Array {
  const out = new Uint8Array(data.length);
  const count = data.length / width;
  for (let plane = 0, to = 0; plane < width; plane++) {
    for (let i = 0, from = plane; i < count; i++, from += width) out[to++] = data[from];
  }
  return out;
}

/** The same bytes as integers; those of eight bytes as pairs of halves. Offsets are multiples of eight. */
function integers(data: Uint8Array, width: number): Uint8Array | Uint16Array | Uint32Array {
  const { buffer, byteOffset, byteLength } = data;
  if (width === 1) return data;
  if (width === 2) return new Uint16Array(buffer, byteOffset, byteLength / 2);
  return new Uint32Array(buffer, byteOffset, byteLength / 4);
}

function addRows(data: Uint8Array, width: number, row: number): void {
  const values = integers(data, width);
  const step = row / Math.min(width, 4);
  if (width < 8) {
    for (let i = step; i < values.length; i++) values[i] += values[i - step];
    return;
  }
  for (let i = step; i < values.length; i += 2) {
    const low = values[i] + values[i - step];
    values[i + 1] += values[i + 1 - step] + (low > 0xffffffff ? 1 : 0);
    values[i] = low;
  }
}

function subtractRows(data: Uint8Array, width: number, row: number): void {
  const values = integers(data, width);
  const step = row / Math.min(width, 4);
  if (width < 8) {
    for (let i = values.length - 1; i >= step; i--) values[i] -= values[i - step];
    return;
  }
  for (let i = values.length - 2; i >= step; i -= 2) {
    const low = values[i] - values[i - step];
    values[i + 1] -= values[i + 1 - step] + (low < 0 ? 1 : 0);
    values[i] = low;
  }
}
