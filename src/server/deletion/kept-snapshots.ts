import { createHash } from 'node:crypto';
import { CodedError, isCode, type Logger, mapLimited } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  CONTENT_FINALIZER,
  type KubeClient,
  type NewObject,
  NOT_IN_BACKUPS,
  type PersistentVolumeClaim,
  PVCS,
  RESTORE_NAME,
  untilHandleTold,
  validLabel,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
  waitFor,
} from '../../kube/index.ts';
import type { DeletionFailures } from './deletion-failures.ts';
import { type KeptSnapshot } from './snapshot-references.ts';
import { csiKey } from './snapshots-of-other-backups.ts';

export interface KeptOptions {
  readonly client: KubeClient;
  readonly backup: Backup;
  readonly attempts: DeletionFailures;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** Time limit for a driver to delete one snapshot. */
  readonly deletionMs?: number;
}

/** Drivers delete within seconds, or report an error. Our choice. */
const DELETION_MS = 60_000;
const AT_ONCE = 4;
/**
 * Thousands of snapshots of a removed driver would each use up the full time limit. After this many
 * failures in a row, the driver's other snapshots wait only briefly.
 */
const UNDONE_MAX = 8;
const BRIEF_PART = 40;
const GROUP = 'snapshot.storage.k8s.io';

/**
 * Deletes snapshots that CSI drivers hold for a backup. For each it creates a VolumeSnapshotContent
 * and deletes it (Velero v1.18.3: internal/delete/actions/csi/volumesnapshotcontent_action.go).
 * Velero does not check whether the driver deleted the snapshot; this function waits for it and
 * reports errors.
 */
export async function deleteKept(
  snapshots: readonly KeptSnapshot[],
  options: KeptOptions,
): Promise<void> {
  const { deletionMs = DELETION_MS } = options;
  /** Failures in a row, by driver. */
  const undone = new Map<string, number>();
  await mapLimited(snapshots, AT_ONCE, async (snapshot) => {
    const { driver, handle } = snapshot;
    const what = `error deleting snapshot ${handle} of CSI driver ${driver}`;
    await options.attempts.attempt(what, async () => {
      const count = undone.get(driver) ?? 0;
      const waitMs = count >= UNDONE_MAX ? deletionMs / BRIEF_PART : deletionMs;
      try {
        await deleteOne(snapshot, waitMs, options);
        undone.delete(driver);
      } catch (error) {
        // Other snapshots may have changed the count during the wait.
        const now = undone.get(driver) ?? 0;
        if (isCode(error, 'SNAPSHOT_NOT_DELETED')) undone.set(driver, now + 1);
        throw error;
      }
    });
  });
}

/** Users of snapshots in the cluster, as `namespace/name` by the key of the snapshot. */
export interface SnapshotUsers {
  /** VolumeSnapshots of a user or of another backup. */
  readonly used: ReadonlyMap<string, string>;
  /** Restored PVCs without a volume. They get their data from the snapshot. */
  readonly awaited: ReadonlyMap<string, string>;
}

/**
 * Finds users of these snapshots. VolumeSnapshots of this backup do not count, and those of
 * restores only while a PVC waits for them.
 */
