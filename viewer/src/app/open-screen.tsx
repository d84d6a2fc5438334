import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { App } from "../state/app";
import { shown } from "../ui/escape";
import { words } from "../words";
import { chosenFiles } from "./open-files";
import { ProblemBox } from "./problem";

const { open } = words;

export function OpenScreen({ app }: { readonly app: App }) {
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const address = useSignal("");
  const choose = (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    if (input.files !== null && input.files.length > 0) {
      const { given, title } = chosenFiles(input.files);
      void app.list(given, title);
    }
    input.value = "";
  };
  const openUrl = (event: Event) => {
    event.preventDefault();
    openAddress(app, address.value);
  };
  const wanted = app.wanted.value;
  const problem = app.problem.value;
  return (
    <main class="open">
      <div class="open-box">
        <Mark />
        <h1>{open.heading}</h1>
        <p class="lead">{wanted.id !== "" && wanted.source === "" ? open.missing(shown(wanted.id)) : open.lead}</p>
        {wanted.row !== "" && wanted.source === "" && <p class="soft">{open.missingFile(shown(wanted.row))}</p>}
        {problem !== null && (
          <ProblemBox
            error={problem}
            {...(app.title.value === "" ? {} : { title: words.problem.named(shown(app.title.value)) })}
          />
        )}
        <div class="drop">
          <p class="drop-title">{open.drop}</p>
          <p class="soft">{open.kinds}</p>
          <p class="soft">{open.beside}</p>
          <div class="buttons">
            <button type="button" class="primary" onClick={() => files.current?.click()}>
              {open.files}
            </button>
            <button type="button" onClick={() => folder.current?.click()}>
              {open.folder}
            </button>
          </div>
          <input ref={files} type="file" multiple hidden onChange={choose} data-testid="files" />
          <input
            ref={(element) => {
              folder.current = element;
              element?.setAttribute("webkitdirectory", "");
            }}
            type="file"
            multiple
            hidden
            onChange={choose}
            data-testid="folder"
          />
        </div>
        <form class="address" onSubmit={openUrl}>
          <label for="address">{open.url}</label>
          <div class="row">
            <input
              id="address"
              type="text"
              inputMode="url"
              spellcheck={false}
              autocomplete="off"
              placeholder={open.urlExample}
              value={address.value}
              onInput={(event) => {
                address.value = event.currentTarget.value;
              }}
            />
            <button type="submit">{open.openUrl}</button>
          </div>
        </form>
        <p class="soft small">{open.private}</p>
      </div>
    </main>
  );
}

/** Opens an address, as the user has typed it or as a link has it. */
export function openAddress(app: App, text: string): void {
  try {
    const url = new URL(text.trim(), location.href.startsWith("http") ? location.href : undefined);
    if (!/^https?:$/.test(url.protocol)) throw new Error(open.protocol(url.protocol));
    void app.list({ kind: "url", url: url.href }, decodeURIComponent(url.pathname.split("/").pop() || url.host));
  } catch (error) {
    app.problem.value = error instanceof TypeError ? new Error(open.noAddress) : (error as Error);
  }
}

/** The sign of the page: a truth, a prediction and the cursor. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 48 48" width="48" height="48" aria-hidden="true">
      <rect x="1" y="1" width="46" height="46" rx="12" fill="var(--accent-soft)" />
      <path
        d="M7 31c6 0 6-14 12-14s6 16 12 16 5-10 10-12"
        fill="none"
        stroke="var(--series-0)"
        stroke-width="3"
        stroke-linecap="round"
      />
      <path
        d="M19 17c6 0 7 10 12 9s5-11 10-13"
        fill="none"
        stroke="var(--series-1)"
        stroke-width="2.4"
        stroke-dasharray="4 3.4"
        stroke-linecap="round"
      />
      <path d="M19 8v32" stroke="var(--text-faint)" stroke-width="1.6" />
    </svg>
  );
}
