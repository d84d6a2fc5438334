// Channels whose clocks have more entries than are read one by one.

import { encodeEpisode, openEpisode } from "@shard-format/core/wshard";
import { expect, test } from "vitest";
import { OpenEpisode } from "../src/worker/episode";
import { zstd } from "../src/worker/zstd";

const length = (1 << 23) + 1001;

/** A frame of one repeated byte, whatever the data: nobody decodes it. */
function frameOfZeros({ length }: Uint8Array): Uint8Array {
  const head = new Uint8Array(13);
  const view = new DataView(head.buffer);
  view.setUint32(0, 0xfd2fb528, true);
  head[4] = 0xe0; // one segment, with the size of its content in eight bytes
  view.setBigUint64(5, BigInt(length), true);
  const most = 1 << 17;
  const blocks: number[] = [];
  for (let at = 0; at < length || at === 0; at += most) {
    const isLast = at + most >= length;
    const block = (Math.min(most, length - at) << 3) | (1 << 1) | Number(isLast);
    blocks.push(block & 255, (block >> 8) & 255, block >> 16, 0);
  }
  return Uint8Array.of(...head, ...blocks);
}

/** An episode of 100 s with a channel of more than 2²³ entries that was twice as fast in the second half of them. */
async function opened(compression: "none" | "zstd") {
  const middle = Math.floor(length / 2);
  const timestampsNs = new BigInt64Array(length);
  for (let at = 0; at < length; at++) timestampsNs[at] = BigInt(at < middle ? 16_000 * at : 8_000 * (at + middle));
  const data = new Uint8Array(length);
  data[length - 5] = 99;
  const bytes = await encodeEpisode(
    { id: "long", timebase: { tickHz: 10 }, length: 1000, observations: { fast: { data, timestampsNs } } },
    { compression, zstd: { decompress: (frame) => frame, compress: frameOfZeros } },
  );
  const nobody = { row: 0, isUnfinished: false, recover: "", arrived: () => {}, findings: async () => null };
  return {
    episode: new OpenEpisode(0, await openEpisode(bytes, { zstd }), nobody),
    timestampsNs,
    size: bytes.length,
  };
}

test("a clock of more than eight million entries is read at some places, and says how far off the others may be", async () => {
  const { episode, timestampsNs } = await opened("none");
  const before = await episode.traffic();
  const { lines, timesOff } = await episode.columns("signal/fast", [0], { start: 990, end: 1010 }, 100, {});
  // Where the rate changes, half a gap of the known places times half the difference of both rates is the largest error.
  const gap = length / 128;
  expect(timesOff).toBeGreaterThan(0);
  expect(timesOff).toBeLessThan(gap * 0.016e-3 * 10);
  const [line] = lines;
  const spike = line?.x[line.max.indexOf(99)] ?? Number.NaN;
  expect(Math.abs(spike - Number(timestampsNs[length - 5]) / 1e8)).toBeLessThan(0.3);
  for (const entry of [0, 1_000_000, 5_555_555, length - 1]) {
    const [position] = await episode.positions("signal/fast", entry, entry + 1);
    expect(Math.abs((position ?? 0) - Number(timestampsNs[entry]) / 1e8)).toBeLessThanOrEqual(timesOff + 1e-6);
    expect(Math.abs((await episode.entryAt("signal/fast", position ?? 0)) - entry)).toBeLessThanOrEqual(1);
  }
  const { bytes } = await episode.traffic();
  expect(bytes - before.bytes).toBeLessThan(1.5 * length);
});

test("a clock of more than eight million entries that is compressed in one piece says what to do", async () => {
  const { episode } = await opened("zstd");
  const failing = episode.columns("signal/fast", [0], { start: 0, end: 10 }, 100, {});
  await expect(failing).rejects.toThrow(/compressed in one piece.*wshard repack --overview/s);
});
