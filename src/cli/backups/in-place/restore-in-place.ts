import { setTimeout as sleep } from 'node:timers/promises';
import {
  describeMovements,
  inPlaceReportOf,
  inPlaceState,
  RecentRates,
  StatusFollower,
} from '../../../agent/index.ts';
import { BackupArchive } from '../../../archive/index.ts';
import { CodedError, isCanceled, isCode, messageOf } from '../../../base/index.ts';
import { inPlaceHindrance } from '../../../exposer/index.ts';
import {
  BACKUP_NAME,
  BACKUP_UID,
  DATA_DOWNLOADS,
  type DataDownload,
  hasVolumes,
  IN_PLACE_MOVER,
  inPlaceConfig,
  isMovementOver,
  isPassing,
  isRefusedForNow,
  isUnauthorized,
  judged,
  type NewObject,
  NOT_IN_BACKUPS,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
  SERVED_MOVERS,
  validLabel,
} from '../../../kube/index.ts';
import { type BrowsableVolume, volumesIn } from '../../browse/volumes.ts';
import type { ClusterFlags } from '../../cluster.ts';
import { stdoutTerminal } from '../../output/live-block.ts';
import { writeOutput } from '../../output/streams.ts';
import { maxWriteBytes } from '../../restore/in-place.ts';
import { printable, printJson, printLine } from '../../output/terminal.ts';
import { UsageError } from '../../usage-error.ts';
import { withBucketOf } from '../bucket.ts';
import { isLive } from '../colours.ts';
import { BACKUP, findNamed, phaseOf, type Run } from '../noun.ts';
import { type Session, withSession } from '../session.ts';
import { LiveWait, PlainWait, type WaitScreen } from '../wait-screen.ts';

export interface InPlaceVerbFlags extends ClusterFlags {
  dryRun?: boolean;
  keepExtra?: boolean;
  removeFirst?: boolean;
  deleteExcluded?: boolean;
  maxWrite?: string;
  wait?: boolean;
  json?: boolean;
}

/** Default of Velero's PVC action. */
const OPERATION_TIMEOUT = '10m0s';
/** The name and its suffix must fit into a label. */
const NAME_CHARS = 40;
const LOOK_EVERY_MS = 1000;
/** Node-agents claim a new CR within seconds. */
const TAKEN_UP_MS = 30_000;

/**
 * Restores the volume of a PVC in place. With `--wait` or `--dry-run` it shows progress and result.
 * Throws `UsageError`, `NO_BACKUP`, `NO_VOLUME`, `NOT_BROWSABLE`, `TARGET_UNUSABLE`,
 * `TARGET_IN_USE`, `NOT_COMPLETED`, and errors of the API server and the bucket.
 */
export async function restoreClaimInPlace(
  backupName: string,
  claim: string,
  flags: InPlaceVerbFlags,
): Promise<void> {
  const [namespace = '', name = '', ...rest] = claim.split('/');
  if (namespace === '' || name === '' || rest.length > 0) {
    throw new UsageError(`"${claim}" is not NAMESPACE/PVC`);
  }
  const mostBytes = maxWriteBytes(flags);
  await withSession(
    flags,
    async (session) => {
      const backup = await findNamed(BACKUP, backupName, session);
      const volume = await storedVolume(backup, claim, session);
      const found = await findClaim({ namespace, name }, session);
      const download = downloadOf({
        session,
        backup,
        volume,
        namespace,
        name,
        order: {
          dryRun: flags.dryRun === true,
          keepExtra: flags.keepExtra === true,
          removeFirst: flags.removeFirst,
          deleteExcluded: flags.deleteExcluded,
          maxWriteBytes: mostBytes,
          claimUid: found?.metadata.uid,
          volumeUid: await volumeUidOf(found, session),
        },
      });
      await assertUsable(download as DataDownload, session);
      const created = await session.client.create(DATA_DOWNLOADS, download);
      const shown = `DataDownload ${session.namespace}/${created.metadata.name}`;
      if (flags.json !== true) printLine(`${shown} is requested`);
      if (flags.wait !== true && flags.dryRun !== true) {
        if (flags.json === true) printJson({ dataDownload: created.metadata.name, volume: claim });
        else printLine(`see "longshore node-agent status", "kubectl -n ${session.namespace} get datadownload ${created.metadata.name} -o yaml"`); // prettier-ignore
        return;
      }
      const screen = flags.json === true ? silent : newScreen();
      tellEnd(await waitForEnd(created, screen, session), claim, flags);
    },
    'the wait ends',
  );
}

