import { CodedError } from '../../base/index.ts';
import { BACKUPS, type KubeObject } from '../../kube/index.ts';
import { printLine } from '../terminal.ts';
import { createOne, printObject } from './create.ts';
import { BACKUP, findNamed, phaseOf, RESTORE, type Run } from './noun.ts';
import { type Session, withSession } from './session.ts';
import { type RestoreSpecFlags, readFlags } from './flag-values.ts';
import {
  assertName,
  assertRestoreFlags,
  notesOf,
  restoreSpecOf,
  timestampedName,
} from './specs.ts';
import { waitForEnd } from './wait.ts';

/** Throws `UsageError`, `NO_BACKUP`, `ALREADY_THERE`, `NOT_COMPLETED`, and what the API server throws. */
export async function createRestore(name: string | undefined, given: object): Promise<void> {
  const flags = readFlags<RestoreSpecFlags>(given);
  assertRestoreFlags(flags);
  if (name !== undefined) assertName('Restore', name);
  const work = async (session: Session): Promise<void> => {
    const { client, namespace, signal } = session;
    const from = await sourceOf(flags, session);
    const nowMs = Number(client.clock.nowNs() / 1_000_000n);
    const awayMs = new Date(nowMs).getTimezoneOffset() * 60_000;
    // Velero has the local time in this name.
    const source = flags.fromSchedule || (flags.fromBackup ?? '');
    const own = name ?? timestampedName(source, nowMs - awayMs);
    assertName('Restore', own);
    const restore = {
      metadata: { namespace, name: own, ...notesOf(flags) },
      spec: restoreSpecOf({ ...flags, ...from }),
    };
    if (flags.dryRun === true) {
      const { printRehearsal } = await import('./print-rehearsal.ts');
      await printRehearsal(restore, session, flags.output);
      return;
    }
    if (flags.output !== undefined) {
      await printObject(RESTORE.resource, restore, flags.output);
      return;
    }
    const created = await createOne(RESTORE, restore, session);
    printLine(`restore ${own} is requested`);
    if (flags.wait === true) await waitForEnd(RESTORE, created, session);
    else printLine(`see "longshore restore describe ${own}", "longshore restore logs ${own}"`);
    signal.throwIfAborted();
  };
  await withSession(flags, work, 'the wait ends');
}

type Source = Pick<RestoreSpecFlags, 'fromBackup' | 'fromSchedule'>;

/** With `--allow-partially-failed` the newest backup is named; otherwise the server finds the newest one that is complete. */
async function sourceOf(
  { fromBackup = '', fromSchedule = '', allowPartiallyFailed }: RestoreSpecFlags,
  session: Session,
): Promise<Source> {
  if (fromBackup !== '') {
    await findNamed(BACKUP, fromBackup, session);
    return { fromBackup };
  }
  const { client, namespace, signal } = session;
  const labelSelector = `velero.io/schedule-name=${fromSchedule}`;
  const backups = await client.collect(BACKUPS, { namespace, labelSelector, signal }, (backup) => [
    { name: backup.metadata.name, phase: phaseOf(backup), startMs: startMsOf(backup) },
  ]);
  if (backups.length === 0) {
    const text = `there is no backup of a schedule "${fromSchedule}" in namespace ${namespace}; "longshore backup get -l ${labelSelector}" lists them`;
    throw new CodedError('NO_BACKUP', text);
  }
  const usable = backups
    .filter(({ phase }) => phase === 'Completed' || phase === 'PartiallyFailed')
    .sort((a, b) => b.startMs - a.startMs);
  const [newest] = allowPartiallyFailed === true ? usable : [];
  return newest ? { fromBackup: newest.name, fromSchedule: '' } : { fromSchedule };
}

const startMsOf = (backup: KubeObject): number => {
  const { startTimestamp } = (backup as Run).status ?? {};
  return startTimestamp ? Date.parse(startTimestamp) : 0;
};
