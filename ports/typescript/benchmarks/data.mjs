// One episode: a camera, joints and actions. The same values for every format.

export const steps = 512;
export const height = 96;
export const width = 96;
export const frameBytes = height * width * 3;
/** Steps in a chunk, a frame, a row group: the same for every format. */
export const chunkSteps = 16;
export const rateHz = 30;

/** Small pseudo-random numbers, the same in every run. */
export function* noise(seed) {
  let state = seed;
  for (;;) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state >>> 24;
  }
}

export function makeEpisode() {
  const random = noise(1);
  const camera = new Uint8Array(steps * frameBytes);
  for (let step = 0, at = 0; step < steps; step++) {
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        // Areas that move, with the noise of a sensor: zstd halves it.
        const shade = 32 * Math.floor(3 + 2 * Math.sin((x + step) / 9) + Math.cos((y - step) / 7));
        for (let colour = 0; colour < 3; colour++) camera[at++] = shade + 16 * colour + (random.next().value & 3);
      }
    }
  }
  const joints = Float32Array.from({ length: 7 * steps }, (_, at) =>
    Math.fround(Math.sin(at / 50) + random.next().value / 4096),
  );
  const actions = Float32Array.from({ length: 7 * steps }, (_, at) => Math.fround(Math.cos(at / 40)));
  return { camera, joints, actions };
}

export function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}
