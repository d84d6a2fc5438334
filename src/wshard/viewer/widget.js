// The viewer in a notebook: a frame with the page, and messages between it and the kernel. The frame has no rights in
// the notebook: it can run its own scripts and talk to this module.

// The page is fetched once a notebook, whatever the number of cells.
const pages = (globalThis.__wshard_viewer_pages ??= new Map());

const gone = "The kernel that had this episode does not answer. Run the cell again.";
const styles = '<!doctype html><meta name="color-scheme" content="light dark"><style>body { font: 13px sans-serif }</style>';

// Hosts say in different ways which theme they have; all of them set the colour of text.
function isDark(element) {
  const [red = 0, green = 0, blue = 0] = (getComputedStyle(element).color.match(/[\d.]+/g) ?? []).map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
}

async function render({ model, el }) {
  const waiting = new Map();
  // The answers to one view come to all views of the widget.
  const view = crypto.getRandomValues(new Uint32Array(2)).join("-");
  let asked = 0;

  const ask = (question) =>
    new Promise((resolve) => {
      const id = `${view}-${++asked}`;
      waiting.set(id, resolve);
      try {
        model.send({ ...question, id });
      } catch {
        waiting.delete(id);
        resolve([{ error: gone }]);
      }
    });
  const onAnswer = (answer, buffers) => {
    const resolve = waiting.get(answer.id);
    if (resolve === undefined) return;
    waiting.delete(answer.id);
    // A copy, which can be handed over: several answers may share memory.
    const part = buffers?.[0];
    resolve([answer, part && new Uint8Array(part.buffer ?? part, part.byteOffset ?? 0, part.byteLength).slice().buffer]);
  };
  // A kernel that was restarted or is gone answers nothing that it was asked before.
  const onEnd = () => {
    for (const resolve of waiting.values()) resolve([{ error: gone }]);
    waiting.clear();
  };
  model.on("msg:custom", onAnswer);
  model.on("comm_live_update", onEnd);

  let frame;
  const follow = () => {
    frame.style.colorScheme = isDark(el) ? "dark" : "light"; // which is what the page in it sees
  };
  // A new frame for each: Chromium may leave one empty that is sent elsewhere while its cell is out of sight.
  const showFrame = (sandbox, html) => {
    const next = document.createElement("iframe");
    next.title = "Episode viewer";
    next.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
    next.setAttribute("sandbox", sandbox);
    next.srcdoc = html;
    frame?.remove();
    frame = next;
    follow();
    el.append(frame);
  };
  const themes = new MutationObserver(follow);
  for (const element of [document.documentElement, document.body]) themes.observe(element, { attributes: true });
  const onQuestion = async (event) => {
    if (event.source !== frame.contentWindow || event.data?.wshard === undefined) return;
    const { wshard, path, offset, length } = event.data;
    const [answer, bytes] = await ask({ path, offset, length });
    frame.contentWindow?.postMessage({ ...answer, wshard, bytes }, "*", bytes ? [bytes] : []);
  };
  addEventListener("message", onQuestion);

  // Until the kernel has time to answer, and where none is: the static summary, without scripts.
  showFrame("", styles + (model.get("summary") || "The viewer waits for the kernel."));
  void show();

  async function show() {
    const version = model.get("page");
    let [answer, bytes, own] = [];
    // What another cell asked for is lost when that cell is run again.
    while (bytes === undefined && own === undefined) {
      if (!pages.has(version)) pages.set(version, (own = ask({ path: "/" })));
      [answer, bytes] = await pages.get(version);
      if (bytes === undefined) pages.delete(version);
    }
    if (bytes === undefined) {
      const note = document.createElement("p");
      note.textContent = answer.error;
      el.prepend(note);
      return;
    }
    showFrame("allow-scripts allow-downloads", new TextDecoder().decode(bytes));
  }

  return () => {
    removeEventListener("message", onQuestion);
    themes.disconnect();
    model.off("msg:custom", onAnswer);
    model.off("comm_live_update", onEnd);
    onEnd();
  };
}

export default { render };
