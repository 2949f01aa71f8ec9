import type { Command } from 'commander';
import type { Manifest } from '../../repository/index.ts';
import {
  forgetSnapshots,
  formatSource,
  isRelativeName,
  noSuchSnapshot,
  parseSnapshot,
  SnapshotIds,
} from '../../snapshot/index.ts';
import { openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { printable, printJson, printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export function addDelete(group: Command): void {
  const example = 'longshore snapshot delete 335744cff3425387e282aba1a0145b72 --repo /backup/repo';
  verb(
    group,
    'delete <snapshot-id...>',
    'delete snapshots; a later maintenance run frees the space',
    example,
  )
    .option(...JSON_OPTION)
    .action(deleteSnapshots);
}

/** Checks all names before it deletes anything. */
async function deleteSnapshots(names: string[], options: VerbOptions): Promise<void> {
  const relative = names.find(isRelativeName);
  if (relative !== undefined) {
    throw new UsageError(`use the ID of the snapshot: ${relative} may be another one by then`);
  }
  await using context = await openContext(options, { unreadable: 'tell' });
  const { repository } = context;
  const found = new Map<string, Manifest>();
  const all = new SnapshotIds(await repository.manifests.find({ type: 'snapshot' }));
  for (const name of names) {
    const manifest = all.find(name);
    if (!manifest) throw noSuchSnapshot(name);
    found.set(manifest.id, manifest);
  }
  await forgetSnapshots(repository, [...found.keys()], { signal: new AbortController().signal });
  if (options.json === true) printJson({ deleted: [...found.keys()] });
  else {
    for (const manifest of found.values()) {
      printLine(`deleted ${manifest.id} ${describeDeleted(manifest)}`);
    }
  }
}

/** The source of a deleted snapshot. A damaged manifest has only its labels. */
function describeDeleted(manifest: Manifest): string {
  try {
    return `of ${formatSource(parseSnapshot(manifest).source)}`;
  } catch {
    const { username = '?', hostname = '?', path = '?' } = manifest.labels;
    return `of ${printable(`${username}@${hostname}:${path}`)}: its manifest was damaged`;
  }
}
