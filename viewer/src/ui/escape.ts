// Names from files are data: what would change the text around them is made visible.

/** A text in which control characters and those that turn the direction of text are written as their code. */
export function shown(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u{fff9}-\u{fffb}]/gu, (one) => {
    return `\\u{${(one.codePointAt(0) ?? 0).toString(16)}}`;
  });
}
