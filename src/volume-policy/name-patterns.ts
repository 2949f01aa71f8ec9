/**
 * The problem of a namespace pattern; undefined if valid. Velero: pkg/util/wildcard/expand.go,
 * ValidateNamespaceName.
 */
export function patternProblem(text: string): string | undefined {
  const letter = /[|()!{},]/.exec(text)?.[0];
  if (letter !== undefined) return `has a ${letter}: a pattern has only *, ? and [abc]`;
  if (text.includes('**')) return 'has two * in a row: write one';
  return bracketProblem(text);
}

function bracketProblem(text: string): string | undefined {
  const rest = text.replaceAll(BRACKETS, '');
  if (rest.includes('[]')) return 'has empty brackets: put letters into them';
  if (rest.includes('[')) return 'has a [ without a ]';
  if (rest.includes(']')) return 'has a ] without a [';
  return undefined;
}

const BRACKETS = /\[([^\]]+)\]/g;

/**
 * The problem of an object name pattern; undefined if valid. These are globs of
 * github.com/gobwas/glob, which rejects only bad brackets.
 */
export function globProblem(text: string): string | undefined {
  const plain = text.replaceAll(/\\./g, '');
  const problem = bracketProblem(plain);
  if (problem !== undefined && !problem.startsWith('has a ]')) return problem;
  for (const [all, inside = ''] of plain.matchAll(BRACKETS)) {
    const [low = '', dash, high = ''] = inside.replace(/^!/, '');
    const isRange = dash === '-';
    if (low === '') return `has ${all} without a letter`;
    if (isRange && (inside.replace(/^!/, '').length !== 3 || high < low)) {
      return `has ${all}, which is no range: write one such as [a-c]`;
    }
  }
  return undefined;
}
