// Unpacks deflate and gzip with what every browser has.

const pieceSize = 1 << 14;

/** The unpacked bytes; undefined if there are more than `most`. Throws TypeError if the packed ones are damaged. */
export async function inflate(
  packed: readonly Uint8Array[],
  format: CompressionFormat,
  most: number,
): Promise<Uint8Array | undefined> {
  const pieces = piecesOf(packed);
  const stream = new ReadableStream<BufferSource>({
    pull(controller) {
      const { done, value } = pieces.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
  });
  const reader = stream.pipeThrough(new DecompressionStream(format)).getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.length;
    if (size > most) {
      await reader.cancel();
      return undefined;
    }
    parts.push(value);
  }
}

/** Small pieces: a browser unpacks each at once, to at most a thousand times its size. */
function* piecesOf(packed: readonly Uint8Array[]): Generator<Uint8Array<ArrayBuffer>, undefined> {
  for (const part of packed) for (let at = 0; at < part.length; at += pieceSize) yield part.slice(at, at + pieceSize);
}
