/**
 * Checks the prose of the project: comments, pages, help texts and messages. The ratchet holds the
 * number of findings of each folder. The check fails if a number rises, and lists the new findings.
 *
 * - `check.ts`: compare with the ratchet
 * - `check.ts --lower`: write smaller numbers into the ratchet
 * - `check.ts --report`: print the figures
 * - `check.ts PATH...`: list the findings of files and folders
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { commasIn, type Finding, findingsIn, hintOf, LONG_WORDS, wordsIn } from './rules.ts';
import { HELP, kindOf, sentencesOf } from './texts.ts';

export type Counts = Readonly<Record<string, number>>;

const ROOT = new URL('../../', import.meta.url).pathname;
const RATCHET = '.ci/prose/ratchet.json';
/** Findings that are listed at most; the rest is counted. */
const LISTED_MAX = 60;

interface Text {
  readonly path: string;
  readonly text: string;
}

const git = (...args: readonly string[]): string =>
  execFileSync('git', [...args], {
    cwd: ROOT,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    stdio: 'pipe',
  });

/** Every checked file of the working tree. */
export function texts(): Text[] {
  const paths = git('ls-files', '-co', '--exclude-standard').split('\n');
  return [...new Set(paths)]
    .filter((path) => kindOf(path) !== undefined && existsSync(join(ROOT, path)))
    .sort()
    .map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }));
}

/** Findings of all files. A help text is also in the list of messages, and counts once. */
export function findingsOf(all: readonly Text[]): Finding[] {
  const found = all.flatMap(({ path, text }) => findingsIn(path, text));
  const help = new Set(found.filter(({ kind }) => kind === 'help').map(({ text }) => text));
  return found.filter(({ kind, text }) => kind !== 'message' || !help.has(text));
}

/** The entry of the ratchet that counts a finding: a folder, or a kind of text. */
export function entryOf({ file, kind }: Pick<Finding, 'file' | 'kind'>): string {
  if (kind === 'help' || kind === 'message') return `${kind}s`;
  const folder = /^(?:(?:src|test|docs)\/[^/]+|[^/]+)(?=\/)/.exec(file)?.[0] ?? '.';
  return kind === 'table' ? `${folder} (tables)` : folder;
}

