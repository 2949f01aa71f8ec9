import { createInterface } from 'node:readline/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  CodedError,
  isCanceled,
  isCode,
  mapLimited,
  messageOf,
  namedFirst,
} from '../../base/index.ts';
import {
  BACKUP_NAME,
  BACKUP_UID,
  DELETE_BACKUP_REQUESTS,
  isPassing,
  isRefusedForNow,
  isUnauthorized,
  judged,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  validLabel,
} from '../../kube/index.ts';
import { countOf } from '../output/numbers.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printable, printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';
import { BACKUP, type Noun } from './noun.ts';
import {
  assertNoneMissing,
  assertSelected,
  selected,
  type SelectFlags,
  selectorText,
} from './selected.ts';
import { type Session, withSession } from './session.ts';
import type { Schedule } from './create/specs.ts';

export interface DeleteFlags extends ClusterFlags, SelectFlags {
  confirm?: boolean;
  wait?: boolean;
}

interface Doomed {
  readonly name: string;
  readonly uid: string;
  /** A Schedule that sets itself as the owner of its next backups. */
  readonly isOwner: boolean;
}

const NAMES_MAX = 5;
const NAME_TRIES = 5;
const LOOK_EVERY_MS = 1000;
/**
 * The server may delete many backups one after another, but never needs this long for one answer.
 */
const WAIT_MS_MAX = 4 * 3_600_000;
const WORD_AFTER_MS = 60_000;

/** Throws `NO_BACKUP` (or of another kind), `NOT_CONFIRMED`, `NOT_DELETED` and `UsageError`. */
export async function deleteObjects(
  noun: Noun,
  names: readonly string[],
  flags: DeleteFlags,
): Promise<void> {
  assertSelected(noun, names, flags);
  selectorText(flags);
  const { word } = noun;
  await withSession(
    flags,
    async (session) => {
      const all = await selected(noun, names, flags, session, doomedOf);
      if (all.found.length === 0 && all.missing.length === 0) {
        process.stderr.write(`there is no ${word} to delete in namespace ${session.namespace}\n`);
        return;
      }
      if (all.found.length > 0) {
        await confirmed(questionOf(noun, all.found), flags, session.signal);
        await deleteAll(noun, all.found, flags, session);
      }
      assertNoneMissing(all);
    },
    'the wait ends',
  );
}

const doomedOf = ({ metadata: { name, uid }, ...object }: KubeObject): Doomed => ({
  name,
  uid,
  isOwner: (object as Partial<Schedule>).spec?.useOwnerReferencesInBackup === true,
});

function questionOf({ word }: Noun, doomed: readonly Doomed[]): string {
  const named = namedFirst(doomed, NAMES_MAX, ({ name }) => name);
  const what = `Delete ${countOf(doomed.length, `${word}s`)} (${named})`;
  switch (word) {
    case 'backup':
      return `${what}, with all that is stored of them and the restores made from them?`;
    case 'restore':
      return `${what}, with what is stored about them? What they restored stays.`;
    case 'schedule':
      return `${what}? Their backups stay.`;
  }
}

/** Continues after a failure. Requests all deletions first: the server chooses the order. */
async function deleteAll(
  noun: Noun,
  doomed: readonly Doomed[],
  flags: DeleteFlags,
  session: Session,
): Promise<void> {
  const { client, namespace, signal } = session;
  const { word, resource } = noun;
  const failures: string[] = [];
  const attempt = async ({ name }: Doomed, work: () => Promise<string>): Promise<void> => {
    try {
      printLine(await work());
    } catch (error) {
      signal.throwIfAborted();
      failures.push(`${word} ${name} is not deleted: ${messageOf(error)}`);
    }
  };
  const requested: (readonly [Doomed, KubeObject])[] = [];
  for (const each of doomed) {
    const { name, uid } = each;
    await attempt(each, async () => {
      if (word === 'backup') {
        requested.push([each, await requestDeletion(each, session)]);
        return `backup ${name} is to be deleted: the server removes what is stored of it first`;
      }
      const mayHaveBackups = word === 'schedule' && (await isWithBackups(each, session));
      // Deleting a Backup that is running would delete its stored files too.
      const keeping = mayHaveBackups ? ({ propagationPolicy: 'Orphan' } as const) : {};
      await client.delete(resource, { namespace, name }, { uid, signal, ...keeping });
      return `${word} ${name} ${word === 'restore' ? 'is to be deleted' : 'is deleted'}`;
    });
  }
  for (const [each, request] of flags.wait === true ? requested : []) {
    await attempt(each, async () => {
      await waitDeleted(each, request, session);
      return `backup ${each.name} is deleted`;
    });
  }
  const last = failures.pop();
  for (const text of failures) process.stderr.write(`longshore: ${printable(text)}\n`);
  if (last !== undefined) throw new CodedError('NOT_DELETED', last);
}

/** Releases the Backups of a Schedule. Returns whether there may be new or unreadable ones. */
async function isWithBackups(schedule: Doomed, session: Session): Promise<boolean> {
  try {
    return (await releaseBackups(schedule, session)) > 0 || schedule.isOwner;
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    return true;
  }
}