export async function snapshotsInUse(
  snapshots: readonly KeptSnapshot[],
  { client, backup, signal }: Pick<KeptOptions, 'client' | 'backup' | 'signal'>,
): Promise<SnapshotUsers> {
  const used = new Map<string, string>();
  const awaited = new Map<string, string>();
  if (snapshots.length === 0) return { used, awaited };
  const wanted = new Set(snapshots.map(({ driver, handle }) => csiKey(driver, handle)));
  const bound = await client
    .collect(VOLUME_SNAPSHOT_CONTENTS, { signal }, ({ metadata, spec, status }) => {
      const key = csiKey(spec.driver, status?.snapshotHandle ?? spec.source.snapshotHandle ?? '');
      const isLiving = metadata.deletionTimestamp === undefined;
      return isLiving && wanted.has(key) ? [{ key, of: spec.volumeSnapshotRef }] : [];
    })
    .catch((error: unknown) => {
      if (isCode(error, 'KUBE_NOT_FOUND')) return [];
      throw error;
    });
  for (const { key, of } of bound) {
    const { namespace = '', name = '' } = of;
    if (namespace === '' || name === '') continue;
    // The role of a server that only deletes backups allows list, but not get.
    const fieldSelector = `metadata.name=${name}`;
    const [found] = await client.list(VOLUME_SNAPSHOTS, { namespace, fieldSelector, signal });
    const { uid, labels = {}, deletionTimestamp } = found?.metadata ?? {};
    if (uid === undefined || uid !== of.uid || deletionTimestamp !== undefined) continue;
    if (labels[RESTORE_NAME] !== undefined) {
      const [claim] = await waitingClaims(client, { namespace, name }, signal);
      if (claim !== undefined) awaited.set(key, `${namespace}/${claim}`);
      continue;
    }
    if (labels[BACKUP_NAME] === validLabel(backup.metadata.name)) continue;
    used.set(key, `${namespace}/${name}`);
  }
  return { used, awaited };
}

/** Names of pending PVCs that get their volume from a VolumeSnapshot. */
async function waitingClaims(
  client: KubeClient,
  { namespace, name }: { readonly namespace: string; readonly name: string },
  signal: AbortSignal,
): Promise<string[]> {
  const isWaiting = ({ spec, status }: PersistentVolumeClaim): boolean =>
    (status?.phase ?? 'Pending') === 'Pending' &&
    spec.dataSource?.kind === 'VolumeSnapshot' &&
    spec.dataSource.name === name;
  try {
    return await client.collect(PVCS, { namespace, signal }, (claim) =>
      isWaiting(claim) ? [claim.metadata.name] : [],
    );
  } catch (error) {
    // A server that only makes and deletes backups may lack this right.
    if (isCode(error, 'KUBE_FORBIDDEN')) return [];
    throw error;
  }
}

async function deleteOne(
  { driver, handle, annotations, volumeMode }: KeptSnapshot,
  waitMs: number,
  { client, backup, logger, assertLeading, signal }: KeptOptions,
): Promise<void> {
  const { uid: backupUid, name: backupName } = backup.metadata;
  // The name is derived, so a second attempt finds the first content.
  const hash = createHash('sha256').update(`${backupUid} ${driver} ${handle}`).digest('hex');
  const name = `velero-delete-${hash.slice(0, 20)}`;
  const wanted: NewObject<VolumeSnapshotContent> = {
    metadata: {
      name,
      annotations,
      finalizers: [CONTENT_FINALIZER],
      labels: NOT_IN_BACKUPS,
    },
    spec: {
      deletionPolicy: 'Delete',
      driver,
      source: { snapshotHandle: handle },
      ...(volumeMode !== undefined && { sourceVolumeMode: volumeMode }),
      volumeSnapshotRef: {
        apiVersion: `${GROUP}/v1`,
        kind: 'VolumeSnapshot',
        namespace: `ns-${name}`,
        name,
      },
    },
  };
  assertLeading();
  const content = await made(client, wanted, signal);
  if (content) await untilHandleTold(client, content, { signal, atMostMs: waitMs });
  assertLeading();
  await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name }, { signal });
  let told = '';
  const isGone = (now: VolumeSnapshotContent | undefined): true | undefined => {
    told = now?.status?.error?.message ?? told;
    return now ? undefined : true;
  };
  try {
    const wait = { signal, timeoutMs: waitMs };
    await waitFor(client, VOLUME_SNAPSHOT_CONTENTS, { name }, isGone, wait);
  } catch (cause) {
    if (!isCode(cause, 'WAIT_TIMEOUT')) throw cause;
    const why = told === '' ? 'look at its Events and at the log of the csi-snapshotter' : told;
    const text = `it is still in the storage: VolumeSnapshotContent ${name} is not deleted (${why}); it goes when the driver can delete it`;
    throw new CodedError('SNAPSHOT_NOT_DELETED', text, { cause });
  }
  logger.info(
    { backup: backupName, driver, snapshot: handle },
    'a snapshot of a CSI driver was deleted',
  );
}