/** The volume in the backup. Throws `NOT_BROWSABLE`, `NO_VOLUME`. */
async function storedVolume(
  backup: Run,
  claim: string,
  session: Session,
): Promise<Extract<BrowsableVolume['files'], { snapshotId: string }> & { bytes: number }> {
  const { name } = backup.metadata;
  const phase = phaseOf(backup);
  if (!hasVolumes(phase)) {
    const text = `backup ${name} is ${phase}: only one whose volumes are all stored can be restored from`;
    throw new CodedError('NOT_BROWSABLE', text);
  }
  const volumes = await withBucketOf(BACKUP, backup, session, async (bucket) => {
    const { signal } = session;
    const stored = await new BackupArchive(bucket).openOf(backup, { signal });
    stored.assertTrusted(backup);
    return volumesIn(await stored.volumeInfos({ signal }));
  });
  const volume = volumes.find((each) => each.name === claim);
  if (!volume) {
    const text = `backup ${name} has no volume "${claim}"; "longshore browse ${name}" lists those that there are`;
    throw new CodedError('NO_VOLUME', text);
  }
  if ('why' in volume.files) {
    const text = `volume ${claim} cannot be restored in place: ${volume.files.why}`;
    throw new CodedError('NOT_BROWSABLE', text);
  }
  const { dataMover } = volume.files;
  if (!SERVED_MOVERS.has(dataMover)) {
    const text = `volume ${claim} was backed up by the data mover "${dataMover}": only its own agents can restore it, and not in place`;
    throw new CodedError('NOT_BROWSABLE', text);
  }
  return { ...volume.files, bytes: volume.bytes ?? 0 };
}

function downloadOf({
  session,
  backup,
  volume,
  namespace,
  name,
  order,
}: {
  readonly session: Session;
  readonly backup: Run;
  readonly volume: { snapshotId: string; volumeNamespace: string; bytes: number };
  readonly namespace: string;
  readonly name: string;
  readonly order: Parameters<typeof inPlaceConfig>[0];
}): NewObject<DataDownload> {
  const { name: backupName, uid } = backup.metadata;
  const short = name.slice(0, NAME_CHARS).replace(/[^a-z0-9]+$/, '');
  return {
    metadata: {
      generateName: `${short}-in-place-`,
      namespace: session.namespace,
      // No owner: Kubernetes would delete the CR with the Backup, and leave the volume half
      // written.
      labels: { ...NOT_IN_BACKUPS, [BACKUP_NAME]: validLabel(backupName), [BACKUP_UID]: uid },
    },
    spec: {
      targetVolume: { namespace, pvc: name, pv: '' },
      snapshotID: volume.snapshotId,
      ...(volume.bytes > 0 && { snapshotSize: volume.bytes }),
      sourceNamespace: volume.volumeNamespace,
      backupStorageLocation: backup.spec?.storageLocation ?? 'default',
      datamover: IN_PLACE_MOVER,
      operationTimeout: OPERATION_TIMEOUT,
      // Velero 1.19 requires it.
      restoreType: '',
      dataMoverConfig: inPlaceConfig(order),
    },
  };
}

/** Throws `KUBE_FORBIDDEN`: the PVC's UID is needed to protect a later PVC of this name. */
export async function findClaim(
  ref: { namespace: string; name: string },
  { client, signal }: Pick<Session, 'client' | 'signal'>,
): Promise<PersistentVolumeClaim | undefined> {
  try {
    return await client.find(PVCS, ref, { signal });
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const text = `a restore in place of PVC ${ref.namespace}/${ref.name} can be asked for only by who may read it (get persistentvolumeclaims): ${messageOf(error)}`;
    throw new CodedError('KUBE_FORBIDDEN', text, { cause: error });
  }
}

/** Undefined if it cannot be read. The restore then uses the PVC's volume at its start. */
async function volumeUidOf(
  claim: PersistentVolumeClaim | undefined,
  { client, signal }: Session,
): Promise<string | undefined> {
  const name = claim?.spec.volumeName ?? '';
  if (name === '') return undefined;
  try {
    return (await client.find(PVS, { name }, { signal }))?.metadata.uid;
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    return undefined;
  }
}

