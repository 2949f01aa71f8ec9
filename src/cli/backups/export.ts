import { mkdir, open, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import {
  BackupArchive,
  backupFileOf,
  backupFolder,
  EncryptingBucket,
  signingBy,
  signWith,
  type StoredArchive,
  WELL_KNOWN_PASSWORD,
} from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import { type Bucket, openBucket } from '../../blob/index.ts';
import { keysIn, type PasswordFileFlags, passwordsIn } from '../repository/archive-keys.ts';
import type { ClusterFlags } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';
import { withBucketOf } from './bucket.ts';
import { BACKUP, findNamed } from './noun.ts';
import { withSession } from './session.ts';

/** Valid file names in the folder of a backup. Other names come from a hostile writer. */
const FILE_NAME = /^[a-z0-9][-.a-z0-9]*$/;

export interface ExportFlags extends ClusterFlags, PasswordFileFlags {
  readonly directory: string;
  /** A bucket to read without a cluster. */
  readonly bucket?: string | undefined;
  readonly keysFile?: string | undefined;
}

/**
 * Writes plain copies of the files of a backup below a directory, under their keys. Never
 * overwrites a file. Throws `NO_BACKUP`, `DAMAGED_ARCHIVE` for a file with another checksum,
 * `WRONG_SIGNATURE`, `NOT_SIGNED`, `NO_ARCHIVE_KEY`, and errors of the bucket.
 */
export async function exportBackup(name: string, flags: ExportFlags): Promise<void> {
  const { directory, bucket: location, passwordFile, keysFile } = flags;
  if (location !== undefined) {
    await exportWithoutCluster(name, location, flags);
    return;
  }
  if (passwordFile || keysFile !== undefined) {
    throw new UsageError(
      '--password-file and --keys-file need --bucket: a cluster has its own keys',
    );
  }
  await withSession(flags, async (session) => {
    const { signal } = session;
    const found = await findNamed(BACKUP, name, session);
    await withBucketOf(BACKUP, found, session, async (bucket) => {
      const stored = await new BackupArchive(bucket).openOf(found, { signal });
      stored.assertTrusted(found);
      await writeFiles(stored, { bucket, directory, signal });
    });
  });
}

/** Without the cluster, only the passwords or their keys are left. */
async function exportWithoutCluster(
  name: string,
  location: string,
  { directory, passwordFile = [], keysFile }: ExportFlags,
): Promise<void> {
  const [current = '', ...others] = await passwordsIn(passwordFile);
  const earlierKeys =
    keysFile === undefined ? [] : keysIn(await readFile(keysFile, 'utf8'), keysFile);
  const passwords = {
    current: current === '' ? WELL_KNOWN_PASSWORD : current,
    others,
    earlierKeys,
  };
  const keys = await signingBy(passwords);
  const interrupt = interruptSignal();
  const { signal } = interrupt;
  try {
    await using bucket = new EncryptingBucket(await openBucket(location), {
      keys,
      encrypts: false,
    });
    signWith(bucket, { signing: keys, isRequired: false });
    const stored = await new BackupArchive(bucket).open(name, { signal });
    stored.assertTrusted();
    await writeFiles(stored, { bucket, directory, signal });
  } finally {
    interrupt.dispose();
  }
}

async function writeFiles(
  stored: StoredArchive,
  { bucket, directory: target, signal }: { bucket: Bucket; directory: string; signal: AbortSignal },
): Promise<void> {
  const { name } = stored;
  const ownerUid = stored.metadata.metadata.uid;
  const folder = backupFolder(name);
  const directory = join(target, folder);
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
}

/** Writes a new file. Deletes it again if reading fails. */
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
