// Small images of a camera, to look at while the picture itself is read.

import type { Reads } from "./reads";

/** Pixels of the longer side: hostile files have large ones. */
const side = 160;

export class Posters {
  /** Undefined until the first question. */
  #images: readonly { readonly step: number; readonly image: ImageBitmap }[] | undefined;

  constructor(
    private readonly reads: Reads,
    private readonly key: string,
    private readonly arrived: () => void,
  ) {}

  /** The image whose entry is nearest, if it is nearer than `other`. The first question has them read. */
  near(entry: number, other: number): ImageBitmap | null {
    if (this.#images === undefined) void this.#read();
    let [found, least]: [ImageBitmap | null, number] = [null, Math.abs(other - entry)];
    for (const { step, image } of this.#images ?? []) {
      if (Math.abs(step - entry) < least) [found, least] = [image, Math.abs(step - entry)];
    }
    return found;
  }

  async #read(): Promise<void> {
    this.#images = [];
    const posters = await this.reads.posters(this.key).catch(() => []);
    const images = posters.map(async ({ step, bytes }) => {
      const whole = new Blob([bytes as BlobPart]);
      const image = await createImageBitmap(whole, { resizeWidth: side, resizeQuality: "medium" }).catch(() => null);
      return image === null ? [] : [{ step, image }];
    });
    this.#images = (await Promise.all(images)).flat();
    if (this.#images.length > 0) this.arrived();
  }
}