/** Reports problems at once; the agent checks again. Throws `TARGET_UNUSABLE`, `TARGET_IN_USE`. */
async function assertUsable(download: DataDownload, { client, signal }: Session): Promise<void> {
  let hindrance: CodedError | undefined;
  try {
    hindrance = await inPlaceHindrance(client, download, signal);
  } catch (error) {
    // The user needs the right to read the PVC, but not its volume and other pods.
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
  }
  if (hindrance) throw hindrance;
}

const silent: WaitScreen = { show: () => Promise.resolve() };
const newScreen = (): WaitScreen =>
  isLive()
    ? new LiveWait(stdoutTerminal)
    : new PlainWait((line) => writeOutput(`${printable(line)}\n`));

/** Throws `RUN_GONE`, and `CANCELED` after Ctrl-C, which does not stop the restore. */
async function waitForEnd(
  created: DataDownload,
  screen: WaitScreen,
  { client, namespace, signal }: Session,
): Promise<DataDownload> {
  const { name, uid } = created.metadata;
  const following = new AbortController();
  const follower = new StatusFollower({ client, namespace });
  const running = follower.run(following.signal);
  const rates = new RecentRates();
  const startMs = performance.now();
  const title = `DataDownload ${name}`;
  let latest = created;
  const find = judged(() => client.find(DATA_DOWNLOADS, { namespace, name }, { signal }), {
    only: isUnauthorized,
  });
  try {
    for (;;) {
      let away: string | undefined;
      try {
        const found = await find();
        if (found?.metadata.uid !== uid) {
          throw new CodedError('RUN_GONE', `${title} was deleted while it was waited for`);
        }
        latest = found;
      } catch (error) {
        signal.throwIfAborted();
        if (!isPassing(error) && !isRefusedForNow(error)) throw error;
        away = `the API server is away, and is waited for: ${messageOf(error)}`;
      }
      const phase = latest.status?.phase ?? 'New';
      const world = follower.look();
      const volumes = world && describeMovements(world, ({ metadata }) => metadata.uid === uid);
      if (volumes) rates.see(volumes, performance.now());
      const isWaiting = phase === 'New' && performance.now() - startMs > TAKEN_UP_MS;
      const note =
        away ?? (isWaiting ? 'no node-agent of Longshore has taken it up yet' : undefined);
      const items = { done: 0, total: 0 };
      await screen.show({ title, phase, items, volumes, rateOf: rates.of, note });
      if (isMovementOver(phase)) return latest;
      await sleep(LOOK_EVERY_MS, undefined, { signal });
    }
  } catch (error) {
    if (!signal.aborted || !isCanceled(error)) throw error;
    const text = `no longer waiting: ${title} goes on in the cluster; "longshore restore cancel ${name} -n ${namespace}" ends it`;
    throw new CodedError('CANCELED', text, { cause: error });
  } finally {
    following.abort();
    await running;
  }
}

/** Throws `NOT_COMPLETED`. */
function tellEnd(download: DataDownload, volume: string, { json }: InPlaceVerbFlags): void {
  const { metadata, status } = download;
  const { phase = 'New', message = '' } = status ?? {};
  const report = inPlaceReportOf(download);
  if (json === true) {
    printJson({ dataDownload: metadata.name, volume, phase, message, ...(report && { report }) });
  } else if (phase === 'Completed') {
    for (const line of report?.changes ?? []) printLine(printable(line));
    const left = changesOf(report) - (report?.changes.length ?? 0);
    if (left > 0) printLine(`... and ${left} more`);
    printLine(`${volume}: ${message}`);
  }
  if (phase === 'Completed') return;
  const state = phase === 'Canceled' ? inPlaceState(download) : 'no reason is noted';
  const why = message !== '' ? message : state;
  throw new CodedError(
    'NOT_COMPLETED',
    `the restore in place of ${volume} has ended as ${phase}: ${why}`,
  );
}

function changesOf(report: ReturnType<typeof inPlaceReportOf>): number {
  const { created = 0, changed = 0, replaced = 0, attributes = 0, removed = 0 } = report ?? {};
  return created + changed + replaced + attributes + removed;
}
