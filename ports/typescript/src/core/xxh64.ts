// XXH64 with seed 0. A 64-bit number is two halves of 32 bits, because BigInt is twenty times slower.

import { viewOf } from "./bytes.js";

// The five primes of the hash, high half and low half.
const P1H = 0x9e3779b1;
const P1L = 0x85ebca87;
const P2H = 0xc2b2ae3d;
const P2L = 0x27d4eb4f;
const P3H = 0x165667b1;
const P3L = 0x9e3779f9;
const P4H = 0x85ebca77;
const P4L = 0xc2b2ae63;
const P5H = 0x27d4eb2f;
const P5L = 0x165667c5;

/** The upper half of the product of two unsigned 32-bit numbers. */
function upper(a: number, b: number): number {
  const a0 = a & 0xffff;
  const a1 = a >>> 16;
  const b0 = b & 0xffff;
  const b1 = b >>> 16;
  const middle = (Math.imul(a1, b0) >>> 0) + (Math.imul(a0, b0) >>> 16);
  const second = (Math.imul(a0, b1) >>> 0) + (middle & 0xffff);
  return (Math.imul(a1, b1) + (middle >>> 16) + (second >>> 16)) | 0;
}

/** A hash in progress. */
class State {
  high = 0;
  low = 0;

  add(high: number, low: number): void {
    const sum = (this.low >>> 0) + (low >>> 0);
    this.high = (this.high + high + (sum > 0xffffffff ? 1 : 0)) | 0;
    this.low = sum | 0;
  }

  xor(high: number, low: number): void {
    this.high ^= high;
    this.low ^= low;
  }

  multiply(high: number, low: number): void {
    const top = upper(this.low, low) + Math.imul(this.high, low) + Math.imul(this.low, high);
    this.low = Math.imul(this.low, low);
    this.high = top | 0;
  }

  /** Rotates to the left by 1 to 31 bits. */
  rotate(by: number): void {
    const { high, low } = this;
    this.high = (high << by) | (low >>> (32 - by));
    this.low = (low << by) | (high >>> (32 - by));
  }

  /** Mixes eight bytes into a lane. */
  round(high: number, low: number): void {
    const input = new State();
    input.high = high;
    input.low = low;
    input.multiply(P2H, P2L);
    this.add(input.high, input.low);
    this.rotate(31);
    this.multiply(P1H, P1L);
  }

  /** Brings a finished lane into the hash. */
  merge(lane: State): void {
    const mixed = new State();
    mixed.round(lane.high, lane.low);
    this.xor(mixed.high, mixed.low);
    this.multiply(P1H, P1L);
    this.add(P4H, P4L);
  }
}

/** One of the four lanes: every fourth eight bytes. Plain variables, because this is the hot loop. */
function lane(view: DataView, start: number, end: number, seedHigh: number, seedLow: number): State {
  let high = seedHigh | 0;
  let low = seedLow | 0;
  for (let at = start; at < end; at += 32) {
    const inLow = view.getInt32(at, true);
    const inHigh = view.getInt32(at + 4, true);
    const sum = (low >>> 0) + (Math.imul(inLow, P2L) >>> 0);
    const carry = sum > 0xffffffff ? 1 : 0;
    const h = (high + upper(inLow, P2L) + Math.imul(inHigh, P2L) + Math.imul(inLow, P2H) + carry) | 0;
    const l = sum | 0;
    const rotatedHigh = (h << 31) | (l >>> 1);
    const rotatedLow = (l << 31) | (h >>> 1);
    high = (upper(rotatedLow, P1L) + Math.imul(rotatedHigh, P1L) + Math.imul(rotatedLow, P1H)) | 0;
    low = Math.imul(rotatedLow, P1L);
  }
  const state = new State();
  state.high = high;
  state.low = low;
  return state;
}

function hash(bytes: Uint8Array): State {
  const view = viewOf(bytes);
  const state = new State();
  const blocks = bytes.length - (bytes.length % 32);
  if (blocks > 0) {
    const sum = new State(); // P1 + P2
    sum.add(P1H, P1L);
    sum.add(P2H, P2L);
    const minus = new State(); // 0 - P1
    minus.add(~P1H, ~P1L);
    minus.add(0, 1);
    const lanes = [
      lane(view, 0, blocks, sum.high, sum.low),
      lane(view, 8, blocks, P2H, P2L),
      lane(view, 16, blocks, 0, 0),
      lane(view, 24, blocks, minus.high, minus.low),
    ];
    const shifts = [1, 7, 12, 18];
    for (let i = 0; i < 4; i++) {
      const turned = new State();
      turned.xor(lanes[i].high, lanes[i].low);
      turned.rotate(shifts[i]);
      state.add(turned.high, turned.low);
    }
    for (const one of lanes) state.merge(one);
  } else {
    state.add(P5H, P5L);
  }
  state.add(Math.floor(bytes.length / 0x100000000), bytes.length | 0);
  finish(state, view, blocks);
  return state;
}

/** Takes the last 0 to 31 bytes and mixes all bits. */
function finish(state: State, view: DataView, start: number): void {
  let at = start;
  for (; at + 8 <= view.byteLength; at += 8) {
    const mixed = new State();
    mixed.round(view.getInt32(at + 4, true), view.getInt32(at, true));
    state.xor(mixed.high, mixed.low);
    state.rotate(27);
    state.multiply(P1H, P1L);
    state.add(P4H, P4L);
  }
  if (at + 4 <= view.byteLength) {
    const mixed = new State();
    mixed.add(0, view.getUint32(at, true));
    mixed.multiply(P1H, P1L);
    state.xor(mixed.high, mixed.low);
    state.rotate(23);
    state.multiply(P2H, P2L);
    state.add(P3H, P3L);
    at += 4;
  }
  for (; at < view.byteLength; at++) {
    const mixed = new State();
    mixed.add(0, view.getUint8(at));
    mixed.multiply(P5H, P5L);
    state.xor(mixed.high, mixed.low);
    state.rotate(11);
    state.multiply(P1H, P1L);
  }
  state.xor(0, state.high >>> 1); // by 33 bits
  state.multiply(P2H, P2L);
  state.xor(state.high >>> 29, (state.low >>> 29) | (state.high << 3));
  state.multiply(P3H, P3L);
  state.xor(0, state.high);
}

/** XXH64, seed 0. */
export function xxh64(bytes: Uint8Array): bigint {
  const { high, low } = hash(bytes);
  return (BigInt(high >>> 0) << 32n) | BigInt(low >>> 0);
}

/** The low 32 bits of XXH64, seed 0: the checksum of a zstd frame. */
export function xxh64Low(bytes: Uint8Array): number {
  return hash(bytes).low >>> 0;
}
