// SHA-256 (FIPS 180-4) where there is no Web Crypto: browsers have it neither on pages of plain http nor in the workers of
// frames without an origin, such as the cells of a notebook.

const primes: number[] = [];
for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
/** The first 32 bits of the part behind the point. */
const fraction = (x: number) => ((x % 1) * 2 ** 32) | 0;
const turn = (x: number, by: number) => (x >>> by) | (x << (32 - by));

export function computeSha256(bytes: Uint8Array): string {
  const rounds = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
  const state = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
  const rest = bytes.length % 64;
  const whole = bytes.subarray(0, bytes.length - rest);
  const end = new Uint8Array(rest < 56 ? 64 : 128);
  end.set(bytes.subarray(whole.length));
  end[rest] = 0x80;
  new DataView(end.buffer).setBigUint64(end.length - 8, 8n * BigInt(bytes.length));
  const words = new Int32Array(64);
  for (const part of [whole, end]) {
    const view = new DataView(part.buffer, part.byteOffset, part.length);
    for (let at = 0; at < part.length; at += 64) {
      for (let i = 0; i < 64; i++) {
        const x = words[(i - 15) & 63] as number;
        const y = words[(i - 2) & 63] as number;
        words[i] =
          i < 16
            ? view.getInt32(at + 4 * i)
            : (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) +
              (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10)) +
              (words[i - 16] as number) +
              (words[i - 7] as number);
      }
      let [a, b, c, d, e, f, g, h] = state as unknown as [
        number,
        number,
        number,
        number,
        number,
        number,
        number,
        number,
      ];
      for (let i = 0; i < 64; i++) {
        const first =
          h +
          (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
          ((e & f) ^ (~e & g)) +
          (rounds[i] as number) +
          (words[i] as number);
        const second = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = (d + first) | 0;
        d = c;
        c = b;
        b = a;
        a = (first + second) | 0;
      }
      [a, b, c, d, e, f, g, h].forEach((value, i) => {
        state[i] = (state[i] as number) + value;
      });
    }
  }
  return Array.from(state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}
