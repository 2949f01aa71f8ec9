import { CodedError, isCanceled, type Logger, messageOf } from '../../base/index.ts';
import { isWaitOver, WAIT_CONTAINER } from '../../exposer/index.ts';
import {
  isPodOver,
  type KubeClient,
  type Pod,
  POD_VOLUME_BACKUPS,
  PODS,
  type PodVolumeBackup,
  type PodVolumeRestore,
} from '../../kube/index.ts';
import type { Parents, StoredVolume } from '../../mover/index.ts';
import { askPatiently } from '../rights.ts';

/**
 * A page of PodVolumeBackups takes about 4 MB of memory, and all pages of a large cluster exceed a
 * data mover's memory. Above this number of pages, every file of the volume is read instead. Our
 * choice.
 */
const PAGE = 500;
const PAGES_MAX = 100;

/** Velero's labels on PodVolumeBackups of PVCs (pkg/apis/velero/v1/labels_annotations.go). */
const PVC_NAME = 'velero.io/pvc-name';
const PVC_UID = 'velero.io/pvc-uid';

export interface ClientPodOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** Time limit for the API server's answer. */
  readonly timeoutMs: number;
}

export interface ClientPodQuery extends ClientPodOptions {
  readonly when: 'before' | 'after';
  readonly task: 'backed up' | 'restored';
  readonly signal: AbortSignal;
}

/** Name of the volume in the path of its snapshots. */
export const volumeNameOf = ({ metadata, spec }: PodVolumeBackup): string =>
  metadata.annotations?.[PVC_NAME] || spec.volume;

/**
 * Reads the pod of the volume, before the first byte and after the last. Kubelet unmounts the
 * volumes of an ended pod, and an unmounted volume looks empty. Throws `POD_GONE`, or `POD_UNKNOWN`
 * if the API server does not answer.
 */
export async function loadClientPod(
  { spec }: PodVolumeBackup | PodVolumeRestore,
  { client, timeoutMs, when, task, signal }: ClientPodQuery,
): Promise<Pod> {
  const { namespace = '', name = '', uid } = spec.pod;
  let pod: Pod | undefined;
  try {
    pod = await askPatiently(() => client.find(PODS, { namespace, name }, { signal }), {
      timeoutMs,
      signal,
    });
  } catch (error) {
    if (signal.aborted || isCanceled(error)) throw error;
    const text = `cannot tell whether pod ${namespace}/${name} still has the volume: ${messageOf(error)}`;
    throw new CodedError('POD_UNKNOWN', text, { cause: error });
  }
  const isBackup = task === 'backed up';
  const trouble = troubleOf(pod, uid, isBackup);
  if (!trouble && pod) return pod;
  const time =
    when === 'before' ? `before its volume could be ${task}` : `while its volume was being ${task}`;
  const advice = isBackup
    ? 'no snapshot was saved, since volumes of such pods are unmounted; back it up again while the pod runs'
    : 'restore it again';
  const text = `pod ${namespace}/${name} ${trouble ?? ''} ${time}; ${advice}`;
  throw new CodedError('POD_GONE', text);
}

/** Why the volume cannot be moved any more; undefined if it can. */
function troubleOf(
  pod: Pod | undefined,
  uid: string | undefined,
  isBackup: boolean,
): string | undefined {
  if (!pod) return 'was deleted';
  if (uid && pod.metadata.uid !== uid) return 'was deleted and another pod got its name';
  // The phase changes late, when the volumes may already be unmounted.
  if (pod.metadata.deletionTimestamp !== undefined) return 'was deleted';
  const phase = pod.status?.phase ?? 'Unknown';
  if (isBackup) return phase === 'Running' ? undefined : `stopped running (it is ${phase})`;
  if (isPodOver(phase)) return `ended (it is ${phase})`;
  return isWaitOver(pod) ? `stopped waiting (container ${WAIT_CONTAINER} has ended)` : undefined;
}

/** Whether the volume comes from a PVC. A generic ephemeral volume also has a PVC. */
export const isOfClaimIn = ({ spec }: Pod, volume: string): boolean =>
  (spec.volumes ?? []).some(
    ({ name, persistentVolumeClaim, ephemeral }) =>
      name === volume && Boolean(persistentVolumeClaim ?? ephemeral),
  );

/** Name of the volume's PVC if it exists independently of the pod. */
export const lastingClaimIn = ({ spec }: Pod, volume: string): string | undefined =>
  (spec.volumes ?? []).find(({ name }) => name === volume)?.persistentVolumeClaim?.claimName;

/** The init container succeeds only after all its volumes have their marks. */
export async function hasFoundMarks(
  { spec }: PodVolumeRestore,
  { client, timeoutMs }: ClientPodOptions,
  signal: AbortSignal,
): Promise<boolean> {
  const { namespace = '', name = '', uid } = spec.pod;
  const find = (): Promise<Pod | undefined> => client.find(PODS, { namespace, name }, { signal });
  const pod = await askPatiently(find, { timeoutMs, signal });
  return pod !== undefined && (!uid || pod.metadata.uid === uid) && isWaitOver(pod);
}

/**
 * Earlier snapshots that may save work, as parents of a backup. Snapshots of the same PVC come from
 * any pod, newest first, because each pod of a Deployment has another name. `stored` are the
 * snapshots of the same path. They count unless a PodVolumeBackup shows that they are of another
 * volume. A recreated pod of a StatefulSet may have a new PVC, with different files of the same
 * size and time. Never fails: without parents every file is read.
 */
