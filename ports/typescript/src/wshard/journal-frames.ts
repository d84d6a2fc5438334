// The frames of a recording's journal (spec/journal.md, section 2). Only this module knows where the fields of a head are.

import { concat, viewOf } from "../core/bytes.js";
import { crc32c } from "../core/crc32c.js";
import { broken } from "../core/errors.js";
import { defaultLimits } from "../core/registry.js";

/** What a frame holds. */
export const FrameKind = { start: 1, run: 2, note: 3, end: 4 } as const;

/** How the bytes after a head are stored. */
export const FrameCodec = { none: 0, zstd: 1 } as const;

/** Bytes of a head. */
export const headSize = 40;

const magic = 0x314a5357; // WSJ1
const checkedSize = 36;
const zstdExpansion = 32768;

/** What a head says. */
export interface FrameHead {
  readonly kind: number;
  readonly codec: number;
  /** Of a run: the number of its channel. */
  readonly channel: number;
  /** Of a run: how many entries it holds. */
  readonly entries: number;
  readonly storedSize: number;
  readonly contentSize: number;
  readonly contentCrc32c: number;
  readonly sequence: number;
  readonly storedCrc32c: number;
}

/** Reads the head of frame number `sequence` (J-FRM-1 to J-FRM-10). */
export function parseHead(bytes: Uint8Array, sequence: number): FrameHead {
  if (bytes.length < headSize)
    throw broken("truncated", "J-FRM-1", "the head of a frame is cut off", { found: `${bytes.length} bytes` });
  const view = viewOf(bytes);
  if (view.getUint32(0x00, true) !== magic) throw broken("bad_magic", "J-FRM-2", "no frame starts here");
  if (view.getUint32(0x24, true) !== crc32c(bytes.subarray(0, checkedSize))) {
    throw broken("checksum_mismatch", "J-FRM-3", "the head of a frame is damaged");
  }
  const head: FrameHead = {
    kind: view.getUint8(0x04),
    codec: view.getUint8(0x05),
    channel: view.getUint16(0x06, true),
    entries: view.getUint32(0x08, true),
    storedSize: view.getUint32(0x0c, true),
    contentSize: view.getUint32(0x10, true),
    contentCrc32c: view.getUint32(0x14, true),
    sequence: Number(view.getBigUint64(0x18, true)),
    storedCrc32c: view.getUint32(0x20, true),
  };
  checkHead(head, sequence);
  return head;
}

function checkHead(head: FrameHead, sequence: number): void {
  const { kind, codec, storedSize, contentSize } = head;
  if (kind < FrameKind.start || kind > FrameKind.end)
    throw broken("bad_header", "J-FRM-4", "a frame has an unknown kind", { found: kind });
  if (codec !== FrameCodec.none && !(codec === FrameCodec.zstd && kind === FrameKind.run)) {
    throw broken("unknown_codec", "J-FRM-5", "a frame has a codec that it may not have", { found: codec });
  }
  if (head.sequence !== sequence) {
    throw broken("bad_header", "J-FRM-6", "a frame has another number than expected", {
      expected: sequence,
      found: head.sequence,
    });
  }
  if (codec === FrameCodec.none) {
    if (storedSize !== contentSize) throw broken("size_mismatch", "J-FRM-7", "a raw frame has two different sizes");
    if (head.storedCrc32c !== head.contentCrc32c)
      throw broken("checksum_mismatch", "J-FRM-8", "a raw frame has two different checksums");
    return;
  }
  if (Math.max(storedSize, contentSize) > defaultLimits.maxDecompressedBytes) {
    throw broken("limit_exceeded", "J-FRM-9", "a run is too large", { found: Math.max(storedSize, contentSize) });
  }
  if (contentSize > storedSize * zstdExpansion) {
    throw broken("size_mismatch", "J-FRM-10", "a run cannot decode to the stated size", {
      found: `${storedSize} bytes for ${contentSize}`,
    });
  }
}

/** What a recorder says about a frame; checksums and sizes follow from its bytes. */
export interface FrameInput {
  readonly kind: number;
  readonly sequence: number;
  /** The bytes before compression; the stored ones if there is none. */
  readonly content: Uint8Array;
  /** One zstd frame of the content, which may be filtered. */
  readonly compressed?: Uint8Array;
  readonly channel?: number;
  readonly entries?: number;
}

/** A frame with its head. */
export function packFrame(frame: FrameInput): Uint8Array {
  const { content, compressed } = frame;
  const stored = compressed ?? content;
  const head = new Uint8Array(headSize);
  const view = viewOf(head);
  const contentCrc = crc32c(content);
  view.setUint32(0x00, magic, true);
  view.setUint8(0x04, frame.kind);
  view.setUint8(0x05, compressed === undefined ? FrameCodec.none : FrameCodec.zstd);
  view.setUint16(0x06, frame.channel ?? 0, true);
  view.setUint32(0x08, frame.entries ?? 0, true);
  view.setUint32(0x0c, stored.length, true);
  view.setUint32(0x10, content.length, true);
  view.setUint32(0x14, contentCrc, true);
  view.setBigUint64(0x18, BigInt(frame.sequence), true);
  view.setUint32(0x20, compressed === undefined ? contentCrc : crc32c(compressed), true);
  view.setUint32(0x24, crc32c(head.subarray(0, checkedSize)), true);
  return concat([head, stored]);
}
