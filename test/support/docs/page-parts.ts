import { shellCommands } from '../shell-commands.ts';

/** A command line of a page, including continued lines, here-documents and pipes. */
export interface Statement {
  readonly kind: 'statement';
  /** The number of its first line in the page, from 1. */
  readonly line: number;
  readonly text: string;
}

/** Output that the page shows for the commands before it. */
export interface ShownOutput {
  readonly kind: 'output';
  readonly line: number;
  readonly text: string;
}

export type PagePart = Statement | ShownOutput;

/** The fence of shown output. */
const OUTPUT = 'output';
const SHELL = 'sh';

/** The commands of a page and their shown output, in order. Throws if a command has no end. */
export function partsOf(page: string): PagePart[] {
  const parts: PagePart[] = [];
  const lines = page.split('\n');
  for (let at = 0; at < lines.length; at++) {
    const [, indent = '', kind = ''] = /^( *)```(\w*)$/.exec(lines[at] ?? '') ?? [];
    if (kind === '') {
      // Skips a fence without a language.
      if (/^ *```$/.test(lines[at] ?? '')) at = endOf(lines, at);
      continue;
    }
    const end = endOf(lines, at);
    const inside = lines.slice(at + 1, end).map((line) => line.slice(indent.length));
    if (kind === SHELL) parts.push(...statementsOf(inside, at + 2));
    if (kind === OUTPUT) parts.push({ kind: 'output', line: at + 2, text: inside.join('\n') });
    at = end;
  }
  return parts;
}

function endOf(lines: readonly string[], from: number): number {
  const end = lines.findIndex((line, at) => at > from && /^ *```$/.test(line));
  if (end < 0) throw new Error(`a fence has no end: line ${from + 1}`);
  return end;
}

function statementsOf(lines: readonly string[], first: number): Statement[] {
  const statements: Statement[] = [];
  let from = 0;
  for (let at = 0; at < lines.length; at++) {
    const text = lines.slice(from, at + 1).join('\n');
    if (!isWhole(text)) continue;
    if (shellCommands(text).length > 0 || /^\s*(?:export )?\w+=/.test(text)) {
      statements.push({ kind: 'statement', line: first + from, text });
    }
    from = at + 1;
  }
  if (from < lines.length) throw new Error(`a command has no end: line ${first + from}`);
  return statements;
}

function isWhole(text: string): boolean {
  if (text.endsWith('\\')) return false;
  const [, , word] = /<<-?\s*(['"]?)(\w+)\1/.exec(text) ?? [];
  if (word !== undefined && !new RegExp(`^${word}$`, 'm').test(text)) return false;
  try {
    shellCommands(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Lines of a shown output that were not printed, in order. Figures, times, bars and spaces may
 * differ, because they depend on the machine.
 */
export function missingLines(shown: string, printed: string): string[] {
  const own = printed.split('\n').map(shapeOf);
  let from = 0;
  return shown
    .split('\n')
    .filter((line) => line.trim() !== '')
    .filter((line) => {
      const at = own.indexOf(shapeOf(line), from);
      if (at >= 0) from = at + 1;
      return at < 0;
    });
}

const shapeOf = (line: string): string =>
  line
    .trim()
    .replaceAll(/\[[#-]+\]/g, '[]')
    .replaceAll(/\d[\d.,:]*/g, '0')
    .replaceAll(/\b[KMGT]?i?B\b/g, 'B')
    .replaceAll(/\s+/g, ' ');
