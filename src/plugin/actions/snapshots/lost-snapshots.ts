import { CodedError, isCode } from '../../../base/index.ts';
import {
  BACKUP_UID,
  DATA_UPLOADS,
  type DataUpload,
  isNew,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  waitFor,
} from '../../../kube/index.ts';
import { DELETED, phaseOf, purposeOf } from '../backup-phase.ts';
import { removeOrphanGroups } from './leftover-snapshots.ts';
import { patiently, placeOf, type Setting } from '../settings.ts';
import { Snapshots } from './snapshots.ts';

/** A Backup that was deleted before it ended. */
export interface LostBackup {
  /** Also the server's namespace. */
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}

export interface LostOptions {
  /** Also remove kept snapshots, because nothing of the backup was or will be stored. */
  readonly withKept: boolean;
  readonly signal: AbortSignal;
}

/** Kubernetes deletes dependents of a Backup within seconds, later if busy. Our choice. */
const UPLOADS_GONE_MS = 60_000;

/**
 * Removes the snapshots of a backup that was deleted before its end. An upload that no agent had
 * accepted is deleted with its Backup, and nothing else removes its snapshot. For an accepted
 * upload the agent removes the snapshot. Throws if some snapshots stay, so that the caller retries,
 * and the signal's reason.
 */
export async function removeLostSnapshots(
  setting: Setting,
  backup: LostBackup,
  { withKept, signal }: LostOptions,
): Promise<void> {
  const { namespace, name, uid } = backup;
  // The Backup exists after all, so the request is outdated.
  if ((await phaseOf(setting, { namespace, name }, uid, signal)) !== DELETED) return;
  const found = await snapshotsOf(setting, backup, signal);
  if (found.length > 0) {
    await untilTakenOrGone(setting, backup, signal);
    const snapshots = new Snapshots(setting);
    const left = await leftAmong(found, setting, backup, { withKept, signal });
    for (const each of left) {
      signal.throwIfAborted();
      await snapshots.removeUnchanged(each);
    }
    await assertRemoved(left, setting, backup, signal);
  }
  const sweep = { namespace, signal };
  await removeOrphanGroups(setting, new Snapshots(setting), sweep, `${BACKUP_UID}=${uid}`);
}

async function snapshotsOf(
  { client }: Setting,
  { namespace, name, uid }: LostBackup,
  signal: AbortSignal,
): Promise<VolumeSnapshot[]> {
  const labelSelector = `${BACKUP_UID}=${uid}`;
  let all: VolumeSnapshot[];
  try {
    all = await patiently(() => client.list(VOLUME_SNAPSHOTS, { labelSelector, signal }), signal);
  } catch (error) {
    // The cluster lacks the CRD of snapshots.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
  return all.filter((each) => {
    const isTaken = each.spec.source.persistentVolumeClaimName !== undefined;
    return isTaken && purposeOf(each, namespace)?.backup === name;
  });
}

async function uploadsOf(
  { client }: Setting,
  { namespace, uid }: LostBackup,
  signal: AbortSignal,
): Promise<DataUpload[]> {
  const scope = { namespace, labelSelector: `${BACKUP_UID}=${uid}`, signal };
  try {
    return await patiently(() => client.list(DATA_UPLOADS, scope), signal);
  } catch (error) {
    // The cluster lacks the CRD of DataUploads.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

async function untilTakenOrGone(
  setting: Setting,
  backup: LostBackup,
  signal: AbortSignal,
): Promise<void> {
  for (const upload of await uploadsOf(setting, backup, signal)) {
    if (!isNew(upload.status?.phase)) continue;
    const look = (now: DataUpload | undefined): true | undefined =>
      now?.metadata.uid === upload.metadata.uid && isNew(now.status?.phase) ? undefined : true;
    const { client } = setting;
    await waitFor(client, DATA_UPLOADS, upload.metadata, look, {
      signal,
      timeoutMs: UPLOADS_GONE_MS,
    });
  }
}

async function leftAmong(
  found: readonly VolumeSnapshot[],
  setting: Setting,
  backup: LostBackup,
  { withKept, signal }: LostOptions,
): Promise<VolumeSnapshot[]> {
  const uploads = await uploadsOf(setting, backup, signal);
  const moved = new Set(
    uploads.map(({ spec }) => `${spec.sourceNamespace}/${spec.csiSnapshot?.volumeSnapshot ?? ''}`),
  );
  return found.filter((each) => {
    if (each.metadata.deletionTimestamp !== undefined) return false;
    const isMoved = purposeOf(each, backup.namespace)?.isMoved === true;
    return isMoved ? !moved.has(placeOf(each)) : withKept;
  });
}

async function assertRemoved(
  left: readonly VolumeSnapshot[],
  { client }: Setting,
  { name }: LostBackup,
  signal: AbortSignal,
): Promise<void> {
  const stays: string[] = [];
  for (const { metadata } of left) {
    const now = await patiently(() => client.find(VOLUME_SNAPSHOTS, metadata, { signal }), signal);
    if (now?.metadata.uid !== metadata.uid) continue;
    if (now.metadata.deletionTimestamp === undefined) stays.push(placeOf(now));
  }
  const [first] = stays;
  if (first === undefined) return;
  const what = `${stays.length} VolumeSnapshots, such as ${first},`;
  const text = `${what} of the deleted backup ${name} could not be removed yet`;
  throw new CodedError('SNAPSHOT_STAYS', text, { retry: 'backoff' });
}