/** Returns the content of an earlier attempt if it exists. Undefined if it just vanished. */
async function made(
  client: KubeClient,
  wanted: NewObject<VolumeSnapshotContent>,
  signal: AbortSignal,
): Promise<VolumeSnapshotContent | undefined> {
  try {
    return await client.create(VOLUME_SNAPSHOT_CONTENTS, wanted, { signal });
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) throw noKind(error);
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    const fieldSelector = `metadata.name=${wanted.metadata.name ?? ''}`;
    const [found] = await client.list(VOLUME_SNAPSHOT_CONTENTS, { fieldSelector, signal });
    return found;
  }
}

const noKind = (cause: unknown): CodedError =>
  new CodedError(
    'NO_SNAPSHOT_KIND',
    'this cluster has no VolumeSnapshotContents, by which a driver is told to delete: install the CustomResourceDefinitions and the snapshot controller of CSI, and delete the backup again',
    { cause },
  );

/**
 * Deletes VolumeSnapshots that the run of a backup left in the cluster, with their data in the
 * storage. No tarball lists them. VolumeSnapshots of restores stay, because users own them.
 */
export async function deleteLeftSnapshots(options: KeptOptions): Promise<void> {
  const { client, backup, attempts, signal } = options;
  const { name, uid } = backup.metadata;
  const labelSelector = `${BACKUP_NAME}=${validLabel(name)}`;
  const found = await attempts.attempt('error deleting CSI snapshots', () =>
    listed(client, labelSelector, signal),
  );
  const left = (found ?? []).filter(({ metadata: { labels = {} } }) => {
    return labels[RESTORE_NAME] === undefined && (labels[BACKUP_UID] ?? uid) === uid;
  });
  const contents = await attempts.attempt('error deleting CSI snapshots', () =>
    contentsOf(left, client, signal),
  );
  if (!contents) return;
  for (const snapshot of left) {
    const { namespace = '', name: snapshotName, uid: snapshotUid } = snapshot.metadata;
    const what = `error deleting VolumeSnapshot ${namespace}/${snapshotName}`;
    await attempts.attempt(what, () => deleteLeft(snapshot, contents.get(snapshotUid), options));
  }
}

/**
 * Names of contents by the UID of the bound VolumeSnapshot. The status of a VolumeSnapshot is no
 * proof: users of its namespace can write the name of a foreign content into it.
 */
async function contentsOf(
  snapshots: readonly VolumeSnapshot[],
  client: KubeClient,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, string>> {
  if (snapshots.length === 0) return new Map();
  const uids = new Set(snapshots.map(({ metadata }) => metadata.uid));
  const found = await client.collect(
    VOLUME_SNAPSHOT_CONTENTS,
    { signal },
    ({ metadata, spec }): [string, string][] => {
      const { uid = '' } = spec.volumeSnapshotRef;
      return uids.has(uid) ? [[uid, metadata.name]] : [];
    },
  );
  return new Map(found);
}

async function listed(
  client: KubeClient,
  labelSelector: string,
  signal: AbortSignal,
): Promise<VolumeSnapshot[]> {
  try {
    return await client.list(VOLUME_SNAPSHOTS, { labelSelector, signal });
  } catch (error) {
    // Most clusters without CSI lack this kind.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

async function deleteLeft(
  { metadata: { namespace, name, uid } }: VolumeSnapshot,
  content: string | undefined,
  { client, assertLeading, signal }: KeptOptions,
): Promise<void> {
  assertLeading();
  if (content !== undefined) {
    const patch = { spec: { deletionPolicy: 'Delete' } };
    try {
      await client.patch(VOLUME_SNAPSHOT_CONTENTS, { name: content }, patch, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }
  await client.delete(VOLUME_SNAPSHOTS, { namespace, name }, { uid, signal });
}
