import { imageSize } from "@shard-format/core/wshard";
import { describe, expect, test } from "vitest";
import type { ChannelFacts } from "../src/model/facts";
import { codecOf, coloursOfVp9 } from "../src/model/video";
import { placeOf, zoomAt } from "../src/panels/image/drawing";
import {
  colourRange,
  differences,
  isDepth,
  paintPicture,
  percentileRange,
  pictureOf,
} from "../src/panels/image/pixels";
import { eyeOf, frameOf, gridStep, projected, startingOrbit } from "../src/panels/points/camera";
import { boundsOf, cloudOf, ownColourScale } from "../src/panels/points/cloud";

const facts = (more: Partial<ChannelFacts>) =>
  ({ layout: "dense", dtype: "u8", shape: [], row: {}, unit: "", horizon: null, ...more }) as ChannelFacts;

describe("what a shape is a picture of", () => {
  test("follows from the shape, the horizon and what the description says", () => {
    const found = (more: Partial<ChannelFacts>) => {
      const picture = pictureOf(facts(more));
      return (
        picture && [picture.height, picture.width, picture.planes, picture.channelFirst, picture.count, picture.guess]
      );
    };
    expect(found({ shape: [48, 64] })).toEqual([48, 64, 1, false, 1, false]);
    expect(found({ shape: [48, 64, 3] })).toEqual([48, 64, 3, false, 1, false]);
    expect(found({ shape: [3, 48, 64] })).toEqual([48, 64, 3, true, 1, true]);
    expect(found({ shape: [3, 48, 64], row: { axes: ["C", "H", "W"] } })).toEqual([48, 64, 3, true, 1, false]);
    expect(found({ shape: [4, 48, 3], row: { semantics: "channels-first" } })).toEqual([48, 3, 4, true, 1, false]);
    expect(found({ shape: [5, 48, 64, 3], horizon: 5 })).toEqual([48, 64, 3, false, 5, false]);
    expect(found({ shape: [48, 64], layout: "video" })).toEqual([48, 64, 4, false, 1, false]);
    expect(found({ shape: [48, 64], layout: "video", dtype: "u16" })).toEqual([48, 64, 1, false, 1, false]);
    for (const shape of [[], [7], [48, 64, 5], [2, 3, 4, 5], [0, 64], [0, 0, 3]]) expect(found({ shape })).toBe(null);
  });

  test("is depth by its unit or its description, never by its name", () => {
    const depth = (more: Partial<ChannelFacts>) => {
      const one = facts({ shape: [8, 8], dtype: "u16", ...more });
      const picture = pictureOf(one);
      return picture !== null && isDepth(one, picture);
    };
    expect([depth({ unit: "mm" }), depth({ row: { modality: "depth" } })]).toEqual([true, true]);
    expect([depth({ id: "depth" }), depth({ unit: "m", dtype: "u8" }), depth({ unit: "m", shape: [8, 8, 3] })]).toEqual(
      [false, false, false],
    );
  });
});

describe("pixels", () => {
  const picture = { height: 1, width: 2, planes: 3, channelFirst: false, count: 1 };

  test("of colours as numbers have the usual range of colours that they fit into", () => {
    expect(
      [
        { min: 0.1, max: 0.9 },
        { min: -0.4, max: 1 },
        { min: 3, max: 250 },
        { min: -7, max: 2 },
      ].map(colourRange),
    ).toEqual([
      { min: 0, max: 1 },
      { min: -1, max: 1 },
      { min: 0, max: 255 },
      { min: -7, max: 2 },
    ]);
    const pixels = new Uint8ClampedArray(8);
    const look = { map: "grey", range: { min: 0, max: 1 }, none: undefined } as const;
    paintPicture(Float32Array.of(1, 0, 0.5, 9, Number.NaN, 0), picture, look, pixels);
    expect(Array.from(pixels)).toEqual([255, 0, 128, 255, 255, 0, 0, 0]);
  });

  test("differ by the colour that differs most, whatever the order of the values is", () => {
    const first = { ...picture, channelFirst: true };
    const found = differences(Uint8Array.of(1, 2, 3, 10, 20, 30), picture, Uint8Array.of(1, 10, 2, 27, 8, 30), first);
    expect(Array.from(found)).toEqual([5, 7]);
  });

  test("without a value do not count for the range", () => {
    expect(percentileRange(Uint16Array.of(0, 0, 0, 500, 600), 0)).toEqual({ min: 501, max: 599 });
    expect(percentileRange(Float32Array.of(Number.NaN))).toEqual({ min: 0, max: 1 });
  });

  test("stay under the pointer when the picture is zoomed there", () => {
    const room = { width: 400, height: 300 };
    const sides = { width: 100, height: 50 };
    const at = (zoom: typeof before, x: number) =>
      (x - placeOf(sides, room, zoom).left) / placeOf(sides, room, zoom).size;
    const before = zoomAt({ scale: 1, x: 0.5, y: 0.5 }, 2, 200, 150, sides, room);
    const after = zoomAt(before, 3, 130, 150, sides, room);
    expect(at(after, 130)).toBeCloseTo(at(before, 130), 9);
    expect(zoomAt(after, 1e-9, 0, 0, sides, room).scale).toBe(1);
  });
});

