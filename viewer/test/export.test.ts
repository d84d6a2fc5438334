// Tables and lists that leave the viewer: numbers come back as they were, and nothing becomes a formula or a command.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { headLine, lines, numberCell, secondsCell, textCell } from "../src/export/csv";
import { dropCommands, labelCommands, listText, quoted } from "../src/export/flags";
import { fileName } from "../src/export/save";

/** Reads a line of CSV as RFC 4180 says. */
function parse(line: string): string[] {
  const cells = [""];
  let isQuoted = false;
  for (let at = 0; at < line.length; at++) {
    const letter = line[at] as string;
    if (letter === '"' && isQuoted && line[at + 1] === '"') {
      cells[cells.length - 1] += '"';
      at++;
    } else if (letter === '"') isQuoted = !isQuoted;
    else if (letter === "," && !isQuoted) cells.push("");
    else cells[cells.length - 1] += letter;
  }
  return cells;
}

describe("CSV", () => {
  test("a cell of text is read back, and never begins like a formula", () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: "binary" }), { minLength: 1, maxLength: 5 }), (texts) => {
        const back = parse(texts.map(textCell).join(","));
        expect(back).toHaveLength(texts.length);
        for (const [at, text] of texts.entries()) {
          expect(back[at]).toBe(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
        }
      }),
    );
    expect(textCell("=1+1")).toBe(`"'=1+1"`);
    expect(textCell("@SUM(A1)")).toBe(`"'@SUM(A1)"`);
    expect(textCell('say "hi", twice')).toBe('"say ""hi"", twice"');
  });

  test("a number is read back as the same value, a 32-bit float with no digit too many", () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(Number(numberCell(value))).toBe(value);
      }),
    );
    fc.assert(
      fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(Math.fround(Number(numberCell(value, true)))).toBe(value);
      }),
    );
    expect(numberCell(Math.fround(0.1), true)).toBe("0.1");
    expect([Number.NaN, Infinity, -Infinity, 2n ** 60n].map((value) => numberCell(value))).toEqual([
      ...["nan", "inf", "-inf", "1152921504606846976"],
    ]);
  });

  test("nanoseconds become seconds without loss", () => {
    expect([0n, 1n, 20_000_000n, -1_500_000_000n, 1_700_000_000_123_456_789n].map(secondsCell)).toEqual([
      ...["0", "0.000000001", "0.02", "-1.5", "1700000000.123456789"],
    ]);
  });

  test("a table has its titles and a line for each row", () => {
    const columns = [
      { title: "step", cell: String },
      { title: "=x", cell: () => "1" },
    ];
    expect(headLine(columns) + lines(columns, 2)).toBe(`step,"'=x"\r\n0,1\r\n1,1\r\n`);
  });
});

describe("flags", () => {
  const name = fc.string({ unit: "binary", minLength: 1, maxLength: 30 }).filter((text) => !text.includes("\0"));

  test("a shell reads each name as one word, whatever is in it", () => {
    const names = fc.sample(name, { numRuns: 60, seed: 7 }).concat(["$(reboot)", "a b", "it's", "`x`", "-rf", "\n"]);
    const script = names.map((one) => `printf '%s\\0' ${quoted(one)}\n`).join("");
    const words = execFileSync("sh", ["-c", script], { encoding: "buffer" }).toString("utf8").split("\0");
    // A name that begins with a dash is a path, so that no program takes it for an option.
    const expected = names.map((one) => Buffer.from(one.startsWith("-") ? `./${one}` : one).toString("utf8"));
    expect(words.slice(0, -1)).toEqual(expected);
  });

  test("each episode gets its command, and one in a pack is named in a comment", () => {
    expect(labelCommands(["runs/a.wshard", "p.shardpack › ep 1"], "flagged")).toBe(
      "wshard edit runs/a.wshard flagged=true\n# in a pack, which is not edited in place: p.shardpack › ep 1\n",
    );
    expect(dropCommands([], "dropped")).toBe("");
  });

  test("episodes are set aside with all that belongs to them, and none replaces another", () => {
    const folder = mkdtempSync(join(tmpdir(), "flags-"));
    const flagged = ["a b.wshard", "a b.wshard.overview", "a b.wshard.lanes/m.wshard", "x/ep.wshard", "y/ep.wshard"];
    const chunks = ["y/long_manifest.wshard", "y/long_chunk_0000.wshard", "y/long_chunk_0001.wshard"];
    const others = ["a c.wshard", "y/longer_manifest.wshard"];
    for (const name of [...flagged, ...chunks, ...others]) {
      mkdirSync(dirname(join(folder, name)), { recursive: true });
      writeFileSync(join(folder, name), name);
    }
    const names = ["a b.wshard", "x/ep.wshard", "y/ep.wshard", "y/long_manifest.wshard"];
    execFileSync("sh", ["-e"], { cwd: folder, input: dropCommands(names, "dropped") });
    for (const name of [...flagged, ...chunks]) {
      expect(readFileSync(join(folder, "dropped", name), "utf8")).toBe(name);
    }
    for (const name of others) expect(readFileSync(join(folder, name), "utf8")).toBe(name);
    rmSync(folder, { recursive: true });
  });

  test("a list has one line for each name", () => {
    expect(listText(["a", "b\nc"])).toBe("a\nb\\u000ac\n");
  });
});

test("the name of a file that is saved has nothing that means something in a path", () => {
  expect(fileName("../../etc/passwd")).toBe("_.._etc_passwd");
  expect(fileName('a:b*c?"<>|\u202e.png')).toBe("a_b_c_.png");
  expect(fileName("...")).toBe("shard");
});
