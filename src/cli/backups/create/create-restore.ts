import { CodedError } from '../../../base/index.ts';
import {
  BACKUPS,
  isUsable,
  type KubeObject,
  type NewObject,
  validLabel,
} from '../../../kube/index.ts';
import { leftOutText, newestProven, ofSchedule, scheduleUidOf } from '../../../restore/index.ts';
import { printLine } from '../../output/terminal.ts';
import { createOne, printObject } from './create.ts';
import { BACKUP, findNamed, phaseOf, RESTORE, type Run } from '../noun.ts';
import { type Session, withSession } from '../session.ts';
import { type RestoreSpecFlags, readFlags } from './flag-values.ts';
import {
  assertName,
  assertRestoreFlags,
  bringsBack,
  notesOf,
  restoreSpecOf,
  timestampedName,
} from './specs.ts';
import { waitForEnd } from '../wait.ts';

/** Throws `UsageError`, `NO_BACKUP`, `ALREADY_THERE`, `NOT_COMPLETED`, and `KUBE_*` errors. */
export async function createRestore(name: string | undefined, given: object): Promise<void> {
  const flags = readFlags<RestoreSpecFlags>(given);
  assertRestoreFlags(flags);
  if (name !== undefined) assertName('Restore', name);
  const work = async (session: Session): Promise<void> => {
    const { client, namespace, signal } = session;
    const from = await sourceOf(flags, session);
    const nowMs = Number(client.clock.nowNs() / 1_000_000n);
    const awayMs = new Date(nowMs).getTimezoneOffset() * 60_000;
    // Velero uses local time in this name.
    const source = flags.fromSchedule || (flags.fromBackup ?? '');
    const own = name ?? timestampedName(source, nowMs - awayMs);
    assertName('Restore', own);
    const restore = {
      metadata: { namespace, name: own, ...notesOf(flags) },
      spec: restoreSpecOf({ ...flags, ...from }),
    };
    const isMade = flags.dryRun === true || flags.output === undefined;
    if (bringsBack(flags) && isMade) await assertKept(restore, session);
    if (flags.dryRun === true) {
      const { printRehearsal } = await import('../dry-run/print-rehearsal.ts');
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

/**
 * Checks by a dry run whether the API server keeps the fields for existing volumes. The definitions
 * of Velero 1.18 drop them silently, and the volumes would not be restored. Throws
 * `OLD_DEFINITION`.
 */
async function assertKept(
  restore: NewObject<KubeObject>,
  { client, signal }: Session,
): Promise<void> {
  const { spec: wanted } = restore as unknown as { spec: InPlaceSpec };
  const kept = await client.create(RESTORE.resource, restore, { signal, isDryRun: true });
  const { spec } = kept as unknown as { spec?: InPlaceSpec };
  const lost = [
    ...(spec?.existingVolumeDataPolicy === wanted.existingVolumeDataPolicy
      ? []
      : ['existingVolumeDataPolicy']),
    ...(wanted.uploaderConfig?.deleteExtraFiles === spec?.uploaderConfig?.deleteExtraFiles
      ? []
      : ['uploaderConfig.deleteExtraFiles']),
  ];
  if (lost.length === 0) return;
  const text = `the definition of Restores in this cluster does not know spec.${lost.join(' and spec.')}, and would drop it, so that volumes that are there were left alone; nothing was created. apply crds/server/velero.io_restores.yaml of this version, or run "longshore install", which brings it; and restores have to be made by "longshore server"`;
  throw new CodedError('OLD_DEFINITION', text);
}

interface InPlaceSpec {
  readonly existingVolumeDataPolicy?: string;
  readonly uploaderConfig?: { readonly deleteExtraFiles?: boolean };
}

type Source = Pick<RestoreSpecFlags, 'fromBackup' | 'fromSchedule'>;

/** Names the newest backup with `--allow-partially-failed`. Otherwise the server chooses it. */
async function sourceOf(
  { fromBackup = '', fromSchedule = '', allowPartiallyFailed }: RestoreSpecFlags,
  session: Session,
): Promise<Source> {
  if (fromBackup !== '') {
    await findNamed(BACKUP, fromBackup, session);
    return { fromBackup };
  }
  const { client, namespace, signal } = session;
  const labelSelector = `velero.io/schedule-name=${validLabel(fromSchedule)}`;
  const backups = await client.collect(BACKUPS, { namespace, labelSelector, signal }, (backup) => [
    { metadata: backup.metadata, phase: phaseOf(backup), startMs: startMsOf(backup) },
  ]);
  if (backups.length === 0) {
    const text = `there is no backup of a schedule "${fromSchedule}" in namespace ${namespace}; "longshore backup get -l ${labelSelector}" lists them`;
    throw new CodedError('NO_BACKUP', text);
  }
  if (allowPartiallyFailed !== true) return { fromSchedule };
  const usable = backups.filter(({ phase }) => isUsable(phase));
  const uid = await scheduleUidOf(client, { namespace, name: fromSchedule }, signal);
  const { newest, leftOut } = newestProven(ofSchedule(usable, uid), ({ startMs }) => startMs);
  if (newest && leftOut) {
    process.stderr.write(`warning: ${leftOutText(leftOut.metadata.name, newest.metadata.name)}\n`);
  }
  return newest ? { fromBackup: newest.metadata.name, fromSchedule: '' } : { fromSchedule };
}

const startMsOf = (backup: KubeObject): number => {
  const { startTimestamp } = (backup as Run).status ?? {};
  return startTimestamp ? Date.parse(startTimestamp) : 0;
};
