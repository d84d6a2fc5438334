// The page compresses to 3 KB less if what is alike is together: all texts, all that the workers need, and then the page.
import.meta.glob("./**/words.ts", { eager: true });

import "@preact/signals";
import "./worker/work";
import { render } from "preact";
import { startTheme } from "./app/header";
import { startKeyboard } from "./app/keyboard";
import { openAddress } from "./app/open-screen";
import { Page } from "./app/page";
import { listNotebook, readFromNotebook } from "./notebook";
import { App } from "./state/app";
import { decodeLink } from "./state/link";
import { work } from "./worker/work";
import "./ui/theme.css";
import "./ui/page.css";

/** How the page finds its data: `wshard view` and `to_html` fill in the element `configuration`. */
interface Configuration {
  readonly server?: boolean;
  readonly embedded?: readonly { readonly name: string; readonly base64: string }[];
  readonly title?: string;
  /** A notebook: the kernel gives the data. */
  readonly widget?: boolean;
}

function readConfiguration(): Configuration {
  try {
    return JSON.parse(document.getElementById("configuration")?.textContent ?? "{}") as Configuration;
  } catch {
    return {};
  }
}

/** The token of `wshard view`. It leaves the address at once, and is kept in memory only. */
function takeToken(): string {
  const parts = new URLSearchParams(location.hash.slice(1));
  const token = parts.get("token") ?? "";
  if (token !== "") {
    parts.delete("token");
    const rest = parts.toString();
    history.replaceState(null, "", rest === "" ? location.pathname + location.search : `#${rest}`);
  }
  return token;
}

function start(): void {
  const place = document.getElementById("app");
  if (place === null) return;
  startTheme();
  const token = takeToken();
  const { server, embedded, title, widget } = readConfiguration();
  const app = new App(readFromNotebook);
  startKeyboard(app);
  const openServer = (token: string) => {
    const base = new URL(".", location.href).href.replace(/#.*$/, "");
    return app.list({ kind: "server", base, token }, title ?? location.host);
  };
  const link = decodeLink(location.hash);
  app.wanted.value = link;
  render(<Page app={app} />, place);
  if (server) {
    void openServer(token);
  } else if (embedded !== undefined) {
    void app.list({ kind: "embedded", files: embedded }, title ?? embedded[0]?.name ?? "");
  } else if (widget) {
    listNotebook().then(
      ({ given, title }) => app.list(given, title),
      (error: Error) => {
        app.problem.value = error;
      },
    );
  } else if (link.source !== "") {
    openAddress(app, link.source);
  }
  window.addEventListener("hashchange", ({ newURL }) => {
    // The address of a server that was started again.
    const token = takeToken();
    // Not that of now: the page may have written over it already.
    const link = decodeLink(new URL(newURL).hash);
    if (server && token !== "") {
      app.wanted.value = link;
      void openServer(token);
    } else if (link.source !== "" && link.source !== app.source.peek()) {
      app.wanted.value = link;
      openAddress(app, link.source);
    } else if (link.source === "" && app.source.peek() !== "") app.showStart();
    else void app.follow(link);
  });
}

// The workers run this script too.
if (typeof document === "object") start();
else work();
