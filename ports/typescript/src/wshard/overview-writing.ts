// Making overview files (spec/wshard.md, section 18). Posters take an encoder of images, which this package has not.

import { compareUtf8 } from "../core/bytes.js";
import { fromTypedArray, type TypedArray, toTypedArray } from "../core/dtypes.js";
import { invalid } from "../core/errors.js";
import { canonicalBytes } from "../core/json.js";
import { ContentType, dtypeSizes, Role } from "../core/registry.js";
import { BytesSink, type Sink } from "../core/sink.js";
import { ShardWriter } from "../core/writer.js";
import { concatenated } from "./blocks.js";
import type { Episode } from "./episode.js";
import { formOf, type KnownBlock, knownBlocks, metaOverview, mostBuckets, mostValues } from "./overviews.js";

/** A shorter channel is read as fast as its overview. */
const worthwhile = 4 * mostBuckets;
const windowBytes = 1 << 23;

/**
 * Writes the overview file of an open episode: overviews of its dense channels of more than 16384 entries and at most 256
 * values a step. Takes bounded memory. Writes nothing and returns false if there is none.
 */
export async function writeOverviews(sink: Sink, episode: Episode): Promise<boolean> {
  if (episode.files[0]?.header.role === Role.manifest) {
    throw invalid("an episode in chunks has no overview of its own: open one of its chunks", {
      path: episode.files[0].path,
    });
  }
  const drawn = [...knownBlocks(episode)].filter(([, known]) => isDrawn(known));
  if (drawn.length === 0) return false;
  drawn.sort(([one], [other]) => compareUtf8(one, other));
  const rows = drawn.map(([block, { dtype, shape, length, origSize, crc32c }]) => [
    block,
    { crc32c, dtype, length, orig_size: origSize, shape },
  ]);
  const names = [metaOverview, ...drawn.map(([block]) => `overview/${block}`)];
  const writer = new ShardWriter(sink, { names });
  try {
    const fields = canonicalBytes({ blocks: Object.fromEntries(rows), v: 1 });
    await writer.write(metaOverview, fields, { contentType: ContentType.json });
    for (const [block, known] of drawn) await writer.write(`overview/${block}`, await summarise(known));
    await writer.finish();
  } catch (error) {
    await writer.abort();
    throw error;
  }
  return true;
}

/** The overview file of an open episode, as `writeOverviews` makes it; null if no channel is that long. */
export async function encodeOverviews(episode: Episode): Promise<Uint8Array | null> {
  const sink = new BytesSink();
  return (await writeOverviews(sink, episode)) ? (sink.bytes as Uint8Array) : null;
}

function isDrawn(known: KnownBlock): boolean {
  const { values } = formOf(known);
  return known.isDense && known.length > worthwhile && values >= 1 && values <= mostValues;
}

/** Means, minima and maxima of a block as the overview stores them. */
async function summarise(known: KnownBlock): Promise<Uint8Array> {
  const { dtype, source } = known;
  const { values, stepsPerBucket, buckets, meanType, size } = formOf(known);
  const length = Number(known.length);
  const stepBytes = values * dtypeSizes[dtype];
  const means = new (meanType === "f64" ? Float64Array : Float32Array)(values * buckets);
  const [minima, maxima] = [0, 0].map(() => toTypedArray(dtype, new Uint8Array(size)) as TypedArray);
  const atOnce = Math.max(1, Math.floor(windowBytes / (stepsPerBucket * stepBytes)));
  for (let first = 0; first < buckets; first += atOnce) {
    const start = first * stepsPerBucket;
    const stop = Math.min((first + atOnce) * stepsPerBucket, length);
    const steps = toTypedArray(dtype, await source.read(start * stepBytes, stop * stepBytes)) as TypedArray;
    for (let bucket = first; bucket < Math.min(first + atOnce, buckets); bucket++) {
      const from = (bucket * stepsPerBucket - start) * values;
      const to = Math.min(from + stepsPerBucket * values, steps.length);
      for (let value = 0; value < values; value++) {
        const [mean, least, most] = reduce(steps, from + value, to, values);
        const at = value * buckets + bucket;
        means[at] = mean;
        minima[at] = least;
        maxima[at] = most;
      }
    }
  }
  return concatenated([fromTypedArray(meanType, means), fromTypedArray(dtype, minima), fromTypedArray(dtype, maxima)]);
}

/** Mean, minimum and maximum of every `step`-th number; NaN does not count. */
function reduce(
  numbers: TypedArray,
  from: number,
  to: number,
  step: number,
): [number, number | bigint, number | bigint] {
  let [sum, count]: [number, number] = [0, 0];
  let [least, most]: [number | bigint, number | bigint] = [Number.NaN, Number.NaN];
  for (let at = from; at < to; at += step) {
    const number = numbers[at];
    if (Number.isNaN(number)) continue;
    if (count === 0 || number < least) least = number;
    if (count === 0 || number > most) most = number;
    sum += Number(number);
    count++;
  }
  return [sum / count, least, most];
}
