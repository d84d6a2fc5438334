// Decodes zstd frames (RFC 8878). It is not WebAssembly, because that makes the page 25 KB larger after gzip, and 22 ms
// instead of 10 for a group of camera frames of 3.7 MB are fast enough for everything that the page promises.
//
// `@shard-format/core` checks the structure of a frame before: its header, and where its blocks are. Damage inside of a
// block ends here in an error, or in a number of bytes that the core finds wrong.

import { xxh64, type Zstd } from "@shard-format/core";

/** What a block holds at most, decoded. Small windows allow less. */
const mostBlock = 128 << 10;
/** Bits of the longest Huffman code. */
const mostBits = 11;
/** Bytes behind a frame, because four are read at a time. */
const room = 8;
/** Bytes from which on copying in one call is faster than one by one. */
const longCopy = 24;

/** A table of finite state entropy: in each state the next one without its lower bits, how many those are, the symbol. */
interface Table {
  readonly log: number;
  /** Next state, from bit 16 on the number of bits, from bit 24 on the symbol. */
  readonly states: Int32Array;
}

/** A table of Huffman codes: for the next `log` bits the symbol, and from bit 8 on the length of its code. */
interface Codes {
  readonly log: number;
  readonly symbols: Uint16Array;
}

/** A kind of number that sequences are made of: how many codes it has, and the table to use where none is given. */
interface Kind {
  readonly most: number;
  readonly mostLog: number;
  readonly usual: Table;
}

const ones = (count: number) => new Array<number>(count).fill(1);
const twos = (count: number) => new Array<number>(count).fill(2);
const rare = (count: number) => new Array<number>(count).fill(-1);

const literalKind = kind(35, 9, 6, [4, 3, ...twos(11), 1, 1, 1, ...twos(9), 3, 2, ...ones(5), ...rare(4)]);
const offsetKind = kind(30, 8, 5, [...ones(6), 2, 2, 2, ...ones(15), ...rare(5)]);
const matchKind = kind(52, 9, 6, [1, 4, 3, ...twos(6), ...ones(37), ...rare(7)]);

