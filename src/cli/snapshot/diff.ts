import type { Command } from 'commander';
import {
  diffTrees,
  type DirectoryEntry,
  resolveEntry,
  type TreeChange,
} from '../../snapshot/index.ts';
import { openContext } from '../context.ts';
import { isOutputOpen, writeOutput } from '../output/streams.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { type NameOptions, sourceOf, withNames } from './names.ts';
import { JsonList, printable, printLine } from '../output/terminal.ts';

const SIGNS = { added: '+', removed: '-', changed: 'M', attributes: 'U' } as const;
const SIGNS_HELP = `
Signs: + added, - removed, M content changed, U only mode, owner or time changed.`;

export function addDiff(group: Command): void {
  const example = 'longshore snapshot diff latest~1 latest --source /data --repo /backup/repo';
  const summary = 'show what changed between two snapshots';
  const command = verb(group, 'diff <id> <other-id>', summary, example).option(...JSON_OPTION);
  withNames(command, SIGNS_HELP).action(diff);
}

async function diff(from: string, to: string, options: VerbOptions<NameOptions>): Promise<void> {
  await using context = await openContext(options);
  const { repository } = context;
  const source = sourceOf(repository, options);
  const before = await resolveEntry(repository, from, source);
  const after = await resolveEntry(repository, to, source);
  const json = new JsonList();
  const counts = { added: 0, removed: 0, changed: 0, attributes: 0 };
  for await (const change of diffTrees(repository, before, after)) {
    if (!isOutputOpen()) return;
    counts[change.kind]++;
    if (options.json === true) await json.add(documentOf(change));
    else await writeOutput(`${lineOf(change)}\n`);
  }
  if (options.json === true) await json.end();
  else {
    const { added, removed, changed, attributes } = counts;
    printLine(
      `${added} added, ${removed} removed, ${changed} changed, ${attributes} with other attributes`,
    );
  }
}

function lineOf({ kind, path, before, after }: TreeChange): string {
  const name = path === '' ? '.' : path;
  return `${SIGNS[kind]} ${printable(name)}${(after ?? before)?.type === 'd' ? '/' : ''}`;
}

const sideOf = (entry: DirectoryEntry | undefined): object | null =>
  entry === undefined ? null : { type: entry.type, size: entry.size, objectId: entry.objectId };

const documentOf = ({ kind, path, before, after }: TreeChange): object => ({
  change: kind,
  path,
  before: sideOf(before),
  after: sideOf(after),
});
