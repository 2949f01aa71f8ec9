import { BackupArchive } from '../../archive/index.ts';
import { CodedError, formatBytes } from '../../base/index.ts';
import { withBucketOf } from '../backups/bucket.ts';
import { BACKUP, findNamed, type Run } from '../backups/noun.ts';
import { type Session, withSession } from '../backups/session.ts';
import type { ClusterFlags } from '../cluster.ts';
import { createLogger } from '../context.ts';
import { type EntryFlags, listEntries } from '../snapshot/entries.ts';
import { isOutputOpen, writeOutput } from '../output/streams.ts';
import { isWide } from '../output/format-options.ts';
import { printable, printJson, printTable } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';
import { OpenDevices } from './device-volume.ts';
import { findFile } from './find-file.ts';
import { deriveKeyOf, withOpenRepository } from './open-repositories.ts';
import { tarOf } from './tar.ts';
import type { VolumeFile } from './volume-file.ts';
import { type BrowsableVolume, volumesIn } from './volumes.ts';

export interface BrowseFlags extends ClusterFlags, EntryFlags {
  cat?: boolean;
  tar?: boolean;
  verbose?: boolean;
  memoryLimit?: string;
}

/**
 * Lists the volumes of a backup, or a directory in a volume, or writes a file or directory to
 * stdout. Throws `NO_BACKUP`, `NO_VOLUME`, `NOT_BROWSABLE`, `PATH_NOT_FOUND`, `DEVICE_NOT_READ`,
 * `DEVICE_DAMAGED`, and errors of the API server, the bucket and the repository.
 */
export async function browse(
  name: string,
  volume: string | undefined,
  path: string,
  flags: BrowseFlags,
): Promise<void> {
  const wanted = [flags.cat, flags.tar].filter((flag) => flag === true).length;
  if (wanted > 1) throw new UsageError('--cat and --tar contradict each other');
  if (wanted > 0 && volume === undefined) {
    throw new UsageError(`--${flags.cat === true ? 'cat' : 'tar'} needs a volume of the backup`);
  }
  if (flags.tar === true && process.stdout.isTTY) {
    throw new UsageError('--tar writes an archive: send it into a file or to "tar -x"');
  }
  await withSession(flags, async (session) => {
    const backup = await findNamed(BACKUP, name, session);
    await withHeadStart(volume, backup, session, async () => {
      const volumes = await withBucketOf(BACKUP, backup, session, async (bucket) => {
        const { signal } = session;
        const stored = await new BackupArchive(bucket).openOf(backup, { signal });
        return volumesIn(await stored.volumeInfos({ signal }));
      });
      if (volume === undefined) await printVolumes(name, volumes, flags);
      else await look(named(volumes, volume, name), path, { flags, session, backup });
    });
  });
}

/**
 * If the user named the volume's namespace, the repository is known before the snapshot. Its key is
 * derived meanwhile. Errors are left to the code that opens it.
 */
async function withHeadStart(
  volume: string | undefined,
  backup: Run,
  session: Session,
  work: () => Promise<void>,
): Promise<void> {
  const volumeNamespace = volume?.includes('/') === true ? volume.split('/', 1).join() : '';
  const storageLocation = backup.spec?.storageLocation ?? '';
  if (volumeNamespace === '' || storageLocation === '') {
    await work();
    return;
  }
  const stop = new AbortController();
  const signal = AbortSignal.any([session.signal, stop.signal]);
  const place = { storageLocation, volumeNamespace };
  const ahead = deriveKeyOf(place, { ...session, signal }).catch(() => undefined);
  try {
    await work();
  } finally {
    stop.abort();
    await ahead;
  }
}

async function printVolumes(
  backup: string,
  volumes: readonly BrowsableVolume[],
  flags: BrowseFlags,
): Promise<void> {
  if (flags.json === true) {
    printJson(volumes.map(({ files, ...volume }) => ({ ...volume, ...files })));
  } else if (volumes.length === 0) {
    process.stderr.write(`longshore: backup ${backup} has no volumes\n`);
  } else {
    const rows = volumes.map(({ name, how, bytes, files }) => {
      const size = bytes === undefined ? '' : formatBytes(bytes);
      return [name, how, size, 'why' in files ? files.why : 'can be browsed'];
    });
    await printTable(['VOLUME', 'HOW', 'SIZE', 'FILES'], rows, { isWide: isWide(flags) });
  }
}

function named(
  volumes: readonly BrowsableVolume[],
  volume: string,
  backup: string,
): BrowsableVolume {
  const found = volumes.filter(
    ({ name }) => name === volume || name.slice(name.indexOf('/') + 1) === volume,
  );
  const [only] = found;
  if (found.length === 1 && only) return only;
  const which = found.map(({ name }) => name).join(', ');
  const text =
    found.length > 1
      ? `there are ${found.length} volumes "${volume}": ${which}`
      : `backup ${backup} has no volume "${volume}"; "longshore browse ${backup}" lists those that there are`;
  throw new CodedError('NO_VOLUME', text);
}

async function look(
  { name, files }: BrowsableVolume,
  path: string,
  how: {
    readonly flags: BrowseFlags;
    readonly session: Session;
    readonly backup: Run;
  },
): Promise<void> {
  const { flags, session, backup } = how;
  if ('why' in files) {
    throw new CodedError('NOT_BROWSABLE', `nobody can look into volume ${name}: ${files.why}`);
  }
  const { snapshotId, volumeNamespace } = files;
  const logger = await createLogger({ repo: '', ...flags });
  const storageLocation = backup.spec?.storageLocation ?? '';
  const place = { storageLocation, volumeNamespace };
  const { memoryLimit } = flags;
  await withOpenRepository(place, { ...session, logger, memoryLimit }, async (repository) => {
    const { signal } = session;
    const below = path.split('/').filter((part) => part !== '');
    const devices = new OpenDevices();
    const where = { volume: name, path: below, signal };
    const file = await findFile({ repository, devices }, snapshotId, where);
    for (const note of file.notes) say(`volume ${name}: ${note}`);
    if (flags.cat === true) {
      await writeBytesOf(file, `${name}:/${below.join('/')}`, signal);
    } else if (flags.tar === true) {
      const onLeftOut = (left: string): void => {
        say(`${left} is neither a file, a directory nor a symbolic link, and is left out`);
      };
      await writeAll(tarOf(file, { signal, onLeftOut }));
    } else await listEntries(file, flags, signal);
  });
}

function say(text: string): void {
  process.stderr.write(`longshore: ${printable(text)}\n`);
}

/** Throws `IS_A_DIRECTORY`, and errors of reading. */
async function writeBytesOf(file: VolumeFile, name: string, signal: AbortSignal): Promise<void> {
  if (file.entry.type === 'd' && file.deviceBytes === undefined) {
    throw new CodedError('IS_A_DIRECTORY', `${name} is a directory: use --tar`);
  }
  await writeAll(file.bytes(signal));
}

async function writeAll(parts: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const bytes of parts) {
    if (!isOutputOpen()) return;
    await writeOutput(bytes);
  }
}
