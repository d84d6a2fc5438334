// Small images of cameras, from the file beside an episode. What is wrong with one is no reason to show less of the
// episode (W-OVW-8).

import type { ReadOptions } from "@shard-format/core";
import type { Overviews, Poster } from "@shard-format/core/wshard";
import type { PosterImage } from "../model/reads";

/** Larger images are no previews: they would take as long as the pictures themselves. */
const longestSide = 320;
const mostBytes = 64 << 10;
const mostImages = 64;

function smallOnes(overviews: Overviews, block: string | undefined): Poster[] {
  return overviews.posters
    .filter((poster) => poster.block === block && Math.max(poster.width, poster.height) <= longestSide)
    .filter((poster) => overviews.posterSize(poster) <= mostBytes)
    .slice(0, mostImages);
}

/** The small images of a camera. */
export async function postersOf(overviews: Overviews, block: string, options?: ReadOptions): Promise<PosterImage[]> {
  const found = await Promise.all(
    smallOnes(overviews, block).map(async (poster) => {
      const bytes = await overviews.readPoster(poster, options).catch(() => null);
      return bytes === null ? [] : [{ step: poster.step, bytes: bytes.slice() }];
    }),
  );
  return found.flat();
}

/** An image for the table: of the first camera, from the middle of the episode. */
export async function thumbnailOf(overviews: Overviews): Promise<Uint8Array | null> {
  const small = smallOnes(overviews, overviews.posters[0]?.block);
  const middle = small[small.length >> 1];
  return middle === undefined ? null : (await overviews.readPoster(middle)).slice();
}
