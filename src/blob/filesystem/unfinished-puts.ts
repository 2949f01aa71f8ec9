import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { systemCode } from '../../base/index.ts';
import type { UnfinishedPuts, UnfinishedPutsOptions } from '../storage.ts';
import { SHARDS_FILE } from './sharding.ts';

/** Temporary files, ours and Kopia's (repo/blob/filesystem, createTempFileWithData, v0.23.1). */
const TEMPORARY = new RegExp(`^(.+\\.f|\\${SHARDS_FILE})\\.tmp\\.[0-9a-f]{16}$`);

/** See {@link BlobStorage.removeUnfinishedPuts}. Reads entry by entry. Throws like `fs`. */
export async function removeUnfinishedPuts(
  root: string,
  { beforeNs, dryRun, signal }: UnfinishedPutsOptions,
): Promise<UnfinishedPuts> {
  const found = { count: 0, lengthBytes: 0 };
  const visit = async (path: string): Promise<void> => {
    const stat = await fs.lstat(path, { bigint: true });
    if (!stat.isFile() || stat.mtimeNs >= beforeNs) return;
    if (!dryRun) await fs.unlink(path);
    found.count++;
    found.lengthBytes += Number(stat.size);
  };
  const walk = async (directory: string): Promise<void> => {
    // Directories are few, so their names are kept. Only one directory is open at a time.
    const below: string[] = [];
    for await (const entry of await fs.opendir(directory)) {
      signal?.throwIfAborted();
      const path = join(directory, entry.name);
      if (entry.isDirectory()) {
        // No blob directory starts with a dot; snapshots of file servers do.
        if (!entry.name.startsWith('.')) below.push(path);
      } else if (TEMPORARY.test(entry.name)) await unless(['ENOENT'], visit(path));
    }
    // An unreadable directory belongs to another user: `lost+found`.
    for (const path of below) await unless(['ENOENT', 'EACCES'], walk(path));
  };
  await walk(root);
  return found;
}

/** The put has ended meanwhile, or another process cleans up too. */
async function unless(codes: readonly string[], task: Promise<void>): Promise<void> {
  try {
    await task;
  } catch (error) {
    if (!codes.includes(systemCode(error) ?? '')) throw error;
  }
}
