/**
 * Finds the sentences of a file. Sources: comments, pages, the command line's help and the list of
 * messages.
 */

export type Kind = 'comment' | 'page' | 'table' | 'help' | 'message';

/** A sentence, or a cell of a table. */
export interface Sentence {
  readonly kind: Kind;
  /** Line of the file on which the sentence starts, from 1. */
  readonly line: number;
  /** Inline code is replaced by `CODE`, and a link by its text. */
  readonly text: string;
}

/** A paragraph, a comment, an item of a list or a cell, with the line on which each part starts. */
interface Block {
  readonly kind: Kind;
  readonly parts: { readonly offset: number; readonly line: number }[];
  text: string;
}

/** Gathers lines into blocks. */
class Blocks {
  readonly all: Block[] = [];
  #open: Block | undefined;

  add(kind: Kind, line: number, words: string): void {
    if (this.#open === undefined) {
      this.#open = { kind, parts: [], text: '' };
      this.all.push(this.#open);
    }
    if (this.#open.text !== '') this.#open.text += ' ';
    this.#open.parts.push({ offset: this.#open.text.length, line });
    this.#open.text += words;
  }

  end(): void {
    this.#open = undefined;
  }

  alone(kind: Kind, line: number, words: string): void {
    this.end();
    this.add(kind, line, words);
    this.end();
  }
}

const MESSAGES = 'test/golden/sentences.txt';
export const HELP = 'docs/cli.md';

/** What kind of text a file holds; undefined if nothing in it is checked. */
export function kindOf(path: string): Kind | undefined {
  if (path === MESSAGES) return 'message';
  if (path === HELP) return 'help';
  if (/^(docs\/.*|README|ARCHITECTURE|CONTRIBUTING|SECURITY)\.?(md)?$/.test(path)) {
    return path.endsWith('.md') ? 'page' : undefined;
  }
  const isSource = /^(src|bench|test|bin|scripts|image|\.ci)\/|^[^/]+$/.test(path);
  if (!isSource || path.startsWith('test/golden/') || path.endsWith('.d.ts')) return undefined;
  return /\.([cm]?[jt]s|sh)$|^(bin\/longshore|\.ci\/run)$/.test(path) ? 'comment' : undefined;
}

/** The sentences of a file in their order. Throws for a path that `kindOf` does not know. */
export function sentencesOf(path: string, text: string): Sentence[] {
  const lines = text.split('\n');
  switch (kindOf(path)) {
    case 'comment':
      return isShell(path, lines) ? split(shellComments(lines)) : split(comments(lines));
    case 'page':
      return split(pageBlocks(lines, 'page', 'table'));
    case 'help':
      return split(pageBlocks(lines, 'help', 'help'));
    case 'message':
      return split(messages(lines));
    case 'table':
    case undefined:
      throw new Error(`no text is checked in ${path}`);
  }
}

/** Lines of comments that are longer than `columns`, from 1. */
export function longLines(text: string, columns: number): number[] {
  return text
    .split('\n')
    .flatMap((line, index) =>
      line.length > columns && /^\s*(\*|\/\/|\/\*|#)/.test(line) ? [index + 1] : [],
    );
}

const isShell = (path: string, lines: readonly string[]): boolean =>
  path.endsWith('.sh') || /^#!.*sh$/.test(lines[0] ?? '');

/** Comments for tools, which are no prose. */
const FOR_TOOLS = /^(eslint|prettier|@ts-|@vitest|!|#region|v8 ignore)/;
/** A comment behind code on its line: the code ends before two slashes. */
const BEHIND_CODE = /[;,{}()[\]]\s+\/\/ (.*)$/;

function comments(lines: readonly string[]): Block[] {
  const blocks = new Blocks();
  let isInside = false;
  let isCode = false;
  for (const [index, line] of lines.entries()) {
    const trimmed = line.trim();
    const starts = !isInside && trimmed.startsWith('/*');
    if (!isInside && !starts) {
      const [, words] = /^\/\/+ ?(.*)$/.exec(trimmed) ?? [];
      const [, behind] = words === undefined ? (BEHIND_CODE.exec(line) ?? []) : [];
      if (behind !== undefined) blocks.alone('comment', index + 1, behind);
      else if (words === undefined || words === '' || FOR_TOOLS.test(words)) blocks.end();
      else addWords(blocks, 'comment', index + 1, words);
      continue;
    }
    isInside = !trimmed.includes('*/');
    const words = trimmed
      .replace(/^\/\*+/, '')
      .replace(/\*\/.*$/, '')
      .replace(/^\*(?!\*)/, '')
      .trim();
    if (words.startsWith('```')) isCode = !isCode;
    if (words === '' || isCode || /^[@`|]{1,3}/.test(words.replace(/^`[^`]+`.*/, ''))) blocks.end();
    else addWords(blocks, 'comment', index + 1, words);
    if (!isInside) {
      isCode = false;
      blocks.end();
    }
  }
  return blocks.all;
}

function shellComments(lines: readonly string[]): Block[] {
  const blocks = new Blocks();
  for (const [index, line] of lines.entries()) {
    const [, words = ''] = /^\s*#(?!!)\s?(.*)$/.exec(line) ?? [];
    if (words === '') blocks.end();
    else addWords(blocks, 'comment', index + 1, words);
  }
  return blocks.all;
}

/** Items of a list are blocks of their own. */
function addWords(blocks: Blocks, kind: Kind, line: number, words: string): void {
  const [, item] = /^\s*(?:[-*]|\d+\.) +(.*)$/.exec(words) ?? [];
  if (item !== undefined) blocks.end();
  blocks.add(kind, line, (item ?? words).trim());
}

function pageBlocks(lines: readonly string[], kind: Kind, cells: Kind): Block[] {
  const blocks = new Blocks();
  let fence: string | undefined;
  for (const [index, line] of lines.entries()) {
    const [, mark] = /^\s*(```+|~~~+)/.exec(line) ?? [];
    if (mark !== undefined || fence !== undefined) {
      if (fence === undefined) fence = mark;
      else if (mark?.startsWith(fence) === true) fence = undefined;
      blocks.end();
    } else if (/^\s*\|/.test(line)) {
      for (const cell of cellsOf(line)) blocks.alone(cells, index + 1, cell);
    } else if (line.trim() === '' || /^(#|\s*<)/.test(line)) blocks.end();
    else addWords(blocks, kind, index + 1, line.replace(/^\s*>\s?/, ''));
  }
  return blocks.all;
}

const cellsOf = (line: string): string[] =>
  line
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim())
    .filter((cell) => /[a-z]/.test(cell));

function messages(lines: readonly string[]): Block[] {
  const blocks = new Blocks();
  for (const [index, line] of lines.entries()) {
    if (!line.startsWith('  ')) continue;
    for (const part of line.split('\\n')) blocks.alone('message', index + 1, part.trim());
  }
  return blocks.all;
}

/** The end of a sentence: not of an abbreviation, and not within a file's name. */
const END = /(?<!\b(?:e\.g|i\.e|vs|cf|etc))[.!?]["')*]*(?=\s+["'(*_[]*[A-Z`]|\s*$)/g;

function split(blocks: readonly Block[]): Sentence[] {
  const found: Sentence[] = [];
  for (const { kind, text, parts } of blocks) {
    let start = 0;
    const add = (end: number): void => {
      const words = text.slice(start, end);
      const from = start + words.length - words.trimStart().length;
      const line = parts.findLast(({ offset }) => offset <= from)?.line ?? 0;
      if (words.trim() !== '') found.push({ kind, line, text: plain(words).trim() });
      start = end;
    };
    if (kind !== 'table') for (const end of text.matchAll(END)) add(end.index + end[0].length);
    add(text.length);
  }
  return found;
}

const plain = (text: string): string =>
  text
    .replaceAll(/\{@link (\w+)\}/g, '$1')
    .replaceAll(/``?[^`]+``?/g, 'CODE')
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/https?:\S+/g, 'URL');
