// Grey PNG images of 16 bits, as depth cameras give them. Browsers decode them to 8 bits.

import { inflate } from "./inflate";

interface Sides {
  readonly height: number;
  readonly width: number;
}

const header = 8 + 8 + 13 + 4;

/** The pixels of a PNG file with one channel of 16 bits, not interlaced. */
export async function decodePng16(data: Uint8Array, { height, width }: Sides): Promise<Uint16Array> {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (data.length < header || view.getUint32(0) !== 0x89504e47) throw new Error("the picture is not a PNG image");
  const found = { width: view.getUint32(16), height: view.getUint32(20) };
  if (found.width !== width || found.height !== height) {
    throw new Error(`the PNG image has ${found.width} × ${found.height} pixels, the channel says ${width} × ${height}`);
  }
  const form = [data[24], data[25], data[28]].join();
  if (form !== "16,0,0") {
    throw new Error(
      `the PNG image is not grey with 16 bits (bits, colour type, interlacing: ${form}, expected 16,0,0)`,
    );
  }
  const rows = await pixelRows(parts(data, view), height * (2 * width + 1));
  return unfilter(rows, height, width);
}

/** The compressed pixels: the contents of all IDAT chunks. */
function parts(data: Uint8Array, view: DataView): Uint8Array[] {
  const found: Uint8Array[] = [];
  for (let at = 8; at + 12 <= data.length; ) {
    const length = view.getUint32(at);
    const end = at + 8 + length;
    if (end + 4 > data.length) throw new Error("the PNG image is cut");
    if (view.getUint32(at + 4) === 0x49444154) found.push(data.subarray(at + 8, end));
    at = end + 4;
  }
  return found;
}

async function pixelRows(compressed: readonly Uint8Array[], size: number): Promise<Uint8Array> {
  const rows = await inflate(compressed, "deflate", size).catch(() => {
    throw new Error("the pixels of the PNG image are damaged");
  });
  if (rows === undefined) throw new Error("the PNG image has more pixels than it says");
  if (rows.length !== size) throw new Error("the PNG image has fewer pixels than it says");
  return rows;
}

function unfilter(rows: Uint8Array, height: number, width: number): Uint16Array {
  const stride = 2 * width;
  const pixels = new Uint16Array(width * height);
  let above = new Uint8Array(stride);
  for (let y = 0; y < height; y++) {
    const filter = rows[y * (stride + 1)] as number;
    const row = rows.subarray(y * (stride + 1) + 1, (y + 1) * (stride + 1)) as Uint8Array<ArrayBuffer>;
    for (let i = 0; i < stride; i++) {
      const a = i < 2 ? 0 : (row[i - 2] as number);
      const b = above[i] as number;
      const c = i < 2 ? 0 : (above[i - 2] as number);
      row[i] = (row[i] as number) + guess(filter, a, b, c);
    }
    for (let x = 0; x < width; x++) pixels[y * width + x] = ((row[2 * x] as number) << 8) | (row[2 * x + 1] as number);
    above = row;
  }
  return pixels;
}

function guess(filter: number, a: number, b: number, c: number): number {
  switch (filter) {
    case 0:
      return 0;
    case 1:
      return a;
    case 2:
      return b;
    case 3:
      return (a + b) >> 1;
    case 4: {
      const [da, db, dc] = [Math.abs(b - c), Math.abs(a - c), Math.abs(a + b - 2 * c)];
      return da <= db && da <= dc ? a : db <= dc ? b : c;
    }
    default:
      throw new Error(`the PNG image has an unknown filter: ${filter}`);
  }
}
