// Decoders of videos that go on where they stopped. A group of frames that is far from its keyframe would otherwise cost
// all frames since then, again for each group.

import type { Packet } from "./reads";

/** Decoders that are kept open: as many as there are cameras on a usual stage. */
const mostOpen = 4;
/** A decoder that has nothing to do and gives no frame for this long keeps frames back until its stream ends. */
const patience = 40;

const open = new Map<object, Stream>();

/** Frames of packets, by the number of the packet. What `take` makes of a frame is awaited. */
export interface Wanted {
  readonly numbers: ReadonlySet<number>;
  readonly take: (frame: VideoFrame) => Promise<void>;
  readonly signal: AbortSignal;
}

/**
 * Decode packets, which start with a keyframe, and give the wanted frames. `owner` is whose stream this is: the next
 * packets of it may be decoded by the same decoder.
 */
export async function decode(
  owner: object,
  config: VideoDecoderConfig,
  packets: readonly Packet[],
  wanted: Wanted,
): Promise<void> {
  let stream = open.get(owner);
  open.delete(owner);
  if (!stream?.reaches(packets, wanted.numbers)) {
    stream?.end();
    stream = new Stream(config);
  }
  try {
    if (!(await stream.decode(packets, wanted))) {
      stream.end();
      return;
    }
  } catch (error) {
    stream.end();
    throw error;
  }
  // Another read of the same stream may have ended meanwhile.
  open.get(owner)?.end();
  open.set(owner, stream);
  for (const [oldest, other] of open) {
    if (open.size <= mostOpen) break;
    open.delete(oldest);
    other.end();
  }
}

class Stream {
  private readonly decoder: VideoDecoder;
  /** The number of the packet that was decoded last. */
  private fed = -1;
  /** The largest step so far, and the step of the keyframe at which decoding began. */
  private latest = -Infinity;
  private began = -Infinity;
  private isFresh = true;
  private failure: unknown = null;
  private output: (frame: VideoFrame) => void = (frame) => frame.close();
  private wake: () => void = () => undefined;

  constructor(private readonly config: VideoDecoderConfig) {
    this.decoder = new VideoDecoder({
      output: (frame) => {
        this.output(frame);
        this.wake();
      },
      error: (error) => {
        this.failure ??= error;
        this.wake();
      },
    });
    this.decoder.addEventListener("dequeue", () => this.wake());
    this.decoder.configure(config);
  }

  /** Whether the packets go on where this stream stopped, and none of the wanted frames is behind it. */
  reaches(packets: readonly Packet[], numbers: ReadonlySet<number>): boolean {
    if (this.failure !== null || this.decoder.state !== "configured") return false;
    const first = packets[0]?.number ?? 0;
    return first <= this.fed + 1 && [...numbers].every((number) => number > this.fed);
  }

  /** False: the stream was ended to get all frames, and cannot go on. */
  async decode(packets: readonly Packet[], { numbers, take, signal }: Wanted): Promise<boolean> {
    const missing = new Set(numbers);
    const taken: Promise<void>[] = [];
    this.output = (frame) => {
      const isWanted = missing.delete(frame.timestamp);
      taken.push((isWanted ? take(frame) : Promise.resolve()).finally(() => frame.close()));
      // Each promise is awaited below, which reports its failure.
      taken.at(-1)?.catch(() => undefined);
    };
    const abort = () => this.end();
    signal.addEventListener("abort", abort, { once: true });
    try {
      for (const packet of packets) {
        if (packet.number <= this.fed) continue;
        await this.feed(packet);
        signal.throwIfAborted();
        if (this.failure !== null) throw this.failure;
      }
      while (missing.size > 0 && this.failure === null && (await this.hasNews())) signal.throwIfAborted();
      const isOpen = missing.size === 0;
      if (!isOpen && this.failure === null) await this.decoder.flush();
      await Promise.all(taken);
      signal.throwIfAborted();
      if (this.failure !== null) throw this.failure;
      return isOpen;
    } finally {
      signal.removeEventListener("abort", abort);
      this.output = (frame) => frame.close();
      await Promise.allSettled(taken);
    }
  }

  private async feed(packet: Packet): Promise<void> {
    if (packet.isKeyframe) {
      // Two streams were joined here: nothing of the first one may be used for the second.
      if (packet.step <= this.latest) {
        await this.decoder.flush();
        this.decoder.configure(this.config);
        this.isFresh = true;
        this.latest = -Infinity;
      }
      if (this.isFresh) this.began = packet.step;
      this.isFresh = false;
    }
    this.fed = packet.number;
    // Frames before the first keyframe in time need pictures that are not there.
    if (packet.step < this.began) return;
    this.latest = Math.max(this.latest, packet.step);
    this.decoder.decode(
      new EncodedVideoChunk({
        type: packet.isKeyframe ? "key" : "delta",
        timestamp: packet.number,
        data: packet.data as Uint8Array<ArrayBuffer>,
      }),
    );
    // A decoder that is given a long stream at once keeps all of its frames.
    while (this.decoder.decodeQueueSize > 16 && this.failure === null && (await this.hasNews(1000)));
  }

  /** Waits until a frame came or a packet was taken. False: for a while, there was nothing to do and nothing came. */
  private hasNews(most = patience): Promise<boolean> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(this.decoder.decodeQueueSize > 0 && this.failure === null), most);
      this.wake = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  }

  end(): void {
    if (this.decoder.state !== "closed") this.decoder.close();
  }
}
