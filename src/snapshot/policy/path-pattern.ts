import { CodedError, isCode, lookup } from '../../base/index.ts';
import { Glob, type GlobElement } from './glob.ts';

/** A pattern of an option such as `--exclude`, in the syntax of a .gitignore line. */
export interface PathPattern {
  readonly negated: boolean;
  /** `path` starts with `/`, the root. Returns whether the pattern applies, negated or not. */
  applies(path: string, isDirectory: boolean): boolean;
  /** Whether it may apply to anything below a directory. The root is ''. */
  mayApplyBelow(directory: string): boolean;
}

/** Longer rules are rejected: they take time and memory, and Linux paths are shorter. */
export const PATTERN_CHARS_MAX = 4096;

/** Character classes by the name in `[:name:]`. */
export const CLASSES: Record<string, string> = {
  alnum: '\\p{L}\\p{Nd}',
  alpha: '\\p{L}',
  ascii: '\\x00-\\x7f',
  blank: '\\p{Zs}\\t',
  cntrl: '\\p{Cc}',
  digit: '\\p{Nd}',
  graph: '\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Zs}',
  lower: '\\p{Ll}',
  print: '\\p{L}\\p{M}\\p{N}\\p{P}\\p{S} ',
  punct: '\\p{P}\\p{S}',
  space: '\\s',
  upper: '\\p{Lu}',
  xdigit: 'A-Fa-f\\p{Nd}',
};
/** Longer class names are not parsed, because no class has one. */
const CLASS_CHARS_MAX = 64;

/** An error without the pattern, which may be from a file that the user may not read. */
export function bad(what: string): CodedError {
  return new CodedError('BAD_IGNORE_PATTERN', what);
}
export const BACKSLASH_AT_END = 'it ends in a backslash; write "\\\\" for a literal one';

const quote = (char: string): string => char.replace(/[\\^$.*+?()[\]{}|/]/, '\\$&');
const quoteInSet = (char: string): string => (char === '-' ? '\\-' : quote(char));

/** Parses an option's pattern for paths from the root. Throws `BAD_IGNORE_PATTERN`. */
export const parsePathPattern = (text: string): PathPattern =>
  naming(text, () => {
    if (text.length > PATTERN_CHARS_MAX) {
      throw bad(`it is longer than ${PATTERN_CHARS_MAX} characters`);
    }
    let pattern = withoutSpacesAtEnd(text);
    const negated = pattern.startsWith('!');
    if (negated) pattern = pattern.slice(1);
    const directoryOnly = pattern.endsWith('/') && pattern.length > 1;
    if (directoryOnly) pattern = pattern.slice(0, -1);
    const isAnywhere = !pattern.includes('/');
    const slash: GlobElement = { kind: 'char', char: '/' };
    const start: GlobElement[] = isAnywhere
      ? [{ kind: 'all' }, slash]
      : pattern.startsWith('/')
        ? []
        : [slash];
    const elements = [...start, ...parseElements(pattern)];
    const matches = matcherOf(elements);
    let glob: Glob | undefined;
    return {
      negated,
      applies: (path, isDirectory) => (isDirectory || !directoryOnly) && matches(path),
      mayApplyBelow: (directory) => {
        glob ??= new Glob(elements);
        return glob.mayBegin(`${directory}/`);
      },
    };
  });

/** Adds the rule to its error. */
export function naming<T>(text: string, parse: () => T): T {
  try {
    return parse();
  } catch (cause) {
    if (!isCode(cause, 'BAD_IGNORE_PATTERN')) throw cause;
    const shown = text.length > 200 ? `${text.slice(0, 200)}...` : text;
    const message = `ignore pattern "${shown}" is not valid: ${cause.message}`;
    throw new CodedError('BAD_IGNORE_PATTERN', message, { cause });
  }
}

/** Keeps a space after a backslash. */
function withoutSpacesAtEnd(text: string): string {
  const [whole = '', escapes = ''] = /(\\*)( +)$/.exec(text) ?? [];
  const kept = escapes.length % 2 === 1 ? escapes.length + 1 : escapes.length;
  return text.slice(0, text.length - whole.length + kept);
}

