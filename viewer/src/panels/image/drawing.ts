// Pictures on a canvas: where they stand, how they are zoomed, and what is drawn of truth and prediction.

import type { Picture } from "./pixels";

/** How a picture is zoomed: 1 fits it into its place. `x` and `y` are the part of it that is in the middle, 0 to 1. */
export interface Zoom {
  readonly scale: number;
  readonly x: number;
  readonly y: number;
}

export const fitted: Zoom = { scale: 1, x: 0.5, y: 0.5 };
const largestZoom = 200;

/** A picture on the canvas, in CSS pixels. `size` is the side of one of its pixels. */
export interface Place {
  readonly left: number;
  readonly top: number;
  readonly size: number;
}

type Sides = Pick<Picture, "width" | "height">;

export function placeOf(picture: Sides, room: Sides, zoom: Zoom): Place {
  const size = zoom.scale * Math.min(room.width / picture.width, room.height / picture.height);
  return {
    left: room.width / 2 - zoom.x * picture.width * size,
    top: room.height / 2 - zoom.y * picture.height * size,
    size,
  };
}

/** Zoom by a factor, so that the point of the canvas at `x`, `y` stays where it is. */
export function zoomAt(zoom: Zoom, factor: number, x: number, y: number, picture: Sides, room: Sides): Zoom {
  const scale = Math.min(Math.max(zoom.scale * factor, 1), largestZoom);
  if (scale === 1) return fitted;
  const before = placeOf(picture, room, zoom);
  const after = placeOf(picture, room, { ...zoom, scale });
  return zoomed({
    scale,
    x: zoom.x + ((x - room.width / 2) / picture.width) * (1 / before.size - 1 / after.size),
    y: zoom.y + ((y - room.height / 2) / picture.height) * (1 / before.size - 1 / after.size),
  });
}

/** Move the picture by some CSS pixels. */
export function moved(zoom: Zoom, dx: number, dy: number, picture: Sides, room: Sides): Zoom {
  const { size } = placeOf(picture, room, zoom);
  return zoomed({ ...zoom, x: zoom.x - dx / size / picture.width, y: zoom.y - dy / size / picture.height });
}

/** A zoom that is possible: the middle of the place stays on the picture. */
export function zoomed({ scale, x, y }: Zoom): Zoom {
  if (!(scale > 1)) return fitted;
  const inside = (value: number) => Math.min(Math.max(value, 0), 1);
  return { scale: Math.min(scale, largestZoom), x: inside(x), y: inside(y) };
}

/** Pixels that are painted once and drawn at any size. */
export class Layer {
  private readonly canvas = document.createElement("canvas");
  private painted: readonly unknown[] = [];

  /** Paint, unless nothing of `inputs` has changed since the last time. */
  paint({ width, height }: Sides, inputs: readonly unknown[], paint: (pixels: Uint8ClampedArray) => void): void {
    const same = inputs.length === this.painted.length && inputs.every((input, i) => input === this.painted[i]);
    if (same && this.canvas.width === width && this.canvas.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    const image = context.createImageData(width, height);
    paint(image.data);
    context.putImageData(image, 0, 0);
    this.painted = inputs;
  }

  draw(context: CanvasRenderingContext2D, { left, top, size }: Place, from = 0, to = 1): void {
    const { width, height } = this.canvas;
    const [x, end] = [left + from * width * size, left + to * width * size];
    context.save();
    context.beginPath();
    context.rect(x, top, end - x, height * size);
    context.clip();
    // Enlarged pixels are squares; only pictures that are made smaller are smoothed.
    context.imageSmoothingEnabled = size * context.getTransform().a < 1;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.canvas, left, top, width * size, height * size);
    context.restore();
  }
}

/** The ground of what has no value. */
export function drawGround(
  context: CanvasRenderingContext2D,
  place: Place,
  { width, height }: Sides,
  [light, dark]: readonly [string, string],
): void {
  const side = 8;
  context.save();
  context.beginPath();
  context.rect(place.left, place.top, width * place.size, height * place.size);
  context.clip();
  context.fillStyle = light;
  const canvas = context.canvas;
  const { a: ratio } = context.getTransform();
  const [right, bottom] = [canvas.width / ratio, canvas.height / ratio];
  context.fillRect(0, 0, right, bottom);
  context.fillStyle = dark;
  for (let y = 0, row = 0; y < bottom; y += side, row++) {
    for (let x = (row % 2) * side; x < right; x += 2 * side) context.fillRect(x, y, side, side);
  }
  context.restore();
}
