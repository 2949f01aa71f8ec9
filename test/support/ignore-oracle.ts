import { CodedError } from '../../src/base/index.ts';
import type { PathPattern } from '../../src/snapshot/index.ts';

/** Option patterns as regular expressions, without a time limit. The oracle for the matcher. */
/** Class names of `[:name:]`. */
const CLASSES: Record<string, string> = {
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

function bad(pattern: string, what: string): CodedError {
  return new CodedError('BAD_IGNORE_PATTERN', `ignore pattern "${pattern}" is not valid: ${what}`);
}

const quote = (char: string): string => char.replace(/[\\^$.*+?()[\]{}|/]/, '\\$&');
const quoteInSet = (char: string): string => (char === '-' ? '\\-' : quote(char));

export function parseByExpression(text: string): Pick<PathPattern, 'negated' | 'applies'> {
  let pattern = text;
  while (pattern.endsWith(' ')) {
    const escapes = /(\\*) $/.exec(pattern)?.[1] ?? '';
    if (escapes.length % 2 === 1) break;
    pattern = pattern.slice(0, -1);
  }
  const negated = pattern.startsWith('!');
  if (negated) pattern = pattern.slice(1);
  const directoryOnly = pattern.endsWith('/') && pattern.length > 1;
  if (directoryOnly) pattern = pattern.slice(0, -1);
  const start = !pattern.includes('/') ? '(?:.*/|/)' : pattern.startsWith('/') ? '' : '/';
  const matcher = new RegExp(`^${start}${translate(pattern)}$`, 'su');
  return {
    negated,
    applies: (path, isDirectory) => (isDirectory || !directoryOnly) && matcher.test(path),
  };
}

function translate(pattern: string): string {
  const chars = [...pattern];
  let out = '';
  for (let at = 0; at < chars.length; at++) {
    const char = chars[at] as string;
    if (char === '\\') {
      const next = chars[++at];
      if (next === undefined)
        throw bad(pattern, 'it ends in a backslash; write "\\\\" for a literal one');
      out += quote(next);
    } else if (char === '?') {
      out += '[^/]';
    } else if (char === '*') {
      const first = at;
      while (chars[at + 1] === '*') at++;
      const before = chars[first - 1];
      const after = chars[at + 1];
      const whole = before === undefined || before === '/';
      if (at === first || !whole || (after !== '/' && after !== undefined)) out += '[^/]*';
      else if (after === undefined) out += '.*';
      else {
        // Matches no directory as well, so the slash is part of it.
        out += '(?:.*/)?';
        at++;
      }
    } else if (char === '[') {
      const [set, end] = translateSet(pattern, chars, at + 1);
      out += set;
      at = end;
    } else {
      out += quote(char);
    }
  }
  return out;
}

function translateSet(pattern: string, chars: string[], start: number): [string, number] {
  let at = start;
  const negated = chars[at] === '!' || chars[at] === '^';
  if (negated) at++;
  let set = '';
  for (const first = at; chars[at] !== ']' || at === first; at++) {
    const named = /^\[:(\w+):\]/.exec(chars.slice(at).join(''));
    let char = chars[at];
    if (char === undefined) throw bad(pattern, 'a "[" has no "]"');
    if (named) {
      const members = CLASSES[(named[1] ?? '').toLowerCase()];
      if (members === undefined) throw bad(pattern, `there is no class "${named[0]}"`);
      set += members;
      at += named[0].length - 1;
      continue;
    }
    if (char === '\\') char = chars[++at];
    if (char === undefined)
      throw bad(pattern, 'it ends in a backslash; write "\\\\" for a literal one');
    set += quoteInSet(char);
    if (chars[at + 1] === '-' && chars[at + 2] !== ']' && chars[at + 2] !== undefined) {
      const last = chars[at + 2] === '\\' ? at + 3 : at + 2;
      const end = chars[last];
      if (end === undefined)
        throw bad(pattern, 'it ends in a backslash; write "\\\\" for a literal one');
      if (end < char) throw bad(pattern, `the range ${char}-${end} is reversed`);
      set += `-${quoteInSet(end)}`;
      at = last;
    }
  }
  return [`(?!/)[${negated ? '^' : ''}${set}]`, at];
}
