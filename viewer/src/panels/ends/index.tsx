// The reward of each step, the cumulative return below it, and where the episode terminates or is truncated.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { EpisodeModel, Subject } from "../../model/episode";
import type { ChannelFacts } from "../../model/facts";
import { useAnswer, useColumns, useEntryAt, useWindow } from "../../model/hooks";
import { valueRange } from "../../plot-data/columns";
import { colour } from "../../ui/colours";
import { shown } from "../../ui/escape";
import { value as numberText } from "../../ui/format";
import { clipped, drawAxis, plotArea, type Scene, TimeCanvas } from "../../ui/time-canvas";
import { gutter, type Panel, type PanelProps } from "../panel";
import { drawLine } from "../series/plot";
import { overTime } from "../table";
import { marks, Returns } from "./returns";
import { words } from "./words";
import "./ends.css";

/** Rewards that are read to sum them up, at most. */
const mostSteps = 1 << 25;
const piece = 1 << 18;
/** Flags that are read whole, so that each mark is at its step however far out the plot is. */
const mostMarked = 1 << 18;
const legendHeight = 26;

export const ends: Panel = {
  name: "ends",
  title: words.title,
  fits: ({ channel }) => (["reward", "terminated", "truncated"].includes(channel.lane) ? 10 : 0),
  height: ({ channel }: Subject) => (channel.lane === "reward" ? 180 : 64),
  isOverTime: true,
  component: Ends,
  table: overTime(({ episode }) =>
    (["reward", "terminated", "truncated"] as const).flatMap((lane) =>
      episode.lane(lane).flatMap(({ key, problem }) => (problem === null ? [{ name: words[lane], key }] : [])),
    ),
  ),
};