// The bits that follow the code of a length, and the least length with this code.
const literalBits = [...new Array(16).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const matchBits = [...new Array(32).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const literalExtra = Uint8Array.from(literalBits);
const matchExtra = Uint8Array.from(matchBits);
const literalBase = bases(literalBits, 0);
const matchBase = bases(matchBits, 3);

function bases(bits: readonly number[], least: number): Int32Array {
  let next = least;
  return Int32Array.from(bits, (count) => {
    next += 1 << count;
    return next - (1 << count);
  });
}

function kind(most: number, mostLog: number, log: number, counts: number[]): Kind {
  return { most, mostLog, usual: makeTable(counts, log) };
}

function damaged(): Error {
  return new Error("a zstd block is damaged");
}

/** Spreads the symbols over the states. A count of -1 is a symbol with one state of the last ones. */
function makeTable(counts: readonly number[], log: number): Table {
  const size = 1 << log;
  const states = new Int32Array(size);
  const next = counts.map(Math.abs);
  let last = size - 1;
  counts.forEach((count, symbol) => {
    if (count < 0) states[last--] = symbol;
  });
  let at = 0;
  counts.forEach((count, symbol) => {
    for (let i = 0; i < count; i++) {
      states[at] = symbol;
      do at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1);
      while (at > last);
    }
  });
  for (let state = 0; state < size; state++) {
    const symbol = states[state] as number;
    const count = next[symbol] as number;
    next[symbol] = count + 1;
    const bits = log - 31 + Math.clz32(count);
    states[state] = ((count << bits) - size) | (bits << 16) | (symbol << 24);
  }
  return { log, states };
}

/** Up to 25 bits of a stream that starts at a byte. */
function bitsAt(view: DataView, start: number, bit: number, count: number): number {
  return (view.getUint32(start + (bit >> 3), true) >>> (bit & 7)) & ((1 << count) - 1);
}

/** The literals of a block. Decoding waits for nothing, so one piece of memory is enough for all. */
let memory: Uint8Array | undefined;

class Decoder {
  /** The frame, and room. */
  readonly #input: Uint8Array;
  readonly #view: DataView;
  readonly #out: Uint8Array;
  #done = 0;
  readonly #literals: Uint8Array;
  /** What a block of this frame may hold, decoded and as it is stored. */
  readonly #most: number;
  #codes: Codes | undefined;
  readonly #tables: (Table | undefined)[] = [];
  readonly #offsets = [1, 4, 8];
  #at: number;

  constructor(frame: Uint8Array, size: number) {
    this.#input = new Uint8Array(frame.length + room);
    this.#input.set(frame);
    this.#view = new DataView(this.#input.buffer);
    this.#out = new Uint8Array(size);
    memory ??= new Uint8Array(mostBlock);
    this.#literals = memory;
    const head = frame[4] as number;
    const isSingle = (head & 0x20) !== 0;
    const sizeBytes = [isSingle ? 1 : 0, 2, 4, 8][head >> 6] as number;
    const window = frame[5] as number;
    // The window of a frame without one is its content.
    this.#most = Math.min(mostBlock, isSingle ? size : (8 + (window & 7)) * 2 ** (7 + (window >> 3)));
    this.#at = 5 + (isSingle ? 0 : 1) + ([0, 1, 2, 4][head & 3] as number) + sizeBytes;
  }

  decode(): Uint8Array {
    for (let isLast = false; !isLast; ) {
      const head = this.#number(3);
      const size = head >> 3;
      isLast = (head & 1) !== 0;
      const start = this.#done;
      const type = (head >> 1) & 3;
      if (type === 3 || size > this.#most) throw damaged();
      if (type === 2) {
        const end = this.#at + size;
        if (end > this.#input.length - room) throw damaged();
        this.#sequences(this.#readLiterals(end), end);
        this.#at = end;
        if (this.#done - start > this.#most) throw damaged();
      } else {
        if (size > this.#out.length - start) throw damaged();
        this.#done += size;
        if (type === 0) this.#out.set(this.#bytes(size), start);
        else this.#out.fill(this.#number(1), start, this.#done);
      }
    }
    const content = this.#out.subarray(0, this.#done);
    const hasChecksum = ((this.#input[4] as number) & 0x04) !== 0;
    if (hasChecksum && this.#number(4) >>> 0 !== Number(xxh64(content) & 0xffffffffn)) throw damaged();
    return content;
  }

  #number(bytes: number): number {
    return this.#bytes(bytes).reduce((number, byte, i) => number | (byte << (8 * i)), 0);
  }

  #bytes(count: number): Uint8Array {
    this.#at += count;
    if (this.#at > this.#input.length - room) throw damaged();
    return this.#input.subarray(this.#at - count, this.#at);
  }

  /** The place of the last bit of a stream that is read backwards: below the highest one of its last byte. */
  #lastBit(start: number, end: number): number {
    const last = this.#input[end - 1] as number;
    if (end <= start || last === 0) throw damaged();
    return 8 * (end - start) - 1 - (Math.clz32(last) - 24);
  }

  #readLiterals(end: number): Uint8Array {
    const head = this.#input[this.#at] as number;
    const form = (head >> 2) & 3;
    const type = head & 3;
    if (type < 2) {
      const size = form === 1 ? this.#number(2) >> 4 : form === 3 ? this.#number(3) >> 4 : this.#number(1) >> 3;
      if (size > this.#most) throw damaged();
      return type === 0 ? this.#bytes(size) : this.#literals.fill(this.#number(1), 0, size).subarray(0, size);
    }
    const bits = [10, 10, 14, 18][form] as number;
    // Behind four bits come two sizes, each of `bits` bits.
    const first = this.#view.getUint32(this.#at, true);
    const second = this.#view.getUint32(this.#at + ((bits + 4) >> 3), true);
    const mask = (1 << bits) - 1;
    const size = (first >>> 4) & mask;
    const packed = (second >>> ((bits + 4) & 7)) & mask;
    this.#at += (bits + 2) >> 2;
    const last = this.#at + packed;
    if (last > end || size > this.#most) throw damaged();
    if (type === 2) this.#codes = this.#readCodes();
    if (form === 0) {
      this.#stream(this.#at, last, 0, size);
    } else {
      // Each stream but the last has a quarter of the literals, rounded up.
      if (size < 6) throw damaged();
      const sizes = [this.#number(2), this.#number(2), this.#number(2)];
      const part = (size + 3) >> 2;
      for (let i = 0; i < 4; i++) {
        const stop = i < 3 ? this.#at + (sizes[i] as number) : last;
        if (stop > last) throw damaged();
        this.#stream(this.#at, stop, i * part, i < 3 ? (i + 1) * part : size);
        this.#at = stop;
      }
    }
    this.#at = last;
    return this.#literals.subarray(0, size);
  }

  /** Decodes Huffman codes of a stream to a part of the literals. */
  #stream(start: number, stop: number, from: number, to: number): void {
    if (this.#codes === undefined) throw damaged();
    const { log, symbols } = this.#codes;
    const view = this.#view;
    const out = this.#literals;
    const mask = (1 << log) - 1;
    let bit = this.#lastBit(start, stop);
    let i = from;
    // Two codes of at most eleven bits are in 25 bits, and these in four bytes.
    for (; i < to - 1; i += 2) {
      const byte = (bit - 25) >> 3;
      const word = view.getUint32(start + byte, true);
      bit -= byte << 3;
      const one = symbols[(word >>> (bit - log)) & mask] as number;
      bit -= one >> 8;
      const two = symbols[(word >>> (bit - log)) & mask] as number;
      bit += (byte << 3) - (two >> 8);
      out[i] = one;
      out[i + 1] = two;
    }
    if (i < to) {
      const byte = (bit - 25) >> 3;
      const code = symbols[(view.getUint32(start + byte, true) >>> (bit - (byte << 3) - log)) & mask] as number;
      bit -= code >> 8;
      out[i] = code;
    }
    if (bit !== 0) throw damaged();
  }

  #readCodes(): Codes {
    const head = this.#number(1);
    const weights: number[] = [];
    if (head >= 128) {
      for (let i = 0; i < head - 127; i += 2) {
        const pair = this.#number(1);
        weights.push(pair >> 4, pair & 15);
      }
      weights.length = head - 127;
    } else {
      const end = this.#at + head;
      const { log, states } = this.#readTable(6, mostBits);
      this.#readWeights(weights, log, states, end);
      this.#at = end;
    }
    // The last weight fills the sum to a power of two.
    let sum = 0;
    for (const weight of weights) sum += (1 << weight) >> 1;
    const log = 32 - Math.clz32(sum);
    const left = (1 << log) - sum;
    weights.push(32 - Math.clz32(left));
    // Two codes at least have all bits.
    if (sum === 0 || log > mostBits || (left & (left - 1)) !== 0 || !weights.includes(1)) throw damaged();
    const symbols = new Uint16Array(1 << log);
    let at = 0;
    for (let weight = 1; weight <= log; weight++) {
      weights.forEach((one, symbol) => {
        if (one !== weight) return;
        symbols.fill(symbol | ((log + 1 - weight) << 8), at, at + (1 << (weight - 1)));
        at += 1 << (weight - 1);
      });
    }
    return { log, symbols };
  }

  /** Two states take turns, until the bits are used up. */
  #readWeights(weights: number[], log: number, states: Int32Array, end: number): void {
    const start = this.#at;
    let bit = this.#lastBit(start, end);
    const take = (count: number) => {
      bit -= count;
      const word = this.#view.getUint32(start + (bit >> 3), true) >>> (bit & 7);
      // Bits before the first one are zeros.
      return bit < 0 ? ((word & ((1 << count) - 1)) >> -bit) << -bit : word & ((1 << count) - 1);
    };
    let one = take(log);
    let two = take(log);
    if (bit < 0) throw damaged();
    while (weights.length < 255) {
      const state = states[one] as number;
      weights.push(state >>> 24);
      one = two;
      two = (state & 0xffff) + take((state >> 16) & 255);
      if (bit < 0) {
        weights.push((states[one] as number) >>> 24);
        return;
      }
    }
    throw damaged();
  }

  #readTable(mostLog: number, most: number): Table {
    const log = ((this.#input[this.#at] as number) & 15) + 5;
    if (log > mostLog) throw damaged();
    let bit = 8 * this.#at + 4;
    const counts: number[] = [];
    for (let left = 1 << log; left > 0; ) {
      // A number up to `left` + 1; the small ones take a bit less.
      const bits = 32 - Math.clz32(left + 1);
      const word = this.#view.getUint32(bit >> 3, true) >>> (bit & 7);
      const short = (1 << bits) - 2 - left;
      let value = word & ((1 << (bits - 1)) - 1);
      bit += bits - 1;
      if (value >= short) {
        value = word & ((1 << bits) - 1);
        if (value >= 1 << (bits - 1)) value -= short;
        bit++;
      }
      const count = value - 1;
      counts.push(count);
      left -= Math.abs(count);
      if (count === 0) {
        for (let more = 3; more === 3; ) {
          more = (this.#view.getUint32(bit >> 3, true) >>> (bit & 7)) & 3;
          bit += 2;
          for (let i = 0; i < more; i++) counts.push(0);
        }
      }
      if (left < 0 || counts.length > most + 1) throw damaged();
    }
    this.#at = (bit + 7) >> 3;
    return makeTable(counts, log);
  }

  /** The table of one kind of number, as two bits of the head say. */
  #tableOf(index: number, mode: number, { most, mostLog, usual }: Kind): Table {
    let table = this.#tables[index];
    if (mode === 0) table = usual;
    else if (mode === 1) {
      const symbol = this.#number(1);
      if (symbol > most) throw damaged();
      table = { log: 0, states: Int32Array.of(symbol << 24) };
    } else if (mode === 2) table = this.#readTable(mostLog, most);
    if (table === undefined) throw damaged();
    this.#tables[index] = table;
    return table;
  }

  /** Copies literals, and what came before, as the sequences of a block say. */
  #sequences(literals: Uint8Array, end: number): void {
    const out = this.#out;
    let done = this.#done;
    let taken = 0;
    let count = this.#number(1);
    if (count === 255) count = this.#number(2) + 0x7f00;
    else if (count > 127) count = ((count - 128) << 8) | this.#number(1);
    if (this.#at > end || (count === 0 && this.#at < end)) throw damaged();
    if (count > 0) {
      const modes = this.#number(1);
      if ((modes & 3) !== 0) throw damaged();
      const { log: literalLog, states: literalStates } = this.#tableOf(0, modes >> 6, literalKind);
      const { log: offsetLog, states: offsetStates } = this.#tableOf(1, (modes >> 4) & 3, offsetKind);
      const { log: matchLog, states: matchStates } = this.#tableOf(2, (modes >> 2) & 3, matchKind);
      const view = this.#view;
      const start = this.#at;
      let [first, second, third] = this.#offsets as [number, number, number];
      let bit = this.#lastBit(start, end);
      bit -= literalLog;
      let literalState = literalStates[bitsAt(view, start, bit, literalLog)] as number;
      bit -= offsetLog;
      let offsetState = offsetStates[bitsAt(view, start, bit, offsetLog)] as number;
      bit -= matchLog;
      let matchState = matchStates[bitsAt(view, start, bit, matchLog)] as number;
      for (;;) {
        let bits = offsetState >>> 24;
        let value = 1 << bits;
        if (bits > 24) {
          // More than four bytes hold from any bit on.
          bits -= 16;
          bit -= bits;
          value += bitsAt(view, start, bit, bits) << 16;
          bits = 16;
        }
        bit -= bits;
        value += bitsAt(view, start, bit, bits);
        const matchCode = matchState >>> 24;
        bits = matchExtra[matchCode] as number;
        bit -= bits;
        let length = (matchBase[matchCode] as number) + bitsAt(view, start, bit, bits);
        const literalCode = literalState >>> 24;
        bits = literalExtra[literalCode] as number;
        bit -= bits;
        const plain = (literalBase[literalCode] as number) + bitsAt(view, start, bit, bits);
        let offset = value - 3;
        if (value > 3) {
          third = second;
          second = first;
        } else {
          const which = plain === 0 ? value : value - 1;
          offset = which === 0 ? first : which === 1 ? second : which === 2 ? third : first - 1;
          if (which > 1) third = second;
          if (which > 0) second = first;
        }
        first = offset;
        if (
          plain > literals.length - taken ||
          plain + length > out.length - done ||
          offset <= 0 ||
          offset > done + plain
        )
          throw damaged();
        if (plain > longCopy) {
          out.set(literals.subarray(taken, taken + plain), done);
          done += plain;
          taken += plain;
        } else {
          for (const stop = done + plain; done < stop; ) out[done++] = literals[taken++] as number;
        }
        if (length > longCopy && offset >= length) {
          out.copyWithin(done, done - offset, done - offset + length);
          done += length;
        } else {
          for (; length > 0; length--, done++) out[done] = out[done - offset] as number;
        }
        if (--count === 0) break;
        bits = (literalState >> 16) & 255;
        bit -= bits;
        literalState = literalStates[(literalState & 0xffff) + bitsAt(view, start, bit, bits)] as number;
        bits = (matchState >> 16) & 255;
        bit -= bits;
        matchState = matchStates[(matchState & 0xffff) + bitsAt(view, start, bit, bits)] as number;
        bits = (offsetState >> 16) & 255;
        bit -= bits;
        offsetState = offsetStates[(offsetState & 0xffff) + bitsAt(view, start, bit, bits)] as number;
      }
      if (bit !== 0) throw damaged();
      this.#offsets.splice(0, 3, first, second, third);
    }
    const rest = literals.subarray(taken);
    out.set(rest, done);
    this.#done = done + rest.length;
  }
}

/** For the readers of `@shard-format/core`. */
export const zstd: Zstd = { decompress: (frame, size) => new Decoder(frame, size).decode() };