/**
 * Uses a regular expression, the fastest way, if the pattern has at most one star. Then the time is
 * at most text length times pattern length. A leading `all` only stops at slashes. Other patterns
 * use a {@link Glob}.
 */
function matcherOf(elements: readonly GlobElement[]): (text: string) => boolean {
  const [first] = elements;
  const rest = first?.kind === 'all' ? elements.slice(1) : elements;
  const open = rest.filter(({ kind }) => kind !== 'char' && kind !== 'one');
  const isSimple = open.length === 0 || (open.length === 1 && open[0]?.kind === 'star');
  if (!isSimple) {
    const glob = new Glob(elements);
    return (text) => glob.matches(text);
  }
  const source = elements.map((element) => {
    if (element.kind === 'char') return quote(element.char);
    if (element.kind === 'one') return '[^/]';
    return element.kind === 'star' ? '[^/]*' : '.*';
  });
  const expression = new RegExp(`^${source.join('')}$`, 'su');
  return (text) => expression.test(text);
}

function parseElements(pattern: string): GlobElement[] {
  const chars = [...pattern];
  const elements: GlobElement[] = [];
  for (let at = 0; at < chars.length; at++) {
    const char = chars[at] as string;
    if (char === '\\') {
      const next = chars[++at];
      if (next === undefined) throw bad(BACKSLASH_AT_END);
      elements.push({ kind: 'char', char: next });
    } else if (char === '?') {
      elements.push({ kind: 'one' });
    } else if (char === '*') {
      const first = at;
      while (chars[at + 1] === '*') at++;
      const before = chars[first - 1];
      const after = chars[at + 1];
      const whole = before === undefined || before === '/';
      if (at === first || !whole || (after !== '/' && after !== undefined)) {
        elements.push({ kind: 'star' });
      } else if (after === undefined) {
        elements.push({ kind: 'all' });
      } else {
        // Consumes the slash too, because `**/` can match no directory.
        elements.push({ kind: 'directories' });
        at++;
      }
    } else if (char === '[') {
      const [members, end] = parseSet(chars, at + 1);
      elements.push({ kind: 'set', members });
      at = end;
    } else {
      elements.push({ kind: 'char', char });
    }
  }
  return elements;
}

/** The name in `[:name:]`, if one starts here. */
function classNameAt(chars: readonly string[], at: number): string | undefined {
  if (chars[at] !== '[' || chars[at + 1] !== ':') return undefined;
  const text = chars.slice(at, at + CLASS_CHARS_MAX).join('');
  return /^\[:(\w+):\]/.exec(text)?.[1];
}

function parseSet(chars: readonly string[], start: number): [members: RegExp, end: number] {
  let at = start;
  const negated = chars[at] === '!' || chars[at] === '^';
  if (negated) at++;
  const parts: string[] = [];
  // A `]` at the start is a member.
  for (const first = at; chars[at] !== ']' || at === first; at++) {
    const named = classNameAt(chars, at);
    let char = chars[at];
    if (char === undefined) throw bad('a "[" has no "]"');
    if (named !== undefined) {
      const members = lookup(CLASSES, named.toLowerCase());
      if (members === undefined) throw bad('a "[:class:]" has an unknown name');
      parts.push(members);
      at += named.length + 3;
      continue;
    }
    if (char === '\\') char = chars[++at];
    if (char === undefined) throw bad(BACKSLASH_AT_END);
    parts.push(quoteInSet(char));
    if (chars[at + 1] === '-' && chars[at + 2] !== ']' && chars[at + 2] !== undefined) {
      const last = chars[at + 2] === '\\' ? at + 3 : at + 2;
      const end = chars[last];
      if (end === undefined) throw bad(BACKSLASH_AT_END);
      if (end < char) throw bad('a range in "[...]" is reversed');
      parts.push(`-${quoteInSet(end)}`);
      at = last;
    }
  }
  // Sets never match a slash.
  const set = `(?!/)[${negated ? '^' : ''}${parts.join('')}]`;
  return [new RegExp(`^${set}$`, 'su'), at];
}