describe("streams", () => {
  test("have the names that browsers know", () => {
    const none = new Uint8Array(0);
    expect(codecOf("video/h264", none, Uint8Array.of(1, 0x4d, 0x40, 0x29))).toBe("avc1.4d4029");
    expect(codecOf("video/h264", Uint8Array.of(0, 0, 0, 1, 0x67, 0x42, 0xc0, 0x1e, 9, 9), none)).toBe("avc1.42c01e");
    const record = Uint8Array.of(1, 1, 0x60, 0, 0, 0, 0x90, 0, 0, 0, 0, 0, 0x5d);
    expect(codecOf("video/h265", none, record)).toBe("hvc1.1.6.L93.90");
    expect(codecOf("video/av1", none, Uint8Array.of(0x81, 0x05, 0x4c, 0))).toBe("av01.0.05M.10");
    expect(codecOf("video/vp9", Uint8Array.of(0xa2), none)).toBe("vp09.01.41.08");
    expect([codecOf("video/ffv1", none, none), codecOf("", none, none)]).toEqual([null, null]);
  });

  test("of JPEG images state their size in the first frame header, before anything is decoded", () => {
    const comment = [0xff, 0xfe, 0, 4, 1, 2];
    const frame = [0xff, 0xc2, 0, 17, 8, 0, 48, 1, 0, 3, 1];
    expect(imageSize(Uint8Array.of(0xff, 0xd8, ...comment, 0xff, ...frame))).toEqual({ height: 48, width: 256 });
    for (const bytes of [[], [0xff, 0xd8], [0xff, 0xd8, ...comment], [0x89, 0x50, 0x4e, 0x47, 1, 2, 3, 4, 5, 6]]) {
      expect(imageSize(Uint8Array.from(bytes))).toBe(null);
    }
  });

  test("of VP9 say their colours in the first keyframe; otherwise the format does", () => {
    const sync = [0x49, 0x83, 0x42];
    expect(coloursOfVp9(Uint8Array.of(0x82, ...sync, 0b0101_0000, 0))).toMatchObject({
      matrix: "bt709",
      fullRange: true,
    });
    expect(coloursOfVp9(Uint8Array.of(0x82, ...sync, 0b0010_0000, 0))).toMatchObject({
      matrix: "smpte170m",
      fullRange: false,
    });
    expect(coloursOfVp9(new Uint8Array(0))).toMatchObject({ matrix: "smpte170m", fullRange: false });
  });
});

describe("points", () => {
  const bounds = { least: [0, 0, 0], largest: [1, 2, 3] } as const;

  test("above others are above them in the picture, whichever axis is up", () => {
    for (const up of ["z", "y", "-y"] as const) {
      const { matrix } = eyeOf(startingOrbit, bounds, up, 1.5);
      const [low, high] = [
        [0.5, 1, 1] as const,
        { z: [0.5, 1, 2] as const, y: [0.5, 2, 1] as const, "-y": [0.5, 0, 1] as const }[up],
      ];
      const [a, b] = [projected(matrix, low), projected(matrix, high)];
      expect(b?.[1]).toBeLessThan(a?.[1] as number);
      for (const corner of [bounds.least, bounds.largest]) {
        for (const part of projected(matrix, corner) ?? [2]) expect(Math.abs(part - 0.5)).toBeLessThan(0.55);
      }
    }
  });

  test("stand on a grid of a round step", () => {
    expect([1, 3.3, 10, 0.004].map(gridStep)).toEqual([0.1, 0.2, 1, 0.0005].map((one) => expect.closeTo(one, 9)));
    const { places, colours, step } = frameOf({ least: [0, 0, 0], largest: [1, 1, 1] }, "z", [1, 2, 3]);
    expect(step).toBeCloseTo(0.1, 9);
    expect([places.length, colours.length]).toEqual([3 * 2 * (11 + 11 + 3), 4 * 2 * (11 + 11 + 3)]);
    expect(frameOf({ least: [5, 5, 5], largest: [5, 5, 5] }, "y", [0, 0, 0]).places.every(Number.isFinite)).toBe(true);
  });

  test("without a place are left out, and a few far ones do not set the bounds", () => {
    const values = new Float32Array(300 * 3).map((_, i) => (i % 3) + Math.floor(i / 3) / 300);
    values.set([Number.NaN, 0, 0, 1e9, 1e9, 1e9], 0);
    const found = boundsOf(values, 3);
    expect(Math.max(...(found?.largest ?? []))).toBeLessThan(3.1);
    const look = {
      columns: 3,
      by: "height",
      up: "z",
      map: "grey",
      span: { min: 0, max: 1 },
      ground: [0, 0, 0],
      trail: 1,
    } as const;
    expect(cloudOf([{ values, age: 0 }], look).count).toBe(299);
    expect(boundsOf(new Float32Array(0), 3)).toBe(null);
  });

  test("have colours of their own only where three columns can be colours", () => {
    const six = (...colours: number[]) => ownColourScale(Float32Array.of(0, 0, 0, ...colours), 6);
    expect([six(0, 1, 0.5), six(0, 255, 7), six(0, 12.5, 7), six(-1, 0, 0)]).toEqual([255, 1, null, null]);
    expect(ownColourScale(Float32Array.of(1, 2, 3, 4), 4)).toBe(null);
  });
});
