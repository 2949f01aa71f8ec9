import { mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { BackupArchive, backupFileOf, backupFolder } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printLine } from '../terminal.ts';
import { withBucketOf } from './bucket.ts';
import { BACKUP, findNamed } from './noun.ts';
import { withSession } from './session.ts';

/** Names of files in the folder of a backup. Other names come from a hostile writer. */
const FILE_NAME = /^[a-z0-9][-.a-z0-9]*$/;

/**
 * Writes plain copies of the files of a backup below a directory, under their keys. Never overwrites
 * a file. Throws `NO_BACKUP`, `DAMAGED_ARCHIVE` for a file with another checksum, `WRONG_SIGNATURE`,
 * `NOT_SIGNED`, and errors of the bucket.
 */
export async function exportBackup(
  name: string,
  flags: ClusterFlags & { readonly directory: string },
): Promise<void> {
  await withSession(flags, async (session) => {
    const { signal } = session;
    const found = await findNamed(BACKUP, name, session);
    await withBucketOf(BACKUP, found, session, async (bucket) => {
      const stored = await new BackupArchive(bucket).openOf(found, { signal });
      stored.assertTrusted(found);
      const ownerUid = stored.metadata.metadata.uid;
      const folder = backupFolder(name);
      const directory = join(flags.directory, folder);
      await mkdir(directory, { recursive: true, mode: 0o700 });
      let count = 0;
      for await (const key of bucket.list(folder, { signal })) {
        const file = key.slice(folder.length);
        if (!FILE_NAME.test(file)) continue;
        const known = backupFileOf(name, key);
        const bytes =
          known && stored.hasChecksum(known)
            ? stored.read(known, { signal })
            : bucket.get(key, { signal, ownerUid });
        await writeNew(join(directory, file), bytes, signal);
        count++;
      }
      if (count === 0) throw new CodedError('NO_BACKUP', `${folder} has no files`);
      printLine(`${count} files of backup ${name} are in ${directory}, in plain text`);
    });
  });
}

/** Writes a new file. Removes the file again if reading fails. */
async function writeNew(
  path: string,
  bytes: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<void> {
  const target = await open(path, 'wx', 0o600);
  try {
    await pipeline(Readable.from(bytes, { objectMode: false }), target.createWriteStream(), {
      signal,
    });
  } catch (error) {
    await rm(path);
    throw error;
  }
}
