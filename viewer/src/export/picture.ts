// A picture of what the page shows, as PNG. The element is copied with its styles into an SVG, which the browser draws:
// text stays sharp, and canvases are drawn again with as many pixels as the picture has.

import { drawWith, pixelRatio } from "../ui/pixels";

const mostPixels = 16_384;

/** Draws an element at 1× or 2× as a PNG. */
export async function pictureOf(element: HTMLElement, scale: number): Promise<Blob> {
  const usual = pixelRatio.peek();
  drawWith(scale);
  try {
    await nextFrames();
    const { width, height } = element.getBoundingClientRect();
    const [wide, high] = [Math.ceil(width), Math.ceil(height)];
    const most = mostPixels / scale;
    const svg = drawing(element, wide, Math.min(high, most));
    const image = await loaded(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`);
    const canvas = document.createElement("canvas");
    canvas.width = wide * scale;
    canvas.height = Math.min(high, most) * scale;
    const context = canvas.getContext("2d");
    if (context === null) throw new Error("the browser gives no canvas");
    context.scale(scale, scale);
    context.drawImage(image, 0, 0, wide, Math.min(high, most));
    return await new Promise((resolve, reject) => {
      canvas.toBlob(
        (blob) => (blob === null ? reject(new Error("the picture is too large")) : resolve(blob)),
        "image/png",
      );
    });
  } finally {
    drawWith(usual);
  }
}

/** Until signals, effects and the browser have drawn. */
async function nextFrames(): Promise<void> {
  for (let frame = 0; frame < 3; frame++) await new Promise((done) => requestAnimationFrame(done));
}

function loaded(address: string): Promise<HTMLImageElement> {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("the browser cannot draw this part of the page"));
    image.src = address;
  });
}

const space = "http://www.w3.org/1999/xhtml";

function drawing(element: HTMLElement, width: number, height: number): string {
  const copy = copied(element) as HTMLElement;
  const background = backgroundOf(element);
  const frame = document.createElementNS(space, "div");
  (frame as HTMLElement).style.cssText = `width:${width}px;height:${height}px;overflow:hidden;background:${background}`;
  copy.style.margin = "0";
  copy.style.transform = "none";
  frame.append(copy);
  const html = new XMLSerializer().serializeToString(frame);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><foreignObject width="100%" height="100%">${html}</foreignObject></svg>`;
}

/** The nearest colour behind an element. */
function backgroundOf(element: Element): string {
  for (let at: Element | null = element; at !== null; at = at.parentElement) {
    const { backgroundColor } = getComputedStyle(at);
    if (backgroundColor !== "rgba(0, 0, 0, 0)") return backgroundColor;
  }
  return "white";
}

/** A copy with the styles that the page gives it. Canvases become pictures, and controls what they show. */
function copied(element: Element): Element | Text {
  const style = getComputedStyle(element);
  let copy: Element;
  if (element instanceof HTMLCanvasElement) {
    copy = document.createElement("img");
    copy.setAttribute("src", element.width > 0 && element.height > 0 ? element.toDataURL() : "data:,");
  } else if (element instanceof HTMLSelectElement) {
    copy = document.createElement("span");
    copy.textContent = element.selectedOptions[0]?.textContent ?? "";
  } else if (element instanceof HTMLInputElement) {
    copy = document.createElement("span");
    copy.textContent = element.value || element.placeholder;
  } else {
    copy = element.cloneNode(false) as Element;
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) copy.append(document.createTextNode(child.nodeValue ?? ""));
      else if (child instanceof Element && isDrawn(child)) copy.append(copied(child));
    }
    if (element instanceof HTMLElement && element.scrollTop > 0 && copy.firstElementChild instanceof HTMLElement) {
      copy.firstElementChild.style.marginTop = `-${element.scrollTop}px`;
    }
  }
  if (copy instanceof HTMLElement || copy instanceof SVGElement) {
    let text = "";
    for (const name of style) text += `${name}:${style.getPropertyValue(name)};`;
    copy.style.cssText = `${text}animation:none;transition:none`;
  }
  for (const name of ["id", "class", "srcset"]) copy.removeAttribute(name);
  return copy;
}

function isDrawn(element: Element): boolean {
  const { display, visibility } = getComputedStyle(element);
  return display !== "none" && visibility !== "hidden" && !element.matches("script, style, iframe, [data-no-picture]");
}
