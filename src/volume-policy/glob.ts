/** `*`, `?`, `[abc]`, `[a-z]` and `[!a]`, as Velero's filters have them; other letters are themselves. */
export function matchesGlob(pattern: string, text: string): boolean {
  if (!/[*?[]/.test(pattern)) return pattern === text;
  return matchesFrom(pattern, text);
}

/** By going back to the last star only, so that no pattern takes more than its length times that of the text. */
function matchesFrom(pattern: string, text: string): boolean {
  const parts = pattern.match(/\[[^\]]*\]|[^]/g) ?? [];
  let [at, in_] = [0, 0];
  let star: { readonly at: number; in: number } | undefined;
  while (in_ < text.length) {
    const part = parts[at];
    if (part === '*') {
      star = { at, in: in_ };
      at++;
    } else if (part !== undefined && isOne(part, text[in_] ?? '')) {
      at++;
      in_++;
    } else if (star) {
      star.in++;
      at = star.at + 1;
      in_ = star.in;
    } else return false;
  }
  return parts.slice(at).every((part) => part === '*');
}

function isOne(part: string, letter: string): boolean {
  if (part === '?') return true;
  if (!part.startsWith('[') || part.length < 3) return part === letter;
  const isNot = part.startsWith('[!');
  const inside = part.slice(isNot ? 2 : 1, -1);
  const [low = '', dash, high = ''] = inside;
  const isRange = dash === '-' && inside.length === 3;
  return isNot !== (isRange ? low <= letter && letter <= high : inside.includes(letter));
}