export async function loadParents(
  backup: PodVolumeBackup,
  pod: Pod,
  stored: readonly StoredVolume[],
  { client, logger }: ClientPodOptions,
  signal: AbortSignal,
): Promise<Parents> {
  const pvcUid = pvcUidOf(backup);
  let more: string[] = [];
  try {
    if (pvcUid) {
      const same: { readonly id: string; readonly timeMs: number }[] = [];
      await eachSibling(
        backup,
        { client, signal, labelSelector: `${PVC_UID}=${pvcUid}` },
        (other) => {
          const id = other.status?.snapshotID;
          if (id && isCompleted(other)) same.push({ id, timeMs: timeOf(other) });
        },
      );
      more = same.sort((a, b) => b.timeMs - a.timeMs).map(({ id }) => id);
    }
    const known = new Set(more);
    // The usual case. The early return avoids a list of all PodVolumeBackups.
    if (stored.every(({ id }) => known.has(id))) return { more };
    const named = new Set(stored.flatMap(({ id, uid }) => [id, uid ?? id]));
    /** Whether all PodVolumeBackups of a snapshot are of this volume; by their UID and its ID. */
    const verdicts = new Map<string, boolean>();
    let isMixed = sharesPath(backup, pod);
    await eachSibling(backup, { client, signal }, (other) => {
      const isSame = isSameVolume(other, backup);
      isMixed ||= isOnPath(other, backup) && !isSame;
      for (const name of [other.metadata.uid, other.status?.snapshotID]) {
        if (name === undefined || !named.has(name)) continue;
        verdicts.set(name, isSame && verdicts.get(name) !== false);
      }
    });
    return {
      more,
      isParent: ({ id, uid }) => {
        const of = [verdicts.get(id), uid === undefined ? undefined : verdicts.get(uid)];
        return !of.includes(false) && (of.includes(true) || !isMixed);
      },
    };
  } catch (error) {
    signal.throwIfAborted();
    logger.warn({ error: messageOf(error) }, 'earlier backups of the volume could not be listed');
    const known = new Set(more);
    return { more, isParent: ({ id }) => known.has(id) };
  }
}

/** Calls `see` for each earlier backup, one page in memory. Throws `TOO_MANY_BACKUPS`. */
async function eachSibling(
  backup: PodVolumeBackup,
  { client, ...query }: { client: KubeClient; signal: AbortSignal; labelSelector?: string },
  see: (other: PodVolumeBackup) => void,
): Promise<void> {
  const { namespace } = backup.metadata;
  // A separate function, so that its page can be garbage-collected while the next page loads.
  const seePage = async (from: string | undefined): Promise<string | undefined> => {
    const scope = { ...query, namespace, limit: PAGE, continue: from };
    const page = await client.listPage(POD_VOLUME_BACKUPS, scope);
    for (const other of page.items) if (isSibling(other, backup)) see(other);
    return page.continue;
  };
  let next: string | undefined;
  for (let pages = 0; pages < PAGES_MAX; pages++) {
    next = await seePage(next);
    if (next === undefined) return;
  }
  const text = `there are more than ${PAGES_MAX * PAGE} PodVolumeBackups in namespace ${namespace ?? ''}`;
  throw new CodedError('TOO_MANY_BACKUPS', text);
}

const pvcUidOf = ({ metadata }: PodVolumeBackup): string | undefined =>
  metadata.labels?.[PVC_UID] || undefined;

/** Whether the snapshots of both are recorded under one path. */
const isOnPath = (other: PodVolumeBackup, own: PodVolumeBackup): boolean =>
  other.spec.pod.name === own.spec.pod.name && volumeNameOf(other) === volumeNameOf(own);

/**
 * Whether both are of one volume, as far as the CRs show. A PVC has a UID; any other volume lives
 * as long as its pod.
 */
function isSameVolume(other: PodVolumeBackup, own: PodVolumeBackup): boolean {
  const [theirs, ours] = [pvcUidOf(other), pvcUidOf(own)];
  if (theirs !== undefined && ours !== undefined) return theirs === ours;
  if (other.spec.volume !== own.spec.volume) return false;
  const isOfPvc = [other, own].map(
    ({ metadata }) => metadata.annotations?.[PVC_NAME] !== undefined,
  );
  // A CR without the label was created by hand.
  if (isOfPvc[0] && isOfPvc[1]) return true;
  const [before, now] = [other.spec.pod.uid, own.spec.pod.uid];
  return isOfPvc[0] === isOfPvc[1] && theirs === ours && (!before || !now || before === now);
}

/** Whether another volume of the pod is recorded under the same path, with different files. */
function sharesPath(backup: PodVolumeBackup, { spec }: Pod): boolean {
  const own = volumeNameOf(backup);
  return (spec.volumes ?? []).some(
    ({ name, persistentVolumeClaim: claim }) =>
      name !== backup.spec.volume && (claim?.claimName ?? name) === own,
  );
}

const isCompleted = ({ status }: PodVolumeBackup): boolean => status?.phase === 'Completed';

/** A different backup into the same repository. */
const isSibling = (other: PodVolumeBackup, { metadata, spec }: PodVolumeBackup): boolean =>
  other.metadata.uid !== metadata.uid &&
  other.spec.backupStorageLocation === spec.backupStorageLocation &&
  other.spec.pod.namespace === spec.pod.namespace &&
  other.spec.uploaderType === spec.uploaderType;

const timeOf = ({ metadata, status }: PodVolumeBackup): number =>
  Date.parse(status?.startTimestamp ?? metadata.creationTimestamp ?? '') || 0;
