/** The last lines of a log (`kubectl logs --tail`), with their line ends. */
export function lastLines(text: string, count: number): string {
  if (!(count >= 0)) return text;
  const lines = text.split('\n');
  const end = lines.at(-1) === '' ? lines.length - 1 : lines.length;
  return count === 0 ? '' : lines.slice(Math.max(0, end - count)).join('\n');
}
