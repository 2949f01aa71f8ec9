import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { makeDirectories, messageOf } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import {
  type PlannedEntry,
  planRestore,
  type RestoreCounters,
  type RestoreOptions,
  Selection,
} from '../../uploader/index.ts';
import { writeOutput } from '../output/streams.ts';
import { printable } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface PartFlags {
  block?: boolean;
  include?: string[];
  exclude?: string[];
  /** commander's name of `--no-owner`. */
  owner: boolean;
  /** commander's names of `--no-xattrs` and `--no-hard-links`. */
  xattrs: boolean;
  hardLinks: boolean;
  devices?: boolean;
  dryRun?: boolean;
  inPlace?: boolean;
}

export const collectPatterns = (pattern: string, before: string[] = []): string[] => [
  ...before,
  pattern,
];

/** Options for the selection, the owner and extras. Throws {@link UsageError}. */
export function partOf(
  flags: PartFlags,
): Pick<RestoreOptions, 'selection' | 'owner' | 'extras' | 'devices'> {
  const { include, exclude, block, owner, xattrs, hardLinks, inPlace, devices = false } = flags;
  const dryRun = flags.dryRun === true && inPlace !== true;
  const isPart = include !== undefined || exclude !== undefined;
  if (block === true && (isPart || !owner || dryRun)) {
    throw new UsageError(
      '--include, --exclude, --no-owner and --dry-run are not for raw volumes (--block)',
    );
  }
  return {
    extras: { xattrs, links: hardLinks },
    devices,
    ...(isPart && { selection: selectionOf({ include, exclude }) }),
    ...(!owner && { owner: { uid: process.geteuid?.() ?? 0, gid: process.getegid?.() ?? 0 } }),
  };
}

function selectionOf(patterns: {
  include?: string[] | undefined;
  exclude?: string[] | undefined;
}): Selection {
  try {
    const { include = [], exclude = [] } = patterns;
    return new Selection({ include, exclude });
  } catch (error) {
    throw new UsageError(messageOf(error));
  }
}

/** A single file has no parts. Throws {@link UsageError}. */
export function assertHasParts(root: DirectoryEntry, { selection }: { selection?: unknown }): void {
  if (selection === undefined || root.type === 'd') return;
  throw new UsageError('--include and --exclude need a directory, but this is a single file');
}

/** A typed target with a slash at its end is a directory, created for a single file. */
export async function makeTypedDirectory(typed: string, root: DirectoryEntry): Promise<void> {
  if (typed.endsWith('/') && root.type !== 'd') await makeDirectories(typed);
}

/** Prints each entry that would be restored. */
export async function printPlan(
  repository: Repository,
  root: DirectoryEntry,
  target: { typed: string; path: string },
  options: Pick<RestoreOptions, 'signal' | 'overwrite' | 'selection'> & { isSilent: boolean },
): Promise<RestoreCounters> {
  const isDirectory = await stat(target.path).then(
    (found) => found.isDirectory(),
    () => target.typed.endsWith('/'),
  );
  const path = root.type !== 'd' && isDirectory ? join(target.path, root.name) : target.path;
  const show = async ({ path: below, type, isKept }: PlannedEntry): Promise<void> => {
    if (options.isSilent) return;
    const name = printable(join(path, below)) + (type === 'd' && below !== '' ? '/' : '');
    await writeOutput(`${isKept ? 'keep   ' : 'restore'} ${name}\n`);
  };
  return await planRestore(repository, root, path, options, show);
}
