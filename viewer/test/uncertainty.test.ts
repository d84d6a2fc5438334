// What the names of uncertainties mean.

import { describe, expect, test } from "vitest";
import { subjectsOf } from "../src/model/episode";
import type { ChannelFacts } from "../src/model/facts";
import { uncertaintiesOf } from "../src/model/uncertainty";
import { partsOf, readSettings } from "../src/panels/series/parts";

const one = {
  lane: "signal",
  id: "x",
  model: "",
  type: "",
  layout: "dense",
  dtype: "f32",
  shape: [2],
  dimensions: 2,
  length: 10,
  unit: "",
  rate: null,
  horizon: null,
  hasOwnClock: false,
  contentType: "",
  codec: "none",
  storedBytes: 80,
  bytes: 80,
  isInferred: false,
  lossy: null,
  sidecar: "",
  row: {},
  problem: null,
} as const;

function subjectWith(types: readonly string[], more: Partial<ChannelFacts> = {}) {
  const prediction: ChannelFacts = { ...one, key: "omen/x/m", lane: "omen", model: "m" };
  const made = types.map((type): ChannelFacts => {
    return { ...one, key: `uncert/x/m/${type}`, lane: "uncert", model: "m", type, ...more };
  });
  const [subject] = subjectsOf([{ ...one, key: "signal/x" }, prediction, ...made]);
  if (subject === undefined) throw new Error("no subject");
  return { subject, prediction };
}

function namesOf(types: readonly string[], more: Partial<ChannelFacts> = {}) {
  const { subject, prediction } = subjectWith(types, more);
  return uncertaintiesOf(subject, prediction).map(({ kind, name }) => `${kind} ${name}`);
}

describe("an uncertainty", () => {
  test("is a deviation by the names that the Python library takes for one", () => {
    expect(namesOf(["std"])).toEqual(["std std"]);
    expect(namesOf(["var", "sigma"])).toEqual(["std var", "std sigma"]);
  });

  test.each([
    [["q05", "q95"], "band 5–95 %"],
    [["q0.1", "q0.9"], "band 10–90 %"],
    [["p5", "p95"], "band 5–95 %"],
    [["quantile_0.25", "quantile_0.75"], "band 25–75 %"],
    [["q975", "q025"], "band 2.5–97.5 %"],
    [["upper", "lower"], "band lower – upper"],
    [["ci_low", "ci_high"], "band ci_low – ci_high"],
  ])("of two edges %s is one band", (types, band) => {
    expect(namesOf(types)).toEqual([band]);
  });

  test("of several bands, the widest comes first, and deviations before all", () => {
    expect(namesOf(["q25", "q05", "q75", "q95", "std"])).toEqual(["std std", "band 5–95 %", "band 25–75 %"]);
  });

  test("of a name that nobody knows is a line, and so is an edge without the other one", () => {
    expect(namesOf(["entropy", "q05", "upper", "slow", "flow", "q7a"])).toEqual(
      ["entropy", "q05", "upper", "slow", "flow", "q7a"].map((name) => `line ${name}`),
    );
  });

  test("of another shape, of another model or with its own clock is not about the prediction", () => {
    expect(namesOf(["std"], { dimensions: 3 })).toEqual([]);
    expect(namesOf(["std"], { model: "other" })).toEqual([]);
    expect(namesOf(["std"], { hasOwnClock: true })).toEqual([]);
    expect(namesOf(["std"], { model: "" })).toEqual(["std std"]);
  });
});

describe("the parts of a plot", () => {
  const parts = (types: readonly string[], k?: string | number) =>
    partsOf(subjectWith(types).subject, readSettings(k === undefined ? {} : { k }));

  test("are the stored edges of a band, as they are", () => {
    expect(parts(["q05", "q95"])).toMatchObject({ lower: "uncert/x/m/q05", upper: "uncert/x/m/q95", other: null });
    expect(parts(["std", "q05", "q95"], "5–95 %")).toMatchObject({ lower: "uncert/x/m/q05" });
  });

  test("are k deviations around the prediction for a std, 1 without a choice", () => {
    expect(parts(["std"]).upper).toContain('"omen/x/m","uncert/x/m/std",1,false');
    expect(parts(["std"], 3).lower).toContain('"omen/x/m","uncert/x/m/std",-3,false');
  });

  test("are a line of its own for another name, and nothing where nothing is wanted", () => {
    expect(parts(["entropy"])).toMatchObject({ lower: null, upper: null, other: "uncert/x/m/entropy" });
    expect(parts(["std", "entropy"], 0)).toMatchObject({ lower: null, upper: null, other: null });
    expect(parts(["std"], "gone")).toMatchObject({ k: 1, uncertainty: { kind: "std" } });
  });
});
