import { effect } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { Compare } from "../compare/compare";
import { Container } from "../inspector/container";
import { findingsOf } from "../panels/findings/found";
import { startPlaying } from "../stage/play";
import { Stage } from "../stage/stage";
import { TimeLine } from "../stage/time-line";
import type { App, OpenEpisode } from "../state/app";
import { shown } from "../ui/escape";
import { Guard } from "../ui/guard";
import { listen } from "../ui/listen";
import { words } from "../words";
import { Episodes } from "./episodes";
import { Header } from "./header";
import { Help } from "./help";
import { Inspector } from "./inspector";
import { droppedFiles } from "./open-files";
import { OpenScreen } from "./open-screen";
import { ProblemBox } from "./problem";
import { Tree } from "./tree";

export function Page({ app }: { readonly app: App }) {
  useEffect(() => startDropping(app), [app]);
  const screen = app.screen.value;
  const open = app.episode.value;
  const busy = app.busy.value;
  const failure = app.library.failure.value;
  return (
    <div class={`app ${screen}`}>
      {screen !== "open" && <Header app={app} />}
      {screen === "open" && <OpenScreen app={app} />}
      {screen === "episodes" && <Episodes app={app} />}
      {screen === "episode" && open !== null && (
        <EpisodeScreen key={open.model.peek().facts.row} app={app} open={open} />
      )}
      {screen === "container" && app.container.value !== null && (
        <main class="container">
          <h2>{shown(app.container.value.name)}</h2>
          <Container container={app.container.value} />
        </main>
      )}
      {(screen === "episode" || screen === "container") && app.problem.value !== null && (
        <div class="banner">
          <ProblemBox error={app.problem.value} />
        </div>
      )}
      {screen !== "open" && failure !== null && failure !== "closed" && (
        <div class="banner">
          <ProblemBox error={new Error(failure)} title={words.problem.stopped} />
          <button type="button" onClick={() => app.again()}>
            {words.problem.again}
          </button>
        </div>
      )}
      {busy !== null && (
        <div class="busy" role="status">
          <span class="spinner" /> {busy} …
        </div>
      )}
      <Help app={app} />
    </div>
  );
}

function EpisodeScreen({ app, open }: { readonly app: App; readonly open: OpenEpisode }) {
  const episode = open.model.value;
  const { view } = open;
  const found = findingsOf(episode);
  const { findings } = found.state.value;
  useEffect(() => found.startSmall(), [found]);
  const marks = useMemo(() => findings.flatMap(({ step }) => step ?? []), [findings]);
  useEffect(() => {
    const endPlaying = startPlaying(view, () => open.model.peek());
    const endAddress = app.keepAddress();
    // A recording that grows stays in view as a whole, if it was.
    let before = view.length.peek();
    const endGrowing = effect(() => {
      const length = view.length.value;
      const { start, end } = view.range.peek();
      if (length > before && end >= before)
        view.range.value = { start: start <= 0 ? 0 : start + length - before, end: length };
      before = length;
    });
    return () => {
      endPlaying();
      endAddress();
      endGrowing();
    };
  }, [app, open]);
  return (
    <>
      <Tree app={app} episode={episode} />
      <Guard>
        {app.compare.value !== null ? (
          <Compare app={app} episode={episode} view={view} settings={app.compare.value} />
        ) : (
          <Stage app={app} episode={episode} view={view} />
        )}
      </Guard>
      <Inspector app={app} episode={episode} view={view} />
      <TimeLine episode={episode} view={view} marks={marks} />
    </>
  );
}

/** Files can be dropped anywhere, at any time. */
function startDropping(app: App): () => void {
  let depth = 0;
  const show = (isOver: boolean) => document.documentElement.classList.toggle("is-dropping", isOver);
  const enter = (event: DragEvent) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (event.type === "dragenter") depth++;
    show(true);
  };
  const leave = () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) show(false);
  };
  const drop = async (event: DragEvent) => {
    event.preventDefault();
    depth = 0;
    show(false);
    if (!event.dataTransfer?.types.includes("Files")) return;
    try {
      const { given, title } = await droppedFiles(event.dataTransfer);
      await app.list(given, title);
    } catch (error) {
      app.problem.value = error as Error; // a folder that is empty, or that the browser may not read
    }
  };
  return listen(window, { dragenter: enter, dragover: enter, dragleave: leave, drop });
}
