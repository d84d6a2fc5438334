// Single entries of a channel for panels that show one moment: pictures, points. They are read in groups, which are
// kept until others need the room, so that scrubbing inside a group reads nothing.

import type { TypedArray } from "@shard-format/core";
import type { EpisodeModel } from "./episode";
import type { ChannelFacts } from "./facts";
import { decodePackets } from "./video";

/** Bytes of decoded entries that an episode keeps. */
const budget = 32 << 20;
/** A group has at most this many bytes, if it has more than one entry, and this many entries. */
const groupBytes = 4 << 20;
const mostInGroup = 64;
/** An entry with more values than this is not shown. */
const mostValues = 1 << 26;

interface Group {
  /** An entry that cannot be decoded is the reason: the others of its group can be seen. */
  readonly entries: readonly (TypedArray | Error)[];
  readonly bytes: number;
}

interface Pending {
  readonly loading: Promise<Group>;
  readonly abort: AbortController;
}

const caches = new WeakMap<EpisodeModel, Entries>();

/** The entries of an episode that were read last. All panels of an episode share them. */
export function entriesOf(episode: EpisodeModel): Entries {
  let entries = caches.get(episode);
  if (entries === undefined) {
    entries = new Entries(episode);
    caches.set(episode, entries);
  }
  return entries;
}

export class Entries {
  /** In the order of their last use, the latest at the end. */
  private readonly groups = new Map<string, Group>();
  private readonly pending = new Map<string, Map<number, Pending>>();
  private bytes = 0;
  /** The first entry of each channel that was asked for. It is read alone: the first picture must not wait for others. */
  private readonly first = new Map<
    string,
    { readonly index: number; readonly group: Promise<Group>; values?: TypedArray }
  >();

  constructor(private readonly episode: EpisodeModel) {}

  /** An entry that is there already. */
  get(channel: ChannelFacts, index: number): TypedArray | undefined {
    const size = groupSize(channel);
    const number = Math.floor(index / size);
    const name = `${number} ${channel.key}`;
    const group = this.groups.get(name);
    if (group === undefined) {
      const first = this.first.get(channel.key);
      return first?.index === index ? first.values : undefined;
    }
    this.groups.delete(name);
    this.groups.set(name, group);
    const entry = group.entries[index - number * size];
    return entry instanceof Error ? undefined : entry;
  }

  /** Read the group of an entry. Reads of other groups of this channel, except the following one, are given up. */
  async load(channel: ChannelFacts, index: number): Promise<TypedArray> {
    const known = this.get(channel, index);
    if (known !== undefined) return known;
    const first = this.first.get(channel.key);
    if (first === undefined) return this.loadFirst(channel, index);
    if (first.index === index && first.values === undefined) {
      return present((await first.group).entries[0], channel, index);
    }
    const size = groupSize(channel);
    const number = Math.floor(index / size);
    for (const [other, { abort }] of this.pending.get(channel.key) ?? []) {
      if (other !== number && other !== number + 1) abort.abort();
    }
    const broken = this.groups.get(`${number} ${channel.key}`)?.entries[index - number * size];
    if (broken instanceof Error) throw broken;
    const { entries } = await this.group(channel, number);
    return present(entries[index - number * size], channel, index);
  }

  private async loadFirst(channel: ChannelFacts, index: number): Promise<TypedArray> {
    const group = this.read(channel, index, index + 1, new AbortController().signal);
    this.first.set(channel.key, { index, group });
    try {
      const values = present((await group).entries[0], channel, index);
      this.first.set(channel.key, { index, group, values });
      return values;
    } catch (error) {
      this.first.delete(channel.key);
      throw error;
    }
  }

  /** Read the group after that of an entry, so that it is there when playing arrives. Errors wait until it is shown. */
  prepare(channel: ChannelFacts, index: number): void {
    const size = groupSize(channel);
    const number = Math.floor(index / size) + 1;
    // The user has not moved on from the first entry yet.
    if (!this.groups.has(`${number - 1} ${channel.key}`)) return;
    if (number * size >= channel.length || this.groups.has(`${number} ${channel.key}`)) return;
    this.group(channel, number).catch(() => undefined);
  }

  private group(channel: ChannelFacts, number: number): Promise<Group> {
    const pending = this.pending.get(channel.key) ?? new Map<number, Pending>();
    this.pending.set(channel.key, pending);
    const waiting = pending.get(number);
    if (waiting !== undefined && !waiting.abort.signal.aborted) return waiting.loading;
    const abort = new AbortController();
    const size = groupSize(channel);
    const end = Math.min(channel.length, (number + 1) * size);
    const loading = this.read(channel, number * size, end, abort.signal).then((group) => {
      this.keep(`${number} ${channel.key}`, group);
      return group;
    });
    const mine: Pending = { loading, abort };
    pending.set(number, mine);
    const done = () => {
      if (pending.get(number) === mine) pending.delete(number);
    };
    loading.then(done, done);
    return loading;
  }

  private async read(channel: ChannelFacts, start: number, end: number, signal: AbortSignal): Promise<Group> {
    if (channel.dimensions > mostValues) {
      throw new RangeError(
        `${channel.key}: one step has ${channel.dimensions} values, at most ${mostValues} are shown`,
      );
    }
    const window = await this.episode.reads.window(channel.key, start, end, { signal });
    let entries: readonly (TypedArray | Error)[] = [];
    if (window.kind === "dense") {
      const { values } = window;
      const width = channel.dimensions;
      if (values.length !== (end - start) * width) {
        throw new RangeError(`${channel.key}: ${values.length} values for ${end - start} steps of ${width} each`);
      }
      entries = Array.from({ length: end - start }, (_, i) => values.subarray(i * width, (i + 1) * width));
    } else if (window.kind === "ragged") {
      entries = window.items;
    } else if (window.kind === "video") {
      entries = await decodePackets(channel, window.packets, window.extradata, start, end, signal);
    }
    return { entries, bytes: entries.reduce((sum, entry) => sum + (entry instanceof Error ? 0 : entry.byteLength), 0) };
  }

  private keep(name: string, group: Group): void {
    const before = this.groups.get(name);
    if (before !== undefined) this.bytes -= before.bytes;
    this.groups.delete(name);
    this.groups.set(name, group);
    this.bytes += group.bytes;
    for (const [oldest, { bytes }] of this.groups) {
      if (this.bytes <= budget || oldest === name) break;
      this.groups.delete(oldest);
      this.bytes -= bytes;
    }
  }
}

function present(entry: TypedArray | Error | undefined, channel: ChannelFacts, index: number): TypedArray {
  if (entry === undefined) throw new RangeError(`${channel.key} has no entry ${index}`);
  if (entry instanceof Error) throw entry;
  return entry;
}

/** Entries in a group: a power of two, so that groups begin where compressed frames of 16 steps do. */
function groupSize(channel: ChannelFacts): number {
  const isVideo = channel.layout === "video";
  const bytes = isVideo ? 4 * channel.dimensions : entryBytes(channel);
  let size = mostInGroup;
  while (size > 1 && size * bytes > groupBytes) size /= 2;
  return size;
}

function entryBytes({ bytes, length }: ChannelFacts): number {
  return length > 0 ? Math.max(1, bytes / length) : 1;
}
