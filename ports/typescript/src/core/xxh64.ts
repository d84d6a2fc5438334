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

// The number that is worked on. A hash never waits for anything, so one is enough for all.
let high = 0;
let low = 0;

function set(h: number, l: number): void {
  high = h | 0;
  low = l | 0;
}

function add(h: number, l: number): void {
  const sum = (low >>> 0) + (l >>> 0);
  set(high + h + (sum > 0xffffffff ? 1 : 0), sum);
}

function xor(h: number, l: number): void {
  set(high ^ h, low ^ l);
}

function multiply(h: number, l: number): void {
  set(upper(low, l) + Math.imul(high, l) + Math.imul(low, h), Math.imul(low, l));
}

/** Rotates to the left by 1 to 31 bits. */
function rotate(by: number): void {
  set((high << by) | (low >>> (32 - by)), (low << by) | (high >>> (32 - by)));
}

/** Mixes eight bytes, or a finished lane, into the number. */
function mix(h: number, l: number): void {
  const before = [high, low];
  set(h, l);
  multiply(P2H, P2L);
  rotate(31);
  multiply(P1H, P1L);
  xor(before[0], before[1]);
}

/** One of the four lanes: every fourth eight bytes, from a number on. Own variables, because this is the hot loop. */
function lane(view: DataView, start: number, end: number): [number, number] {
  let h = high;
  let l = low;
  for (let at = start; at < end; at += 32) {
    const inLow = view.getInt32(at, true);
    const inHigh = view.getInt32(at + 4, true);
    const sum = (l >>> 0) + (Math.imul(inLow, P2L) >>> 0);
    const carry = sum > 0xffffffff ? 1 : 0;
    const sumHigh = (h + upper(inLow, P2L) + Math.imul(inHigh, P2L) + Math.imul(inLow, P2H) + carry) | 0;
    const turnedHigh = (sumHigh << 31) | ((sum | 0) >>> 1);
    const turnedLow = (sum << 31) | (sumHigh >>> 1);
    h = (upper(turnedLow, P1L) + Math.imul(turnedHigh, P1L) + Math.imul(turnedLow, P1H)) | 0;
    l = Math.imul(turnedLow, P1L);
  }
  return [h, l];
}

/** Leaves the hash in the number. */
function hash(bytes: Uint8Array): void {
  const view = viewOf(bytes);
  const blocks = bytes.length - (bytes.length % 32);
  if (blocks > 0) {
    set(P1H, P1L);
    add(P2H, P2L);
    const first = lane(view, 0, blocks);
    set(P2H, P2L);
    const second = lane(view, 8, blocks);
    set(0, 0);
    const third = lane(view, 16, blocks);
    set(~P1H, ~P1L); // 0 - P1
    add(0, 1);
    const lanes = [first, second, third, lane(view, 24, blocks)];
    let sum = [0, 0];
    for (let i = 0; i < 4; i++) {
      set(...lanes[i]);
      rotate([1, 7, 12, 18][i]);
      add(sum[0], sum[1]);
      sum = [high, low];
    }
    for (const one of lanes) {
      mix(...one);
      multiply(P1H, P1L);
      add(P4H, P4L);
    }
  } else {
    set(P5H, P5L);
  }
  add(Math.floor(bytes.length / 0x100000000), bytes.length);
  finish(view, blocks);
}

/** Takes the last 0 to 31 bytes and mixes all bits. */
function finish(view: DataView, start: number): void {
  let at = start;
  for (; at + 8 <= view.byteLength; at += 8) {
    mix(view.getInt32(at + 4, true), view.getInt32(at, true));
    rotate(27);
    multiply(P1H, P1L);
    add(P4H, P4L);
  }
  if (at + 4 <= view.byteLength) {
    const before = [high, low];
    set(0, view.getInt32(at, true));
    multiply(P1H, P1L);
    xor(before[0], before[1]);
    rotate(23);
    multiply(P2H, P2L);
    add(P3H, P3L);
    at += 4;
  }
  for (; at < view.byteLength; at++) {
    const before = [high, low];
    set(0, view.getUint8(at));
    multiply(P5H, P5L);
    xor(before[0], before[1]);
    rotate(11);
    multiply(P1H, P1L);
  }
  xor(0, high >>> 1); // the upper bits, from the 33rd on
  multiply(P2H, P2L);
  xor(high >>> 29, (low >>> 29) | (high << 3)); // from the 29th on
  multiply(P3H, P3L);
  xor(0, high); // from the 32nd on
}

/** XXH64, seed 0. */
export function xxh64(bytes: Uint8Array): bigint {
  hash(bytes);
  return (BigInt(high >>> 0) << 32n) | BigInt(low >>> 0);
}

/** The low 32 bits of XXH64, seed 0: the checksum of a zstd frame. */
export function xxh64Low(bytes: Uint8Array): number {
  hash(bytes);
  return low >>> 0;
}
