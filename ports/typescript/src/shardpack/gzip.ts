// Decoding one gzip member (RFC 1951 and 1952).
//
// The decoders of browsers and of Node cannot be used here: they accept several members or bytes after the last one,
// each in its own way, and those of browsers give no bound for the output. This one never writes more than is expected.

/** What is wrong with a gzip member. */
export class GzipError extends Error {
  override name = "GzipError";
}

const maxBits = 15;
const endOfBlock = 256;
const mostLengthCodes = 286;
const mostDistanceCodes = 30;
/** The order in which the lengths of the code length codes are stored. */
const codeLengthOrder = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15] as const;
const lengthBases = bases(3, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0]);
lengthBases.base[28] = 258;
const distanceBases = bases(
  1,
  [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13],
);

function bases(first: number, extra: number[]): { base: Uint16Array; extra: Uint8Array } {
  const base = new Uint16Array(extra.length);
  let next = first;
  extra.forEach((bits, symbol) => {
    base[symbol] = next;
    next += 1 << bits;
  });
  return { base, extra: Uint8Array.from(extra) };
}

/** A table with one item for each pattern of `bits` bits: the symbol and, in the lowest 4 bits, the length of its code. */
interface Codes {
  table: Uint16Array;
  bits: number;
}

function makeCodes(lengths: Uint8Array, what: string, mayBeIncomplete: boolean): Codes {
  const counts = new Uint16Array(maxBits + 1);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  let bits = maxBits;
  while (bits > 0 && counts[bits] === 0) bits--;
  const next = new Uint16Array(maxBits + 2);
  let room = 1;
  for (let length = 1; length <= maxBits; length++) {
    room = 2 * room - counts[length];
    if (room < 0) throw new GzipError(`the ${what} codes are too many`);
    next[length + 1] = (next[length] + counts[length]) << 1;
  }
  // A single code of one bit is the only set with a gap that deflate allows.
  if (room > 0 && !(mayBeIncomplete && bits <= 1)) throw new GzipError(`the ${what} codes are incomplete`);
  const table = new Uint16Array(1 << bits);
  lengths.forEach((length, symbol) => {
    if (length === 0) return;
    let reversed = 0;
    for (let code = next[length]++, left = length; left > 0; left--, code >>= 1)
      reversed = (reversed << 1) | (code & 1);
    for (let at = reversed; at < table.length; at += 1 << length) table[at] = (symbol << 4) | length;
  });
  return { table, bits };
}

let fixed: { lengths: Codes; distances: Codes } | undefined;

function fixedCodes(): { lengths: Codes; distances: Codes } {
  if (fixed === undefined) {
    const lengths = new Uint8Array(288).fill(8, 0, 144).fill(9, 144, 256).fill(7, 256, 280).fill(8, 280);
    fixed = {
      lengths: makeCodes(lengths, "length", false),
      distances: makeCodes(new Uint8Array(32).fill(5), "distance", false),
    };
  }
  return fixed;
}

class Inflater {
  readonly #input: Uint8Array;
  readonly #most: number;
  #at = 0;
  /** Bits that were read and not used, the lowest first, and how many. */
  #held = 0;
  #count = 0;
  #output: Uint8Array;
  #size = 0;

  constructor(input: Uint8Array, most: number) {
    this.#input = input;
    this.#most = most;
    // A false claim of a large output must not cost memory, so the output grows.
    this.#output = new Uint8Array(Math.min(most, Math.max(1 << 16, 8 * input.length)));
  }

