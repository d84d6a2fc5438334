// Draws what a model predicted beside what happened, with its uncertainty: node examples/show.mjs EPISODE PICTURE.svg
//
// docs/languages.md shows where the episode comes from: Go records it, Python annotates it.
import { writeFileSync } from "node:fs";
import { openEpisode } from "@shard-format/core/wshard/node";

const [path, picture] = process.argv.slice(2);
const channel = "joint_pos";
const model = "linear";

const episode = await openEpisode(path);
for (const problem of episode.problems) console.warn(problem.message);
const truth = episode.observations.get(channel);
const omen = episode.omens.get(channel)?.get(model);
const uncert = episode.uncerts.get(channel)?.get(model)?.get("std");
if (!truth || !omen || !uncert) throw new Error(`${path} has no prediction of ${channel} by ${model}`);
const [joints] = truth.shape;
const [actual, predicted, unsure] = await Promise.all([truth.data(), omen.data(), uncert.data()]);
const steps = truth.length;

const [width, height, left] = [900, 180, 60];
const x = (t) => left + ((width - left - 10) * t) / (steps - 1);
const bands = [];
for (let joint = 0; joint < joints; joint++) {
  const value = (array, t) => array[t * joints + joint];
  const all = Array.from({ length: steps }, (_, t) => [value(actual, t), value(predicted, t)]).flat();
  const [low, high] = [Math.min(...all) - 0.2, Math.max(...all) + 0.2];
  const y = (v) => height * (joint + 1) - 20 - ((height - 40) * (v - low)) / (high - low);
  const line = (of) => Array.from({ length: steps }, (_, t) => `${x(t).toFixed(1)},${y(of(t)).toFixed(1)}`);
  const upper = line((t) => value(predicted, t) + value(unsure, t));
  const lower = line((t) => value(predicted, t) - value(unsure, t)).reverse();
  bands.push(
    `<text x="5" y="${y(0)}">joint ${joint}</text>`,
    `<polygon points="${[...upper, ...lower].join(" ")}" fill="#f4a261" opacity="0.45"/>`,
    `<polyline points="${line((t) => value(predicted, t)).join(" ")}" fill="none" stroke="#e76f51" stroke-dasharray="4 3"/>`,
    `<polyline points="${line((t) => value(actual, t)).join(" ")}" fill="none" stroke="#264653" stroke-width="1.5"/>`,
  );
}
writeFileSync(
  picture,
  `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height * joints}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="${left}" y="14">${episode.id}: truth (dark), prediction of ${model} (dashed), its uncertainty (band)</text>
${bands.join("\n")}
</svg>
`,
);
const error = predicted.reduce((sum, one, at) => sum + Math.abs(one - actual[at]), 0) / predicted.length;
console.log(`${episode.id}: ${steps} steps, mean error ${error.toFixed(4)}, shown in ${picture}`);
await episode.close();
