import type { Command } from 'commander';
import { changePins, formatSource, noSuchSnapshot, SnapshotIds } from '../../snapshot/index.ts';
import { expireSnapshots } from '../../uploader/index.ts';
import { openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { removedDocuments } from './retention.ts';
import { type NameOptions, sourceOf } from './names.ts';
import { printId, printJson, printLine } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';
import { UsageError } from '../usage-error.ts';

const DEFAULT_PIN = 'manual';

/** `pin`, `unpin` and `expire`: control which snapshots stay. */
export function addKeepVerbs(group: Command): void {
  const id = '335744cf';
  for (const [name, summary] of [
    ['pin', 'pin snapshots: policies do not remove them'],
    ['unpin', 'remove pins from snapshots: policies decide again'],
  ] as const) {
    const example = `longshore snapshot ${name} ${id} --name audit --repo /backup/repo`;
    verb(group, `${name} <snapshot-id...>`, summary, example)
      .option('--name <name>', 'name of the pin', DEFAULT_PIN)
      .option(...JSON_OPTION)
      .action((names: string[], options: VerbOptions<{ name: string }>) => {
        const pins = [options.name];
        return pin(names, options, name === 'pin' ? { add: pins } : { remove: pins });
      });
  }
  const example = 'longshore snapshot expire --all --dry-run --repo /backup/repo';
  verb(group, 'expire', 'remove the snapshots that no policy keeps any longer', example)
    .option(
      '--source <source>',
      'only snapshots of this source: user@host:/path, or a path of this client',
    )
    .option('--all', 'snapshots of all sources')
    .option('--dry-run', 'only print which snapshots would be removed')
    .option(...JSON_OPTION)
    .action(expire);
}

/** Checks all names before it changes anything. */
async function pin(
  names: readonly string[],
  options: VerbOptions<{ name: string }>,
  change: { add?: string[]; remove?: string[] },
): Promise<void> {
  if (options.name.trim() === '') throw new UsageError('--name is empty: a pin needs a name');
  await using context = await openContext(options, { unreadable: 'tell' });
  const { repository } = context;
  const all = new SnapshotIds(await repository.manifests.find({ type: 'snapshot' }));
  const found = names.map((name) => {
    const manifest = all.find(name);
    if (manifest) return manifest;
    throw noSuchSnapshot(name);
  });
  const changed = [...new Set(found)].filter((each) => changePins(repository, each, change));
  await repository.flush();
  if (options.json === true) printJson({ changed: changed.map(({ id }) => id) });
  for (const manifest of options.json === true ? [] : new Set(found)) {
    const did = change.add ? 'pinned' : 'unpinned';
    const state = changed.includes(manifest) ? did : `${did} already`;
    printLine(`${manifest.id} is ${state} (${options.name})`);
  }
}

async function expire(
  options: VerbOptions<NameOptions & { all?: boolean; dryRun?: boolean }>,
): Promise<void> {
  if ((options.all === true) === (options.source !== undefined)) {
    throw new UsageError('name one source with --source, or all of them with --all');
  }
  await using context = await openContext(options, { unreadable: 'tell' });
  const { repository, logger } = context;
  const dryRun = options.dryRun === true;
  const source = sourceOf(repository, options);
  const expired = await repository.freeRoom(async () => {
    const found = await expireSnapshots(repository, { source, dryRun, logger });
    await repository.flush();
    return found;
  });
  if (options.json === true) {
    printJson({ dryRun, removed: removedDocuments(expired) });
    return;
  }
  const did = dryRun ? 'would remove' : 'removed';
  for (const { id, source: of, startTimeNs } of expired) {
    printId(id);
    printLine(`${did} ${id} of ${formatSource(of)}, ${timeText(startTimeNs, options)}`);
  }
  if (expired.length === 0) printLine('policies keep every snapshot');
}