  /** The content, or undefined if it is longer than `most`. All of the input must belong to it. */
  run(): Uint8Array | undefined {
    for (let isLast = false; !isLast; ) {
      isLast = this.#take(1) === 1;
      const kind = this.#take(2);
      if (kind === 3) throw new GzipError("a block has an unknown type");
      if (kind === 0 ? !this.#storedBlock() : !this.#codedBlock(kind === 1 ? fixedCodes() : this.#readCodes()))
        return undefined;
    }
    const used = this.#at - (this.#count >> 3);
    if (used !== this.#input.length)
      throw new GzipError(used > this.#input.length ? "it ends too early" : "bytes follow its last block");
    return this.#output.subarray(0, this.#size);
  }

  /** Make sure that at least 25 bits are held; after the end of the input they are zero. */
  #refill(): void {
    while (this.#count <= 24) {
      this.#held |= (this.#at < this.#input.length ? this.#input[this.#at] : 0) << this.#count;
      this.#at++;
      this.#count += 8;
    }
    // At most four bytes are held, so bits after the end were used.
    if (this.#at > this.#input.length + 4) throw new GzipError("it ends too early");
  }

  #take(bits: number): number {
    this.#refill();
    const found = this.#held & ((1 << bits) - 1);
    this.#held >>>= bits;
    this.#count -= bits;
    return found;
  }

  #symbol(codes: Codes): number {
    this.#refill();
    const found = codes.table[this.#held & ((1 << codes.bits) - 1)];
    const length = found & 15;
    if (length === 0) throw new GzipError("a code is not one of its block");
    this.#held >>>= length;
    this.#count -= length;
    return found >> 4;
  }

  #readCodes(): { lengths: Codes; distances: Codes } {
    const lengthCount = this.#take(5) + 257;
    const distanceCount = this.#take(5) + 1;
    const codeCount = this.#take(4) + 4;
    if (lengthCount > mostLengthCodes || distanceCount > mostDistanceCodes)
      throw new GzipError("a block has too many codes");
    const order = new Uint8Array(codeLengthOrder.length);
    for (let at = 0; at < codeCount; at++) order[codeLengthOrder[at]] = this.#take(3);
    const codes = makeCodes(order, "code length", false);
    const lengths = new Uint8Array(lengthCount + distanceCount);
    for (let at = 0; at < lengths.length; ) {
      const symbol = this.#symbol(codes);
      if (symbol < 16) {
        lengths[at++] = symbol;
        continue;
      }
      if (symbol === 16 && at === 0) throw new GzipError("nothing is there to repeat");
      const value = symbol === 16 ? lengths[at - 1] : 0;
      const times = symbol === 16 ? 3 + this.#take(2) : symbol === 17 ? 3 + this.#take(3) : 11 + this.#take(7);
      if (at + times > lengths.length) throw new GzipError("a repeated length goes too far");
      lengths.fill(value, at, at + times);
      at += times;
    }
    if (lengths[endOfBlock] === 0) throw new GzipError("a block has no end");
    return {
      lengths: makeCodes(lengths.subarray(0, lengthCount), "length", true),
      distances: makeCodes(lengths.subarray(lengthCount), "distance", true),
    };
  }

  #storedBlock(): boolean {
    // Whole bytes that are held belong to the block.
    this.#at -= this.#count >> 3;
    this.#held = this.#count = 0;
    const input = this.#input;
    const size = (input[this.#at] ?? 0) | ((input[this.#at + 1] ?? 0) << 8);
    const inverse = (input[this.#at + 2] ?? 0) | ((input[this.#at + 3] ?? 0) << 8);
    this.#at += 4;
    if (this.#at + size > input.length) throw new GzipError("it ends too early");
    if ((size ^ inverse) !== 0xffff) throw new GzipError("a stored block contradicts its own size");
    if (!this.#makeRoom(size)) return false;
    this.#output.set(input.subarray(this.#at, this.#at + size), this.#size);
    this.#at += size;
    this.#size += size;
    return true;
  }

  #codedBlock({ lengths, distances }: { lengths: Codes; distances: Codes }): boolean {
    // The state is in local variables here: this loop is where the time goes.
    const input = this.#input;
    const lengthTable = lengths.table;
    const lengthMask = lengthTable.length - 1;
    const end = input.length;
    let at = this.#at;
    let held = this.#held;
    let count = this.#count;
    let size = this.#size;
    let output = this.#output;
    for (;;) {
      while (count <= 24) {
        held |= (at < end ? input[at] : 0) << count;
        at++;
        count += 8;
      }
      const found = lengthTable[held & lengthMask];
      const bits = found & 15;
      const symbol = found >> 4;
      if (bits === 0 || at > end + 4) break;
      held >>>= bits;
      count -= bits;
      if (symbol < endOfBlock && size < output.length) {
        output[size++] = symbol;
        continue;
      }
      this.#at = at;
      this.#held = held;
      this.#count = count;
      this.#size = size;
      if (symbol === endOfBlock) return true;
      if (symbol < endOfBlock) {
        if (!this.#makeRoom(1)) return false;
        output = this.#output;
        output[size++] = symbol;
        continue;
      }
      if (!this.#copyMatch(symbol, distances)) return false;
      at = this.#at;
      held = this.#held;
      count = this.#count;
      size = this.#size;
      output = this.#output;
    }
    throw new GzipError(at > end + 4 ? "it ends too early" : "a code is not one of its block");
  }

  #copyMatch(symbol: number, distances: Codes): boolean {
    if (symbol >= mostLengthCodes) throw new GzipError("a code is not one of its block");
    const length = lengthBases.base[symbol - 257] + this.#take(lengthBases.extra[symbol - 257]);
    const from = this.#symbol(distances);
    if (from >= mostDistanceCodes) throw new GzipError("a code is not one of its block");
    const distance = distanceBases.base[from] + this.#take(distanceBases.extra[from]);
    if (distance > this.#size) throw new GzipError("a match starts before the content");
    if (!this.#makeRoom(length)) return false;
    const output = this.#output;
    const size = this.#size;
    for (let at = size; at < size + length; at++) output[at] = output[at - distance];
    this.#size += length;
    return true;
  }

  /** Whether `more` bytes fit; the output grows if it must. */
  #makeRoom(more: number): boolean {
    const needed = this.#size + more;
    if (needed > this.#most) return false;
    if (needed > this.#output.length) {
      const larger = new Uint8Array(Math.min(this.#most, Math.max(needed, 2 * this.#output.length)));
      larger.set(this.#output.subarray(0, this.#size));
      this.#output = larger;
    }
    return true;
  }
}

let crcTable: Uint32Array | undefined;

/** The CRC-32 of RFC 1952, which is not the CRC-32C of the rest of the format. */
function crc32(data: Uint8Array): number {
  crcTable ??= Uint32Array.from({ length: 256 }, (_, byte) => {
    for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
    return byte;
  });
  let crc = -1;
  for (let at = 0; at < data.length; at++) crc = (crc >>> 8) ^ crcTable[(crc ^ data[at]) & 0xff];
  return ~crc >>> 0;
}

/** Where the deflate data of a member starts. */
function headSize(stored: Uint8Array): number {
  if (stored[0] !== 0x1f || stored[1] !== 0x8b || stored[2] !== 8) throw new GzipError("it does not start like gzip");
  const flags = stored[3] ?? 0;
  if (flags & 0xe0) throw new GzipError("a reserved flag is set");
  let at = 10;
  if (flags & 4) at += 2 + ((stored[at] ?? 0) | ((stored[at + 1] ?? 0) << 8));
  for (const text of [8, 16]) {
    if (!(flags & text)) continue;
    const end = stored.indexOf(0, at);
    if (end < 0) throw new GzipError("it ends inside its head");
    at = end + 1;
  }
  if (flags & 2) {
    if (at + 2 <= stored.length && (crc32(stored.subarray(0, at)) & 0xffff) !== (stored[at] | (stored[at + 1] << 8)))
      throw new GzipError("its head is damaged");
    at += 2;
  }
  return at;
}

const trailerSize = 8;

/**
 * The content of one gzip member, or undefined if it has more than `most` bytes.
 *
 * @throws GzipError if the bytes are not exactly one undamaged member.
 */
export function gunzip(stored: Uint8Array, most: number): Uint8Array | undefined {
  const start = headSize(stored);
  const end = stored.length - trailerSize;
  if (start > end) throw new GzipError("it ends too early");
  const content = new Inflater(stored.subarray(start, end), most).run();
  if (content === undefined) return undefined;
  const trailer = new DataView(stored.buffer, stored.byteOffset + end, trailerSize);
  if (trailer.getUint32(4, true) !== content.length % 2 ** 32) throw new GzipError("it contradicts its own size");
  if (trailer.getUint32(0, true) !== crc32(content)) throw new GzipError("it does not fit its own checksum");
  return content;
}
