/** The probably intended word, for a message; undefined if no word is close. */
export function nearest(text: string, words: readonly string[]): string | undefined {
  const plain = (word: string): string => word.toLowerCase().replaceAll(/[-_ ]/g, '');
  const wanted = plain(text);
  if (wanted === '' || wanted.length > 64) return undefined;
  const far = (word: string): number => distance(wanted, plain(word));
  const [best] = words.map((word) => ({ word, far: far(word) })).sort((a, b) => a.far - b.far);
  return best && best.far <= Math.max(1, Math.floor(wanted.length / 4)) ? best.word : undefined;
}

/** Number of letters added, removed or replaced. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}

/** `a, b or c`. */
export const orList = (words: readonly string[]): string =>
  words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} or ${words.at(-1) ?? ''}`;