export function countsOf(findings: readonly Finding[]): Counts {
  const counts = new Map<string, number>();
  for (const finding of findings) {
    const entry = entryOf(finding);
    counts.set(entry, (counts.get(entry) ?? 0) + 1);
  }
  return Object.fromEntries([...counts].sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Entries whose number is now larger, and entries whose number is now smaller. */
export function compare(now: Counts, ratchet: Counts): { higher: string[]; lower: string[] } {
  const entries = [...new Set([...Object.keys(now), ...Object.keys(ratchet)])].sort();
  const changeOf = (entry: string): number => (now[entry] ?? 0) - (ratchet[entry] ?? 0);
  return {
    higher: entries.filter((entry) => changeOf(entry) > 0),
    lower: entries.filter((entry) => changeOf(entry) < 0),
  };
}

/** The ratchet with the smaller number of each entry; without entries that have no finding. */
export function lowered(now: Counts, ratchet: Counts): Counts {
  const entries = Object.entries(ratchet).map(([entry, count]): [string, number] => [
    entry,
    Math.min(count, now[entry] ?? 0),
  ]);
  return Object.fromEntries(entries.filter(([, count]) => count > 0));
}

export const readRatchet = (): Counts =>
  JSON.parse(readFileSync(join(ROOT, RATCHET), 'utf8')) as Counts;

/** Findings whose sentence the file did not have when the ratchet was last changed. */
export function newFindings(
  findings: readonly Finding[],
  before: (path: string) => string | undefined,
): Finding[] {
  const known = new Map<string, Set<string>>();
  const isKnown = ({ file, rule, text }: Finding): boolean => {
    let old = known.get(file);
    if (!old) {
      const source = before(file);
      const earlier = source === undefined ? [] : findingsIn(file, source);
      old = new Set(earlier.map((each) => `${each.rule} ${each.text}`));
      known.set(file, old);
    }
    return old.has(`${rule} ${text}`);
  };
  return findings.filter((finding) => !isKnown(finding));
}

/** Reads a file as it was in the last commit that changed this entry of the ratchet. */
function atRatchet(entry: string): (path: string) => string | undefined {
  const line = `"${entry.replaceAll(/[.()]/g, '\\$&')}":`;
  const commit = git('log', '-1', '--format=%H', `-G${line}`, '--', RATCHET).trim();
  return (path) => {
    if (commit === '') return undefined;
    try {
      return git('show', `${commit}:${path}`);
    } catch {
      return undefined;
    }
  };
}

function list(findings: readonly Finding[]): void {
  for (const { file, line, rule, text } of findings.slice(0, LISTED_MAX)) {
    console.log(`${file}:${line} ${rule}: ${text.slice(0, 150)}`);
  }
  if (findings.length > LISTED_MAX) console.log(`and ${findings.length - LISTED_MAX} more`);
  for (const rule of new Set(findings.map((finding) => finding.rule))) {
    console.log(`  ${rule}: ${hintOf(rule)}`);
  }
}

function check(findings: readonly Finding[]): boolean {
  const [now, ratchet] = [countsOf(findings), readRatchet()];
  const { higher, lower } = compare(now, ratchet);
  for (const entry of higher) {
    const [count, allowed] = [now[entry] ?? 0, ratchet[entry] ?? 0];
    console.log(`prose: ${entry} has ${count} findings; the ratchet allows ${allowed}. New ones:`);
    list(
      newFindings(
        findings.filter((finding) => entryOf(finding) === entry),
        atRatchet(entry),
      ),
    );
  }
  if (lower.length > 0) {
    console.log(`prose: fewer findings in ${lower.join(', ')}. Run: npm run lint:prose -- --lower`);
  }
  return higher.length === 0;
}

/**
 * Averages over the sentences of pages. Cells of tables and the generated reference do not count.
 */
export function figuresOf(all: readonly Text[]): {
  sentences: number;
  words: number;
  commas: number;
  long: number;
} {
  const sentences = all
    .filter(({ path }) => /^(docs\/.*|README|ARCHITECTURE)\.?(md)?$/.test(path) && path !== HELP)
    .flatMap(({ path, text }) => sentencesOf(path, text))
    .filter(({ kind, text }) => kind === 'page' && wordsIn(text) > 2);
  const sum = (count: (text: string) => number): number =>
    sentences.reduce((total, { text }) => total + count(text), 0) / Math.max(1, sentences.length);
  return {
    sentences: sentences.length,
    words: sum(wordsIn),
    commas: sum(commasIn),
    long: sum((text) => (wordsIn(text) > LONG_WORDS ? 1 : 0)),
  };
}

function report(all: readonly Text[], findings: readonly Finding[]): void {
  const { sentences, words, commas, long } = figuresOf(all);
  const count = (...kinds: readonly string[]): number =>
    findings.filter(({ kind }) => kinds.includes(kind)).length;
  const longLines = findings.filter(({ rule }) => rule === 'long-line').length;
  console.log(`docs, README, ARCHITECTURE: ${sentences} sentences
  words a sentence      ${words.toFixed(1)} (target 16)
  commas a sentence     ${commas.toFixed(2)} (target 1.1)
  over ${LONG_WORDS} words         ${(100 * long).toFixed(1)} % (target 6)
  findings              ${count('page')} (target 100), and ${count('table')} in cells of tables
comments: ${count('comment')} findings (target 300), ${longLines} lines over 100 columns (target 0)
help: ${count('help')} findings; messages: ${count('message')} findings`);
  const rules = Map.groupBy(findings, ({ rule }) => rule);
  for (const [rule, found] of [...rules].sort(([, a], [, b]) => b.length - a.length)) {
    console.log(`${String(found.length).padStart(6)} ${rule}`);
  }
}

function lower(findings: readonly Finding[]): void {
  const [now, ratchet] = [countsOf(findings), existsSync(join(ROOT, RATCHET)) ? readRatchet() : {}];
  const next = Object.keys(ratchet).length === 0 ? now : lowered(now, ratchet);
  writeFileSync(join(ROOT, RATCHET), `${JSON.stringify(next, undefined, 2)}\n`);
}

function main(args: readonly string[]): void {
  const all = texts();
  const findings = findingsOf(all);
  const paths = args.filter((arg) => !arg.startsWith('--'));
  if (args.includes('--report')) report(all, findings);
  else if (args.includes('--lower')) lower(findings);
  else if (paths.length > 0) {
    const isIn = (file: string): boolean =>
      paths.some((path) => file === path || file.startsWith(`${path.replace(/\/$/, '')}/`));
    for (const { file, line, rule, text } of findings.filter((each) => isIn(each.file))) {
      console.log(`${file}:${line} ${rule}: ${text}`);
    }
  } else if (!check(findings)) process.exitCode = 1;
}

if (import.meta.main) main(process.argv.slice(2));
