import {
  BackupArchive,
  MoverLogArchive,
  type MoverLogOwner,
  RestoreArchive,
} from '../../archive/index.ts';
import { CodedError, isCode, printable } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { isOutputOpen, writeOutput } from '../output/streams.ts';
import { withBucketOf } from './bucket.ts';
import type { KubeObject } from '../../kube/index.ts';
import { BACKUP, findNamed, type Noun, phaseOf, RESTORE, type Run } from './noun.ts';
import { withSession } from './session.ts';

const STARS = '*'.repeat(8);

/**
 * Prints the log of a backup or restore from its bucket, then the logs of its data movers. Throws
 * `NO_BACKUP`, `NO_RESTORE`, `NO_LOCATION`, `NO_LOGS`, and errors of the API server and the bucket.
 */
export async function printLogs(
  kind: MoverLogOwner['kind'],
  name: string,
  flags: ClusterFlags,
): Promise<void> {
  const noun = kind === 'Backup' ? BACKUP : RESTORE;
  await withSession(flags, async (session) => {
    const found = await findNamed(noun, name, session);
    assertBegun(noun, found);
    await withBucketOf(noun, found, session, async (bucket, location) => {
      if (await printAll(bucket, { kind, name }, { signal: session.signal })) return;
      const text = `there is no log of ${noun.word} ${name} in location ${location}, neither its own nor one of a data mover; its phase is ${phaseOf(found)}`;
      throw new CodedError('NO_LOGS', text);
    });
  });
}

/** Throws `NO_LOGS` if no log can exist, without a search in the bucket. */
function assertBegun({ word }: Noun, object: KubeObject): void {
  const { name } = object.metadata;
  const text = ((): string | undefined => {
    if (phaseOf(object) === 'FailedValidation') {
      return `it was refused before it began; "longshore ${word} describe ${name}" says why`;
    }
    return word === 'restore' && !(object as Run).spec?.backupName
      ? 'it has not begun, and no backup is chosen for it yet'
      : undefined;
  })();
  if (text !== undefined) {
    throw new CodedError('NO_LOGS', `there is no log of ${word} ${name}: ${text}`);
  }
}

/** Returns false if there is no log. An unreadable log does not stop the others. */
async function printAll(
  bucket: Bucket,
  owner: MoverLogOwner,
  options: SignalOptions,
): Promise<boolean> {
  const { kind, name } = owner;
  const archive = kind === 'Backup' ? new BackupArchive(bucket) : new RestoreArchive(bucket);
  const failures: unknown[] = [];
  let hasText = false;
  const shown = async (pieces: AsyncIterable<Uint8Array>): Promise<boolean> => {
    try {
      if (await print(pieces)) hasText = true;
    } catch (error) {
      options.signal?.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) return false;
      failures.push(error);
    }
    return true;
  };
  let isAny = await shown(archive.readLog(name, options));
  if (isAny && failures.length === 0 && !hasText && isOutputOpen()) {
    process.stderr.write(
      `the log of ${kind} ${name} is there, and empty: the --log-level of its server left nothing to write\n`,
    );
  }
  const logs = new MoverLogArchive(bucket);
  for (const volume of await logs.volumes(owner, options)) {
    if (!isOutputOpen()) break;
    await writeOutput(`${STARS} data movers of ${volumeWords(volume)} ${STARS}\n`);
    isAny = (await shown(logs.read(owner, volume, options))) || isAny;
  }
  if (failures.length > 0) throw failures[0];
  return isAny;
}

/** Returns whether there was any text. Escapes control characters of the untrusted bucket. */
async function print(pieces: AsyncIterable<Uint8Array>): Promise<boolean> {
  const decoder = new TextDecoder();
  let isLineOpen = false;
  let hasText = false;
  for await (const piece of pieces) {
    if (!isOutputOpen()) return hasText;
    const text = decoder.decode(piece, { stream: true });
    if (text === '') continue;
    hasText = true;
    isLineOpen = !text.endsWith('\n');
    await writeOutput(text.replaceAll(/[^\n\t]+/g, printable));
  }
  if (isLineOpen) await writeOutput('\n');
  return hasText;
}

/** `NAMESPACE.PVC`, or `NAMESPACE.POD_VOLUME`. Names of namespaces contain no dot. */
function volumeWords(volume: string): string {
  const dot = volume.indexOf('.');
  const namespace = volume.slice(0, dot);
  const [name = '', ofPod] = volume.slice(dot + 1).split('_');
  return ofPod === undefined
    ? `PVC ${namespace}/${name}`
    : `volume ${ofPod} of pod ${namespace}/${name}`;
}
