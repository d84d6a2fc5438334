import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { words as compareWords } from "../compare/words";
import { flags, quoted, toggleFlag } from "../export/flags";
import { words as exportWords } from "../export/words";
import type { EpisodeFacts } from "../model/facts";
import { useAnswer } from "../model/hooks";
import { type App, hasAddress } from "../state/app";
import { showTheme, theme } from "../ui/colours";
import { copyText } from "../ui/copy";
import { shown } from "../ui/escape";
import * as format from "../ui/format";
import { Tool } from "../ui/tool";
import { words } from "../words";
import { Mark } from "./open-screen";

export function Header({ app }: { readonly app: App }) {
  const { header } = words;
  const open = app.episode.value;
  const isEpisode = open !== null && app.screen.value === "episode";
  const canListAll = app.library.rows.value.length > 1;
  return (
    <header class="header">
      <button
        type="button"
        class="brand"
        disabled={!hasAddress} // a notebook could not come back
        onClick={() => app.showStart()}
        title={header.start}
      >
        <Mark />
        <span class="wide">{words.name}</span>
      </button>
      <nav class="crumbs" aria-label={words.table.heading}>
        {app.title.value !== "" && (
          <button
            type="button"
            class="crumb"
            disabled={!canListAll || app.screen.value === "episodes"}
            onClick={() => app.showTable()}
          >
            {shown(app.title.value)}
          </button>
        )}
        {isEpisode && <EpisodeFactsLine app={app} />}
      </nav>
      <div class="tools">
        {isEpisode && <Traffic app={app} />}
        {isEpisode && (
          <Tool
            kind="narrow"
            icon="list"
            label={header.channels}
            expanded={app.isTreeOpen.value}
            use={() => {
              app.isTreeOpen.value = !app.isTreeOpen.value;
            }}
          />
        )}
        {isEpisode && (
          <Tool
            icon="compare"
            label={compareWords.open}
            hint={compareWords.hint}
            pressed={app.compare.value !== null}
            use={() => {
              app.compare.value = app.compare.peek() === null ? {} : null;
            }}
          />
        )}
        {isEpisode && (
          <Tool
            icon="flag"
            label={words.table.columns.flag}
            hint={`${exportWords.flags.flag} (X)`}
            pressed={flags.value.has(app.fileName.value)}
            use={() => toggleFlag(app.fileName.peek())}
          />
        )}
        {isEpisode && hasAddress && <CopyLink app={app} />}
        <Tool
          icon="theme"
          label={header.theme}
          use={() => {
            const next = theme.value === "dark" ? "light" : "dark";
            showTheme(next);
            remember(next);
          }}
        />
        <Tool
          icon="help"
          label={header.help}
          hint={`${header.help} (?)`}
          use={() => {
            app.isHelpOpen.value = true;
          }}
        />
      </div>
    </header>
  );
}

function EpisodeFactsLine({ app }: { readonly app: App }) {
  const { header } = words;
  const model = app.episode.value?.model.value;
  if (model === undefined) return null;
  const { facts } = model;
  const clock = facts.rate === null ? header.noClock : header.hz(format.value(facts.rate));
  return (
    <>
      <h1 class="crumb-id" title={shown(facts.id)}>
        {shown(facts.id)}
      </h1>
      <span class="facts">
        {facts.envId !== "" && <span>{shown(facts.envId)}</span>}
        {facts.task !== "" && <span title={shown(facts.task)}>{shown(facts.task)}</span>}
        <span>{header.steps(format.count(facts.length))}</span>
        <span>{facts.hasTimestamps ? header.timestamps : clock}</span>
        {facts.chunks > 1 && <span>{header.chunks(facts.chunks)}</span>}
      </span>
      {facts.isUnfinished && (
        <span class={`badge ${facts.recover === "" ? "live" : "warn"}`} title={recoverText(facts)}>
          {header.unfinished}
          {facts.recover !== "" && <span class="wide">: {header.abandoned}</span>}
        </span>
      )}
      {facts.problems.length > 0 && (
        <button
          type="button"
          class="badge warn"
          title={facts.problems.map(shown).join("\n")}
          onClick={() => {
            app.tab.value = "metadata"; // which has them all
          }}
        >
          {header.problems(facts.problems.length)}
        </button>
      )}
    </>
  );
}

function recoverText({ recover }: EpisodeFacts): string {
  return recover === "" ? "" : words.table.recover(shown(quoted(recover)));
}

/** How much of the file was read. */
function Traffic({ app }: { readonly app: App }) {
  const model = app.episode.value?.model.value;
  const tick = useSignal(0);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) tick.value++;
    }, 2000);
    return () => clearInterval(timer);
  }, []);
  const { value } = useAnswer(() => model?.reads.traffic() ?? null, [model, tick.value]);
  if (model === undefined) return null;
  const size = model.facts.files.reduce((sum, file) => sum + file.size, 0);
  if (size === 0) return null;
  return (
    <span class="traffic wide" title={value === undefined ? "" : `${format.count(value.requests)} reads`}>
      {value === undefined || value.bytes === 0
        ? format.bytes(size)
        : words.header.read(format.bytes(value.bytes), format.bytes(size))}
    </span>
  );
}

function CopyLink({ app }: { readonly app: App }) {
  const isCopied = useSignal(false);
  const { header } = words;
  const copy = async () => {
    const url = new URL(location.href);
    url.hash = app.link();
    await copyText(url.href);
    isCopied.value = true;
    setTimeout(() => {
      isCopied.value = false;
    }, 2500);
  };
  return (
    <>
      <Tool icon="link" label={header.copyLink} use={copy} />
      <span class="toast" role="status">
        {isCopied.value ? (app.source.value === "" ? header.copiedFile : header.copied) : ""}
      </span>
    </>
  );
}

const themeKey = "shard-viewer-theme";

function remember(name: string): void {
  try {
    localStorage.setItem(themeKey, name);
  } catch {
    // Files on a disk may have no storage.
  }
}

/** Follows the system until the user chooses. */
export function startTheme(): void {
  let chosen: string | null = null;
  try {
    chosen = localStorage.getItem(themeKey);
  } catch {
    // As above.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => showTheme(dark.matches ? "dark" : "light");
  if (chosen === "dark" || chosen === "light") showTheme(chosen);
  else {
    follow();
    dark.addEventListener("change", follow);
  }
}
