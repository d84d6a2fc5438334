// The viewer in a notebook: a frame with the page, and messages between it and the kernel. The frame has no rights in
// the notebook: it can run its own scripts and talk to this module.

// The page is fetched once a notebook, whatever the number of cells.
const pages = (globalThis.__wshard_viewer_pages ??= new Map());

async function render({ model, el }) {
  const waiting = new Map();
  // The answers to one view come to all views of the widget.
  const view = crypto.getRandomValues(new Uint32Array(2)).join("-");
  let asked = 0;

  const ask = (question) =>
    new Promise((resolve) => {
      const id = `${view}-${++asked}`;
      waiting.set(id, resolve);
      model.send({ ...question, id });
    });
  const onAnswer = (answer, buffers) => {
    const resolve = waiting.get(answer.id);
    waiting.delete(answer.id);
    // A copy, which can be handed over: several answers may share memory.
    const part = buffers?.[0];
    resolve?.([answer, part && new Uint8Array(part.buffer ?? part, part.byteOffset ?? 0, part.byteLength).slice().buffer]);
  };
  model.on("msg:custom", onAnswer);

  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.title = "Episode viewer";
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  const onQuestion = async (event) => {
    if (event.source !== frame.contentWindow || event.data?.wshard === undefined) return;
    const { wshard, path, offset, length } = event.data;
    const [answer, bytes] = await ask({ path, offset, length });
    frame.contentWindow?.postMessage({ ...answer, wshard, bytes }, "*", bytes ? [bytes] : []);
  };
  addEventListener("message", onQuestion);

  const version = model.get("page");
  if (!pages.has(version)) {
    pages.set(version, ask({ path: "/" }).then(([, bytes]) => new TextDecoder().decode(bytes)));
  }
  frame.srcdoc = await pages.get(version);
  el.append(frame);
  return () => {
    removeEventListener("message", onQuestion);
    model.off("msg:custom", onAnswer);
  };
}

export default { render };
