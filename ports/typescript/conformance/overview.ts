import { toHex } from "../src/core/bytes.js";
import { fromTypedArray } from "../src/core/dtypes.js";
import { type Overview, type Overviews, openEpisode, openOverviews } from "../src/wshard/node.js";
import { digest, type Kind, type Told } from "./kind.js";

/** Longer values are told by their SHA-256. */
const longestHex = 512;

export const overview: Kind = {
  read: (file) =>
    using(file, async (found) => {
      const overviews: Told = {};
      for (const block of found.blocks) overviews[block] = tellOverview((await found.read(block)) as Overview);
      const posters = found.posters.map(async (poster) => ({
        ...{ block: poster.block, number: `${poster.number}`, step: `${poster.step}` },
        ...{ width: `${poster.width}`, height: `${poster.height}` },
        ...tellBytes(await found.readPoster(poster)),
      }));
      return { overviews, posters: await Promise.all(posters), stale: found.stale };
    }),

  step: (file, given) =>
    using(file, async (found) => {
      const [kind, name] = (given["touch"] ?? []) as string[];
      if (kind === "overview") await found.read(name);
      for (const poster of found.posters)
        if (kind === "poster" && `${poster.number}` === name) await found.readPoster(poster);
      return { done: true };
    }),
};

function tellOverview(found: Overview): Told {
  const { buckets, dtype, shape, stepsPerBucket, means, minima, maxima } = found;
  const meanType = means instanceof Float64Array ? "f64" : "f32";
  return {
    buckets: `${buckets}`,
    dtype,
    mean_dtype: meanType,
    shape: shape.map(String),
    steps_per_bucket: `${stepsPerBucket}`,
    means: tellBytes(fromTypedArray(meanType, means)),
    minima: tellBytes(fromTypedArray(dtype, minima)),
    maxima: tellBytes(fromTypedArray(dtype, maxima)),
  };
}

function tellBytes(bytes: Uint8Array): Told {
  return bytes.length <= longestHex ? { hex: toHex(bytes) } : { sha256: digest(bytes) };
}

async function using(file: string, run: (found: Overviews) => Promise<Told>): Promise<Told> {
  const episode = await openEpisode(file);
  try {
    const found = await openOverviews(episode);
    if (found === null) throw new Error("no overview file");
    try {
      return await run(found);
    } finally {
      await found.close();
    }
  } finally {
    await episode.close();
  }
}
