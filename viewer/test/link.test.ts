// Links: what goes in comes out, and what others have written breaks nothing.

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { decodeLink, emptyLink, encodeLink } from "../src/state/link";

describe("links", () => {
  test("say again what they were made of", () => {
    const link = {
      ...emptyLink,
      row: "runs/ep 1.wshard",
      id: "ep › 1",
      cursor: 12.5,
      range: { start: 3, end: 40 },
      selection: { start: 5, end: 6 },
      shown: ["signal/a", "omen/b/c"],
      panels: new Map([["signal/a", { as: "heatmap", settings: { map: "grey" } }]]),
      tab: "entries",
      compare: { with: "x" },
      flagged: ["a&b.wshard", "pack › key"],
    };
    expect(decodeLink(`#${encodeLink(link)}`)).toEqual(link);
  });

  test("take any text", () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (text, value) => {
        decodeLink(text);
        const link = decodeLink(`t=${value}&range=${value}&show=${value}&panels=${value}&flag=${value}`);
        expect(link.flagged.every((one) => typeof one === "string")).toBe(true);
      }),
    );
    expect(decodeLink('flag=[1]&show={}&flag=["a"]')).toEqual(emptyLink);
  });

  test("leave out more flags than an address can hold", () => {
    const flagged = Array.from({ length: 10_000 }, (_, at) => `ep_${at}.wshard`);
    expect(encodeLink({ ...emptyLink, id: "a", flagged })).toBe("id=a");
  });
});