function Ends({ episode, subject, view, width, height, settings, change, report }: PanelProps): JSX.Element {
  const reward = subject.channel.lane === "reward" ? subject.channel : episode.lane("reward")[0];
  const [terminated, truncated] = [episode.lane("terminated")[0], episode.lane("truncated")[0]];
  const range = view.range.value;
  const columnsWide = Math.max(1, width - gutter.left - gutter.right);
  const hasReward = reward !== undefined && reward.problem === null && reward.dimensions === 1;
  const rewards = useColumns(episode, reward?.key ?? "", hasReward ? [0] : [], range, columnsWide);
  const terminatedAt = useMarks(episode, terminated, range, columnsWide);
  const truncatedAt = useMarks(episode, truncated, range, columnsWide);
  const returns = useReturns(episode, hasReward ? reward : undefined);
  const line = rewards.value?.lines[0];

  const entry = useEntryAt(episode, reward?.key ?? "", view.cursor.value) ?? -1;
  const atCursor = useWindow(episode, reward?.key ?? "", Math.max(0, entry), hasReward && entry >= 0 ? entry + 1 : 0);
  const value = atCursor.value?.kind === "dense" ? Number(atCursor.value.values[0]) : Number.NaN;
  const near = returns && returns.length > entry && entry >= 0 ? returns.before(entry) : null;
  const rest = useWindow(episode, reward?.key ?? "", near?.from ?? 0, near === null ? 0 : entry + 1);
  const restValues = rest.value?.kind === "dense" && rest.value.start === near?.from ? rest.value.values : null;
  const returnAt = returns && near && restValues ? returns.exact(restValues, near.from).at(-1) : undefined;

  const wanted = settings["as"] === "bars" || settings["as"] === "line" ? settings["as"] : null;
  const form = wanted ?? (range.end - range.start <= columnsWide / 4 ? "bars" : "line");

  const summary = words.summary(
    Math.round(range.start),
    Math.round(range.end),
    returns ? numberText(returns.total) : "–",
    [
      ...(terminatedAt[0] === undefined ? [] : [words.endsAt(words.terminated, terminatedAt[0])]),
      ...(truncatedAt[0] === undefined ? [] : [words.endsAt(words.truncated, truncatedAt[0])]),
    ].join(" ") || words.noEnd,
  );
  const share = returns && returns.steps > 0 ? returns.length / returns.steps : 1;
  const notFinite = returns?.notFinite ?? 0;
  const reducedBy = rewards.value?.factor ?? 1;
  useEffect(() => {
    const note = share < 1 ? words.reading(share) : notFinite > 0 ? words.notNumbers(notFinite) : "";
    report({
      reducedBy,
      summary,
      ...(note === "" ? {} : { note }),
      ...(rewards.error ? { problem: rewards.error.message } : {}),
    });
  }, [summary, share, notFinite, reducedBy, rewards.error]);

  const draw = (scene: Scene) => {
    const { context, left, right, x } = scene;
    const top = 10;
    const isHigh = scene.height >= 110 && hasReward && returns !== null;
    const middle = isHigh ? Math.round(top + (scene.height - top - 8) * 0.55) : scene.height - 6;
    if (line && hasReward) {
      const [low, high] = valueRange([line]) ?? [0, 1];
      const plot = plotArea(top, middle, Math.min(0, low), Math.max(0, high));
      drawAxis(scene, plot, shown(reward?.unit || words.reward));
      const zero = plot.y(0);
      const ink = colour("--series-0");
      clipped(scene, top, middle, () => {
        if (form === "bars") {
          context.fillStyle = ink;
          const step = Math.abs(x(1) - x(0));
          const wide = line.original ? Math.min(18, Math.max(1, step * 0.62)) : 1;
          for (let i = 0; i < line.x.length; i++) {
            const [min, max] = [line.min[i] as number, line.max[i] as number];
            if (Number.isNaN(min)) continue;
            const upper = Math.min(plot.y(Math.max(0, max)), zero);
            const lower = Math.max(plot.y(Math.min(0, min)), zero);
            context.fillRect(x(line.x[i] as number) - wide / 2, upper, wide, Math.max(1, lower - upper));
          }
        } else drawLine(scene, plot, { line, colour: ink });
      });
    }
    if (isHigh && returns) drawReturns(scene, returns, middle + 8, scene.height - 4);
    for (const [positions, isTerminated] of [
      [terminatedAt, true],
      [truncatedAt, false],
    ] as const) {
      const ink = colour(isTerminated ? "--bad" : "--warn");
      for (const position of positions) {
        const at = x(position);
        if (at < left - 1 || at > right + 1) continue;
        context.strokeStyle = ink;
        context.fillStyle = ink;
        context.lineWidth = 1.5;
        context.setLineDash(isTerminated ? [] : [4, 3]);
        context.beginPath();
        context.moveTo(at, 10);
        context.lineTo(at, scene.height - 4);
        context.stroke();
        context.setLineDash([]);
        // A filled square ends the episode; an open diamond only stops the recording.
        context.beginPath();
        if (isTerminated) {
          context.rect(at - 5, 1, 10, 10);
          context.fill();
        } else {
          context.moveTo(at, 0.5);
          context.lineTo(at + 6, 6.5);
          context.lineTo(at, 12.5);
          context.lineTo(at - 6, 6.5);
          context.closePath();
          context.fillStyle = colour("--surface");
          context.fill();
          context.stroke();
        }
      }
    }
  };

  return (
    <div class="ends">
      <div class="ends-legend" style={{ height: `${legendHeight}px` }}>
        <span class="ends-items">
          {hasReward ? (
            <>
              <span class="ends-item">
                <i class="ends-mark ends-reward" /> {words.reward}{" "}
                <b>{Number.isNaN(value) && entry < 0 ? "–" : numberText(value)}</b> {shown(reward?.unit ?? "")}
              </span>
              {returns && (
                <span class="ends-item">
                  <i class="ends-mark ends-return" /> {words.return}{" "}
                  <b>{returnAt === undefined ? "–" : numberText(returnAt)}</b>{" "}
                  <span class="soft">
                    / {share < 1 ? "…" : numberText(returns.total)} {words.total}
                  </span>
                </span>
              )}
            </>
          ) : (
            <span class="soft">{words.noReward}</span>
          )}
          {terminated && (
            <span class="ends-item">
              <i class="ends-mark ends-terminated" /> {words.terminated}
            </span>
          )}
          {truncated && (
            <span class="ends-item">
              <i class="ends-mark ends-truncated" /> {words.truncated}
            </span>
          )}
        </span>
        {hasReward && (
          <label class="ends-shape">
            <span class="hidden">{words.shape}</span>
            <select value={form} onChange={(event) => change({ ...settings, as: event.currentTarget.value })}>
              <option value="line">{words.line}</option>
              <option value="bars">{words.bars}</option>
            </select>
          </label>
        )}
      </div>
      <TimeCanvas
        view={view}
        width={width}
        height={Math.max(20, height - legendHeight)}
        label={summary}
        draw={draw}
        inputs={[line, returns, returns?.length, form, terminatedAt, truncatedAt]}
      />
    </div>
  );
}

