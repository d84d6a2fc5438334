// Which steps are read for the statistics of a range.

/** At most `most` steps from `start` up to `end`, in pieces that are spread evenly; the whole range if that is less. */
export function pieces(start: number, end: number, most: number, count = 16): { start: number; end: number }[] {
  const length = end - start;
  if (length <= 0) return [];
  if (length <= most || most < count) return [{ start, end: Math.min(end, start + Math.max(1, most)) }];
  const size = Math.floor(most / count);
  return Array.from({ length: count }, (_, at) => {
    const from = start + Math.round((at * (length - size)) / (count - 1));
    return { start: from, end: from + size };
  });
}
