// What the page shows: which files are listed, which episode is open, and what of it is on the stage.

import { batch, computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import type { JsonObject } from "@shard-format/core";
import { addFlags, flags } from "../export/flags";
import type { EpisodeModel } from "../model/episode";
import { type ContainerModel, type GiveRange, Library, ReadError } from "../model/library";
import { words } from "../words";
import type { Given } from "../worker/protocol";
import { decodeLink, emptyLink, encodeLink, type Link, type PanelChoice } from "./link";
import { View } from "./view";

/** An episode that is open, and how it is looked at. */
export interface OpenEpisode {
  readonly model: ReadonlySignal<EpisodeModel>;
  readonly view: View;
  readonly row: number;
  close(): void;
}

/** The frame of a notebook has no address. */
export const hasAddress = location.protocol !== "about:";

export type Screen = "open" | "episodes" | "episode" | "container";

export class App {
  library: Library;
  readonly screen = signal<Screen>("open");
  readonly episode = signal<OpenEpisode | null>(null);
  /** A file that does not hold an episode. */
  readonly container = signal<ContainerModel | null>(null);
  /** Something takes a while: what. */
  readonly busy = signal<string | null>(null);
  /** What went wrong last. */
  readonly problem = signal<Error | null>(null);
  /** What the user opened; for the header. */
  readonly title = signal("");
  /** Keys of the subjects on the stage; null: the usual ones. */
  readonly shown = signal<readonly string[] | null>(null);
  readonly choices = signal<ReadonlyMap<string, PanelChoice>>(new Map());
  readonly tab = signal("");
  /** What is compared, in the place of the stage, and how; null: nothing. */
  readonly compare = signal<JsonObject | null>(null);
  readonly isHelpOpen = signal(false);
  readonly isTreeOpen = signal(false);
  /** What a link wants that was opened without its file. */
  readonly wanted = signal<Link>(emptyLink);
  /** The address that is open; empty for files of this computer. */
  readonly source = signal("");
  readonly rowName = computed(() => {
    const { row } = this.episode.value ?? { row: -1 };
    return this.library.rows.value.find(({ number }) => number === row)?.name ?? "";
  });
  /** What the open episode is called where it is flagged. */
  readonly fileName = computed(() => {
    const facts = this.episode.value?.model.value.facts;
    return this.rowName.value || facts?.files[0]?.name || facts?.id || "";
  });
  /** What was given last, to read it again after the worker has ended. */
  #given: { readonly given: Given; readonly title: string } | null = null;
  /** Counts what is opened: an answer that arrives after the user asked for something else is dropped. */
  #turn = 0;

  constructor(readonly giveRange: GiveRange) {
    this.library = new Library(giveRange);
  }

  /** Opens what was given, and the episode if there is only one. */
  async list(given: Given, title: string): Promise<void> {
    const link = this.wanted.peek();
    addFlags(link.flagged);
    this.#reset();
    this.#given = { given, title };
    this.title.value = title;
    this.source.value = given.kind === "url" ? given.url : "";
    await this.#run(words.open.opening(title), async (isStale) => {
      const { first, title } = await this.library.list(given);
      if (title !== null && !isStale()) this.title.value = title;
      const named = link.row === "" ? null : await this.#rowNamed(link.row);
      const row = named ?? first;
      if (isStale()) return;
      if (row === null) this.screen.value = "episodes";
      else await this.#open(row, link, isStale);
    });
  }

  /** Opens what was open once more, after the worker has ended: with another one, at the same place. */
  async again(): Promise<void> {
    if (this.#given === null) return;
    this.wanted.value = this.screen.peek() === "episode" ? decodeLink(this.link()) : emptyLink;
    await this.list(this.#given.given, this.#given.title);
  }

  /** The row of a link, as soon as the table has it. */
  async #rowNamed(name: string): Promise<number | null> {
    const find = () => this.library.rows.peek().find((row) => row.name === name)?.number ?? null;
    if (find() === null && this.library.isListing.peek()) {
      await new Promise<void>((resolve) => {
        const stop = effect(() => {
          this.library.rows.value;
          if (find() === null && this.library.isListing.value) return;
          queueMicrotask(() => stop());
          resolve();
        });
      });
    }
    return find();
  }

  /** Opens a row of the table. */
  async open(row: number): Promise<void> {
    await this.#run(words.open.openingEpisode, (isStale) => this.#open(row, emptyLink, isStale));
  }

  async #open(row: number, wanted: Link, isStale: () => boolean): Promise<void> {
    const opened = await this.library.open(row).catch((error: unknown) => this.#openContainer(row, error, isStale));
    if (opened === null) return;
    const { episode, close, grown } = opened;
    if (isStale()) {
      close();
      return;
    }
    // A link about another episode says nothing about this one.
    const link = wanted.id === "" || wanted.id === episode.facts.id ? wanted : emptyLink;
    const model = computed(() => grown.value ?? episode);
    const view = new View(computed(() => shownLength(model.value)));
    // Back leads to the table.
    const isStep = this.screen.peek() === "episodes" && hasAddress;
    batch(() => {
      this.episode.peek()?.close();
      this.episode.value = { model, view, row, close };
      this.#show(view, link);
      if (link.tab !== "") this.tab.value = link.tab;
      this.wanted.value = emptyLink;
      this.screen.value = "episode";
    });
    if (isStep) history.pushState(null, "", `#${this.link()}`);
  }

  #show(view: View, link: Link): void {
    view.isPlaying.value = false;
    view.seek(link.cursor ?? 0);
    view.show(link.range ?? { start: 0, end: view.length.peek() });
    view.selection.value = link.selection;
    this.shown.value = link.shown;
    this.choices.value = link.panels;
    this.compare.value = link.compare;
  }

  /** The address was edited, or the user went back: shows what it says. */
  async follow(link: Link): Promise<void> {
    const open = this.episode.peek();
    addFlags(link.flagged);
    if (this.screen.peek() === "open") {
      this.wanted.value = link;
      return;
    }
    if (link.row === "" && link.id === "" && this.library.rows.peek().length > 1) {
      this.showTable();
      return;
    }
    await this.#run(words.open.openingEpisode, async (isStale) => {
      const row = link.row === "" ? (open?.row ?? null) : await this.#rowNamed(link.row);
      if (row === null && link.row !== "") throw new Error(words.open.missingFile(link.row));
      if (row === null || isStale()) return;
      if (open === null || row !== open.row) {
        await this.#open(row, link, isStale);
        return;
      }
      batch(() => {
        this.#show(open.view, link);
        this.tab.value = link.tab;
        this.screen.value = "episode";
      });
    });
  }

  /** Lists the entries of a Shard file that does not hold an episode. Throws other errors again. */
  async #openContainer(row: number, error: unknown, isStale: () => boolean): Promise<null> {
    if (!(error instanceof ReadError) || !/W-ROL-[12]\b/.test(error.message)) throw error;
    const container = await this.library.container(row);
    if (isStale()) {
      container.close();
      return null;
    }
    batch(() => {
      this.episode.peek()?.close();
      this.container.peek()?.close();
      this.episode.value = null;
      this.container.value = container;
      this.wanted.value = emptyLink;
      this.screen.value = "container";
    });
    return null;
  }

  async #run(what: string, work: (isStale: () => boolean) => Promise<void>): Promise<void> {
    const turn = ++this.#turn;
    const isStale = () => turn !== this.#turn;
    this.busy.value = what;
    this.problem.value = null;
    try {
      await work(isStale);
    } catch (error) {
      if (!isStale()) this.problem.value = error instanceof Error ? error : new Error(String(error));
    }
    if (!isStale()) this.busy.value = null;
  }

  /** Back to the start; a worker that ended is replaced. */
  #reset(): void {
    this.#turn++;
    this.#given = null;
    this.episode.peek()?.close();
    batch(() => {
      this.episode.value = null;
      this.container.value = null;
      this.problem.value = null;
      this.busy.value = null;
      this.library.end();
      this.library = new Library(this.giveRange);
      this.screen.value = "open";
    });
  }

  showStart(): void {
    this.#reset();
    this.title.value = "";
    this.source.value = "";
  }

  showTable(): void {
    if (this.library.rows.peek().length > 1) this.screen.value = "episodes";
  }

  /** The next or the previous episode of the table. */
  async step(by: number): Promise<void> {
    const rows = this.library.rows.peek().filter(({ problem, kind }) => problem === null && kind !== "container");
    const at = rows.findIndex(({ number }) => number === this.episode.peek()?.row);
    const next = rows[at + by];
    if (next !== undefined) await this.open(next.number);
  }

  choose(key: string, choice: Partial<PanelChoice>): void {
    const all = new Map(this.choices.peek());
    const { as = "", settings = {} } = { ...all.get(key), ...choice };
    if (as === "" && Object.keys(settings).length === 0) all.delete(key);
    else all.set(key, { as, settings: settings as JsonObject });
    this.choices.value = all;
  }

  /** What is visible now, as a fragment. */
  link(): string {
    const open = this.episode.value;
    const base = { ...emptyLink, source: this.source.value };
    if (open === null) return encodeLink(base);
    const { view, model } = open;
    const { start, end } = view.range.value;
    const isWhole = start <= 0 && end >= view.length.value;
    return encodeLink({
      ...base,
      row: this.library.rows.value.length > 1 ? this.rowName.value : "",
      id: model.value.facts.id,
      cursor: view.cursor.value === 0 ? null : view.cursor.value,
      range: isWhole ? null : view.range.value,
      selection: view.selection.value,
      shown: this.shown.value,
      panels: this.choices.value,
      tab: this.tab.value,
      compare: this.compare.value,
      flagged: [...flags.value].sort(),
    });
  }

  /** Keeps the address of the page up to date, without a step back for each change. */
  keepAddress(): () => void {
    let timer: ReturnType<typeof setTimeout> | undefined;
    return effect(() => {
      clearTimeout(timer);
      if (this.episode.value === null || !hasAddress) return;
      const fragment = this.link();
      // Browsers refuse too many changes of the address in a short time.
      timer = setTimeout(() => history.replaceState(null, "", `#${fragment}`), 300);
    });
  }
}

/** T, or T + 1 if a channel that follows the steps has an observation after the last action. */
function shownLength({ facts }: EpisodeModel): number {
  const hasOneMore = facts.channels.some(
    ({ layout, hasOwnClock, length }) => layout === "dense" && !hasOwnClock && length === facts.length + 1,
  );
  return Math.max(1, facts.length + (hasOneMore ? 1 : 0));
}