function drawReturns(scene: Scene, returns: Returns, top: number, bottom: number): void {
  const { context, start, end, x } = scene;
  const { sums, block, length } = returns;
  const known = Math.floor(length / block);
  const from = Math.max(0, Math.floor(start / block));
  const to = Math.min(length === returns.steps ? sums.length - 1 : known, Math.ceil(end / block));
  // As many points as there are pixels, at most: a return moves slowly.
  const every = Math.max(1, Math.floor((to - from) / (2 * scene.width)));
  let [low, high] = [Infinity, -Infinity];
  for (let at = from; at <= to; at++) {
    low = Math.min(low, sums[at] as number);
    high = Math.max(high, sums[at] as number);
  }
  if (!(low <= high)) return;
  const plot = plotArea(top, bottom, Math.min(low, high), high);
  drawAxis(scene, plot, words.returnTitle);
  clipped(scene, top, bottom, () => {
    context.strokeStyle = colour("--series-2");
    context.lineWidth = 1.5;
    context.setLineDash([5, 3]);
    context.beginPath();
    for (let at = from; at <= to; at = at === to ? to + 1 : Math.min(to, at + every)) {
      // The return after step n − 1 stands at that step.
      const position = Math.min(at * block, returns.steps) - 1;
      context.lineTo(x(Math.max(0, position)), plot.y(sums[at] as number));
    }
    context.stroke();
    context.setLineDash([]);
  });
}

const none: readonly number[] = [];

function useMarks(
  episode: EpisodeModel,
  channel: ChannelFacts | undefined,
  range: { start: number; end: number },
  width: number,
): readonly number[] {
  const isReadable = channel !== undefined && channel.problem === null;
  const key = channel?.key ?? "";
  const isShort = isReadable && channel.length <= mostMarked;
  const exact = useWindow(episode, key, 0, isShort ? channel.length : 0).value;
  const reduced = useColumns(episode, key, isReadable && !isShort ? [0] : [], range, width).value?.lines[0];
  return useMemo(() => {
    if (exact?.kind === "dense") return marks(Array.from(exact.values.keys()), exact.values);
    return reduced ? marks(reduced.x, reduced.max) : none;
  }, [exact, reduced]);
}

/** The cumulative return, read piece by piece; null if there is none. */
function useReturns(episode: EpisodeModel, reward: ChannelFacts | undefined): Returns | null {
  const [, redraw] = useState(0);
  const key = reward?.key ?? "";
  const length = reward?.length ?? 0;
  const { value } = useAnswer(
    async ({ signal }) => {
      if (reward === undefined || length > mostSteps) return null;
      const returns = new Returns(length);
      const readOn = async () => {
        for (let start = 0; start < length && !signal?.aborted; start += piece) {
          const window = await episode.reads.window(
            key,
            start,
            Math.min(length, start + piece),
            signal ? { signal } : {},
          );
          if (window.kind === "dense") returns.add(window.values);
          redraw((count) => count + 1);
        }
      };
      if (length <= piece) await readOn();
      else void readOn().catch(() => undefined); // the columns say what is wrong
      return returns;
    },
    [episode, key, length],
  );
  return value ?? null;
}