/** Same request as Velero's command line (v1.18.3: pkg/cmd/cli/backup/delete.go). */
async function requestDeletion(
  { name, uid }: Doomed,
  { client, namespace, signal }: Session,
): Promise<KubeObject> {
  const labels = {
    [BACKUP_NAME]: validLabel(name),
    [BACKUP_UID]: uid,
    ...NOT_IN_BACKUPS,
  };
  const request = {
    metadata: { namespace, generateName: `${name}-`, labels },
    spec: { backupName: name },
  } as unknown as NewObject<KubeObject>;
  for (let left = NAME_TRIES; ; left--) {
    try {
      return await client.create(DELETE_BACKUP_REQUESTS, request, { signal });
    } catch (error) {
      // The name generated by the API server already exists.
      if (left <= 1 || !isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
  }
}

/** Waits for the deletion or a failure, also through outages. Throws `NOT_DELETED`. */
async function waitDeleted(
  backup: Doomed,
  request: KubeObject,
  { client, namespace, signal }: Session,
): Promise<void> {
  const { name } = backup;
  const startMs = performance.now();
  let isTold = false;
  let said = '';
  const find = judged(
    async () => ({
      asked: await client.find(DELETE_BACKUP_REQUESTS, request.metadata, { signal }),
      there: await client.find(BACKUP.resource, { namespace, name }, { signal }),
    }),
    { only: isUnauthorized },
  );
  for (;;) {
    try {
      const { asked, there } = await find();
      const { phase, errors = [] } = statusOf(asked);
      if (phase === 'Processed' && errors.length > 0) {
        throw new CodedError('NOT_DELETED', errors.join('; '));
      }
      if (there?.metadata.uid !== backup.uid) return;
      const [waitsFor = ''] = errors;
      if (waitsFor !== said && waitsFor !== '') {
        said = waitsFor;
        const text = `backup ${name} is not deleted yet: ${waitsFor}`;
        process.stderr.write(`longshore: ${printable(text)}\n`);
      }
      const waitedMs = performance.now() - startMs;
      if (waitedMs > WAIT_MS_MAX) {
        const text = `it is not waited for any longer; its DeleteBackupRequest ${request.metadata.name} is ${phase || 'New'}`;
        throw new CodedError('NOT_DELETED', text);
      }
      if (!isTold && waitedMs > WORD_AFTER_MS && phase !== 'InProgress') {
        isTold = true;
        process.stderr.write(
          `longshore: no server has taken up the request to delete backup ${name} yet; does one run that deletes backups?\n`,
        );
      }
    } catch (error) {
      signal.throwIfAborted();
      if (!isPassing(error) && !isRefusedForNow(error)) throw error;
    }
    await sleep(LOOK_EVERY_MS, undefined, { signal });
  }
}

const statusOf = (request: KubeObject | undefined): { phase?: string; errors?: string[] } =>
  (request as { status?: { phase?: string; errors?: string[] } } | undefined)?.status ?? {};

/** Throws {@link UsageError} without a terminal, and `NOT_CONFIRMED` without a yes. */
async function confirmed(
  question: string,
  { confirm }: { confirm?: boolean },
  signal: AbortSignal,
): Promise<void> {
  if (confirm === true) return;
  if (!process.stdin.isTTY) throw new UsageError('give --confirm where nobody can be asked');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  // The end of the input counts as no.
  const closed = new Promise<string>((resolve) => {
    terminal.once('close', () => {
      // Ctrl-C also closes the terminal, and reports itself afterwards.
      setImmediate(resolve, '');
    });
  });
  try {
    const asked = terminal.question(`${printable(question)} [y/N] `, { signal });
    const said = await Promise.race([asked, closed]);
    if (/^y(es)?$/i.test(said.trim())) return;
  } catch (error) {
    if (!isCanceled(error)) throw error;
    process.stderr.write('\n');
    throw new CodedError('CANCELED', 'nothing was deleted', { cause: error });
  } finally {
    terminal.close();
  }
  throw new CodedError('NOT_CONFIRMED', 'nothing was deleted');
}

/** Concurrent requests, and maximum passes over all Backups. Our choices. */
const AT_ONCE = 8;
const LOOKS_MAX = 5;

/**
 * Removes a Schedule as the owner of its Backups (`useOwnerReferencesInBackup`), and returns their
 * number. The garbage collector would delete them with the Schedule. With the policy `Orphan` it
 * may still delete a Backup that it has not seen yet. Throws `BUSY_BACKUPS` if they keep changing,
 * and errors of the API server.
 */
export async function releaseBackups(
  { name, uid }: { readonly name: string; readonly uid: string },
  { client, namespace, signal }: Session,
): Promise<number> {
  const labelSelector = `velero.io/schedule-name=${validLabel(name)}`;
  const isOwned = ({ metadata }: KubeObject): boolean =>
    (metadata.ownerReferences ?? []).some((owner) => owner.uid === uid);
  for (let looks = 0, released = 0; looks < LOOKS_MAX; looks++) {
    const options = { namespace, labelSelector, signal };
    const owned = await client.collect(BACKUP.resource, options, (backup) =>
      isOwned(backup) ? [backup.metadata] : [],
    );
    if (owned.length === 0) return released;
    await mapLimited(owned, AT_ONCE, async (metadata) => {
      const { uid: backupUid, resourceVersion, ownerReferences = [] } = metadata;
      const others = ownerReferences.filter((owner) => owner.uid !== uid);
      const left = others.length > 0 ? others : null;
      const body = { metadata: { uid: backupUid, resourceVersion, ownerReferences: left } };
      try {
        await client.patch(BACKUP.resource, { namespace, name: metadata.name }, body, { signal });
        released++;
      } catch (error) {
        // The Backup changed or was deleted. The next pass handles it.
        if (!isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND')) throw error;
      }
    });
  }
  throw new CodedError(
    'BUSY_BACKUPS',
    'its backups, which belong to it, change all the time and would be deleted with it: try again later',
  );
}
