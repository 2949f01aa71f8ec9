import type { BackupVolumeInfo } from '../../../archive/index.ts';
import type { BackupLog, Results } from '../../../backup/index.ts';
import { isCode, lookup, mapLimited, messageOf } from '../../../base/index.ts';
import { countsOf, isAnyRunning, type Operation } from '../../../item-operations/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  type KubeClient,
  type PersistentVolumeClaim,
  phaseAfterRun,
  PVCS,
  type Restore,
  targetNamespace,
  VOLUME_SNAPSHOTS,
} from '../../../kube/index.ts';
import { inPlacePolicyOf, isInPlaceOperation } from '../../../plugin/index.ts';
import type { DoneItem, RestoreRunResult } from '../../../restore/index.ts';
import {
  POD_VOLUME_RESTORE_ACTION,
  type RestoredClaim,
  type RestoreInfoSources,
  type SkippedClaim,
} from '../../../restore-volumes/index.ts';
import type { ProvisionedClaim, RestoredPodVolume } from '../contract.ts';
import type { JournaledOperation } from './restore-journal.ts';

/** The status of a restore after its items, and the work that it leaves. */

/** Parallel lookups of objects. Our choice. */
const LOOKS_AT_ONCE = 8;

/** Like Go, leaves out zeros. */
export function statusAfterItems(
  { totalItems, itemsRestored }: Pick<RestoreRunResult, 'totalItems' | 'itemsRestored'>,
  { warningCount, errorCount }: Pick<Results, 'warningCount' | 'errorCount'>,
  operations: readonly Operation[],
): { readonly phase: string; readonly status: Readonly<Record<string, unknown>> } {
  return {
    phase: phaseAfterRun({ waiting: isAnyRunning(operations), partial: errorCount > 0 }),
    status: {
      progress: totalItems === 0 ? {} : { totalItems, itemsRestored },
      ...countFields({ warningCount, errorCount }, operations),
    },
  };
}

export function countFields(
  { warningCount, errorCount }: Pick<Results, 'warningCount' | 'errorCount'>,
  operations: readonly Operation[],
): Record<string, number> {
  const { attempted, completed, failed } = countsOf(operations);
  const all = {
    warnings: warningCount,
    errors: errorCount,
    restoreItemOperationsAttempted: attempted,
    restoreItemOperationsCompleted: completed,
    restoreItemOperationsFailed: failed,
  };
  return Object.fromEntries(Object.entries(all).filter(([, count]) => count > 0));
}

const PROVISIONED = ['PodVolumeBackup', 'CSISnapshot'];

/** Claims whose PersistentVolume gets the reclaim policy and labels of the old one. */
export function provisionedClaims(
  claims: readonly DoneItem[],
  infos: readonly BackupVolumeInfo[],
  restore: Restore,
): ProvisionedClaim[] {
  const idOf = (namespace: string, name: string): string => `${namespace}/${name}`;
  // If several namespaces map to one, the original claim is unknown.
  const byClaim = Map.groupBy(infos, ({ pvcNamespace = '', pvcName = '' }) =>
    idOf(targetNamespace(pvcNamespace, restore), pvcName),
  );
  return claims.flatMap(({ namespace, name, restoredAs = name }) => {
    const found = (byClaim.get(idOf(namespace, name)) ?? []).flatMap(
      ({ backupMethod = '', pvInfo }) =>
        PROVISIONED.includes(backupMethod) && pvInfo ? [{ backupMethod, pvInfo }] : [],
    );
    const [first, ...more] = found;
    if (!first) return [];
    const policies = found.map(({ pvInfo: { reclaimPolicy = '' } }) => reclaimPolicy);
    // Take `Retain` if any volume has it, and only labels that all volumes share.
    const reclaimPolicy = policies.includes('Retain') ? 'Retain' : (policies[0] ?? '');
    const labels = Object.entries(first.pvInfo.labels ?? {}).filter(([key, value]) =>
      more.every(({ pvInfo }) => lookup(pvInfo.labels, key) === value),
    );
    const { backupMethod } = first;
    return [
      {
        namespace,
        name: restoredAs,
        backupMethod,
        reclaimPolicy,
        labels: Object.fromEntries(labels),
      },
    ];
  });
}

/** Pod volumes that are restored from files and belong to claims. */
export const podVolumesOf = (operations: readonly JournaledOperation[]): RestoredPodVolume[] =>
  operations.flatMap(({ action, operationId, claim }) =>
    action === POD_VOLUME_RESTORE_ACTION && claim !== undefined
      ? [{ name: operationId, claim }]
      : [],
  );

/**
 * Claims with files according to the backup, as `namespace/name` in the backup. An empty volume has
 * no snapshot.
 */
const withNotedFiles = (infos: readonly BackupVolumeInfo[]): string[] =>
  infos.flatMap(({ backupMethod, pvbInfo, pvcNamespace = '', pvcName = '' }) =>
    backupMethod === 'PodVolumeBackup' && (pvbInfo?.snapshotHandle ?? '') !== '' && pvcName !== ''
      ? [`${pvcNamespace}/${pvcName}`]
      : [],
  );

/** Claims with moved data in the backup, as `namespace/name` in the cluster. */
const withMovedData = (infos: readonly BackupVolumeInfo[], restore: Restore): string[] =>
  infos.flatMap(
    ({ snapshotDataMoved, snapshotDataMovementInfo, pvcNamespace = '', pvcName = '' }) =>
      snapshotDataMoved === true && (snapshotDataMovementInfo?.snapshotHandle ?? '') !== ''
        ? [`${targetNamespace(pvcNamespace, restore)}/${pvcName}`]
        : [],
  );

/** Claims with a snapshot that stayed in the storage, as `namespace/name` in the cluster. */
const withKept = (infos: readonly BackupVolumeInfo[], restore: Restore): string[] =>
  infos.flatMap((info) =>
    leftDataOf(info) === 'snapshot'
      ? [`${targetNamespace(info.pvcNamespace ?? '', restore)}/${info.pvcName ?? ''}`]
      : [],
  );

/**
 * Reports claims that should get data of the backup but were created empty. Covers lost
 * PodVolumeBackups, kept snapshots that nothing used, and claims that existed at first but were
 * deleted before their turn. Also reports existing claims that were not restored in place.
 */
export function sayWhatIsEmpty(
  {
    claims,
    there,
    withFiles,
    infos,
    operations,
    restore,
  }: {
    readonly claims: readonly DoneItem[];
    /** Existing claims that should be restored in place. */
    readonly there: readonly Pick<DoneItem, 'namespace' | 'name'>[];
    /** `namespace/name` in the backup. */
    readonly withFiles: Iterable<string>;
    readonly infos: readonly BackupVolumeInfo[];
    readonly operations: readonly JournaledOperation[];
    readonly restore: Restore;
  },
  log: BackupLog,
): void {
  const filled = new Set(
    operations.flatMap(({ item, claim }) =>
      claim === undefined ? [] : [`${item.namespace}/${claim}`],
    ),
  );
  const idOf = ({ namespace, name }: { readonly namespace: string; readonly name: string }) =>
    `${namespace}/${name}`;
  const made = new Set(claims.map(idOf));
  const kept = new Set(there.map(idOf));
  const known = new Set(withFiles);
  // Operations report their own failures.
  const told = new Set(operations.filter(isOfClaim).map(({ item }) => idOf(item)));
  const noted = restore.spec.restorePVs === false ? [] : withNotedFiles(infos);
  for (const id of new Set([...known, ...noted])) {
    const [from = '', name = ''] = id.split('/');
    const namespace = targetNamespace(from, restore);
    const claim = `${namespace}/${name}`;
    if (filled.has(claim)) continue;
    if (kept.has(claim)) {
      told.add(claim);
      const text = `the files of PersistentVolumeClaim ${claim} are not restored: they come with their pod, and no pod that uses it was created by this restore. Delete the pod and restore it again, or use "longshore restore in-place"`;
      log.error(text, { resource: 'persistentvolumeclaims', namespace, name });
    }
    if (!made.has(claim)) continue;
    const why = known.has(id)
      ? 'since no pod that uses it was created by this restore: the claim is empty. Restore a pod that uses it as well'
      : 'since the PodVolumeBackups of the backup are neither in the cluster nor in its file: the claim is empty. Its files are in the repository, in a snapshot that the volume infos of the backup name';
    const text = `the files of PersistentVolumeClaim ${claim} are not restored, ${why}`;
    log.error(text, { resource: 'persistentvolumeclaims', namespace, name });
  }
  const begun = new Set(operations.map(({ item }) => `${item.resource} ${idOf(item)}`));
  for (const claim of restore.spec.restorePVs === false ? [] : withMovedData(infos, restore)) {
    if (!made.has(claim) || filled.has(claim) || begun.has(`persistentvolumeclaims ${claim}`)) {
      continue;
    }
    const [namespace = '', name = ''] = claim.split('/');
    const text = `the data of PersistentVolumeClaim ${claim} are not restored, and the claim is empty: nothing was asked to move them, as where another claim of its name was deleted meanwhile. Delete it and restore it again`;
    log.error(text, { resource: 'persistentvolumeclaims', namespace, name });
  }
  const snapped = new Set(restore.spec.restorePVs === false ? [] : withKept(infos, restore));
  for (const { namespace, name, isBare } of claims) {
    const claim = `${namespace}/${name}`;
    if (isBare !== true || !snapped.has(claim) || filled.has(claim)) continue;
    if (begun.has(`persistentvolumeclaims ${claim}`)) continue;
    const text = `the data of PersistentVolumeClaim ${claim} are not restored, and the claim is empty: it was not made from the snapshot in the backup. A server without --features=EnableCSI makes no claims from snapshots. Start it with that flag, delete the claim, and restore it again`;
    log.error(text, { resource: 'persistentvolumeclaims', namespace, name });
  }
  const left = there.filter((item) => !told.has(idOf(item)) && !filled.has(idOf(item)));
  sayWhatIsLeft(left, { infos, restore }, log);
}

const isOfClaim = ({ operationId }: JournaledOperation): boolean => isInPlaceOperation(operationId);

/** Reports existing claims whose volumes are unchanged, although no restore in place failed. */
function sayWhatIsLeft(
  claims: readonly Pick<DoneItem, 'namespace' | 'name'>[],
  { infos, restore }: { infos: readonly BackupVolumeInfo[]; restore: Restore },
  log: BackupLog,
): void {
  const withSnapshot = new Set(
    infos.flatMap(({ backupMethod, pvcNamespace = '', pvcName = '' }) =>
      backupMethod === 'NativeSnapshot'
        ? [`${targetNamespace(pvcNamespace, restore)}/${pvcName}`]
        : [],
    ),
  );
  for (const { namespace, name } of claims) {
    const claim = `${namespace}/${name}`;
    const about = { resource: 'persistentvolumeclaims', namespace, name };
    const text = `the volume of PersistentVolumeClaim ${claim}, which is there already, is as it was before this restore`;
    if (restore.spec.restorePVs === false) log.warn(`${text}: restorePVs is false`, about);
    else if (withSnapshot.has(claim)) {
      log.error(
        `${text}: the backup has a snapshot of it at its provider, and only data that were moved can be brought back in place`,
        about,
      );
    } else log.warn(`${text}: the backup has no data of it`, about);
  }
}

/** For an existing claim whose files would come through a pod that lacked them in the backup. */
export const leftFilesText = (claim: string, pod: string): string =>
  `the files of PersistentVolumeClaim ${claim} are not restored through pod ${pod}: the claim was there before, and the pod that they were backed up through is not made by this restore. To have them, restore again when neither the claim nor its pods are there`;

/** For each kind of backup data: why an existing claim does not get it. */
const LEFT_DATA = {
  moved: {
    what: 'data',
    hint: 'To replace its data, use --existing-volume-data-policy full. Or delete the claim and restore again',
  },
  snapshot: {
    what: 'data',
    hint: 'The backup has a snapshot that was not moved, and only a new claim can get it: delete the claim and restore again',
  },
  native: {
    what: 'data',
    hint: 'The backup has a snapshot of its provider, and only a new volume can get it: delete the claim and its PersistentVolume, and restore again',
  },
  files: {
    what: 'files',
    hint: 'They come with a pod, and this restore created no pod that uses the claim. Delete the pods that use it, or also the claim, and restore again',
  },
} as const;

function leftDataOf(info: BackupVolumeInfo): keyof typeof LEFT_DATA | undefined {
  if (info.result === 'failed' || info.skipped === true) return undefined;
  const moved = info.snapshotDataMovementInfo?.snapshotHandle ?? '';
  switch (info.backupMethod ?? '') {
    case 'NativeSnapshot':
      return 'native';
    case 'PodVolumeBackup':
      return (info.pvbInfo?.snapshotHandle ?? '') === '' ? undefined : 'files';
    case 'CSISnapshot':
      if (info.snapshotDataMoved !== true) return 'snapshot';
      return moved === '' ? undefined : 'moved';
    default:
      return undefined;
  }
}

/**
 * Warns about each existing claim whose data was not restored. Returns these claims for the volume
 * infos. Does nothing if the restore skips volumes or restores in place.
 */
export function sayWhatIsKept(
  {
    there,
    infos,
    withFiles,
    operations,
    restore,
    told,
  }: {
    readonly there: readonly Pick<DoneItem, 'namespace' | 'name'>[];
    readonly infos: readonly BackupVolumeInfo[];
    /** Claims with PodVolumeBackups, even without infos. `namespace/name` in the backup. */
    readonly withFiles: Iterable<string>;
    readonly operations: readonly JournaledOperation[];
    readonly restore: Restore;
    /** `namespace/name` of claims that already have such a warning in the log. */
    readonly told: ReadonlySet<string>;
  },
  log: BackupLog,
): SkippedClaim[] {
  if (restore.spec.restorePVs === false || inPlacePolicyOf(restore)) return [];
  const data = new Map<string, keyof typeof LEFT_DATA>();
  for (const id of withFiles) {
    const [from = '', name = ''] = id.split('/');
    data.set(`${targetNamespace(from, restore)}/${name}`, 'files');
  }
  for (const info of infos) {
    const { pvcNamespace = '', pvcName = '' } = info;
    const kind = leftDataOf(info);
    if (kind) data.set(`${targetNamespace(pvcNamespace, restore)}/${pvcName}`, kind);
  }
  const filled = new Set(
    operations.map(({ item, claim }) => `${item.namespace}/${claim ?? item.name}`),
  );
  return there.flatMap(({ namespace, name }) => {
    const claim = `${namespace}/${name}`;
    const kind = data.get(claim);
    if (kind === undefined || filled.has(claim)) return [];
    const { what, hint } = LEFT_DATA[kind];
    const text = `the ${what} of PersistentVolumeClaim ${claim} were not restored, because the claim exists. ${hint}`;
    if (!told.has(claim)) {
      log.warn(text, { resource: 'persistentvolumeclaims', namespace, name });
    }
    return [{ namespace, name, why: `the claim exists. ${hint}` }];
  });
}

export interface InfoOptions {
  readonly client: Pick<KubeClient, 'find' | 'list'>;
  readonly restore: Restore;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
}

/**
 * Claims and moved data of a restore in the cluster. Errors are a warning, and the result is empty.
 */
export async function restoredVolumes(
  claims: readonly DoneItem[],
  options: InfoOptions & { readonly operations: readonly JournaledOperation[] },
): Promise<Pick<RestoreInfoSources, 'claims' | 'downloads'>> {
  const { client, restore, log, signal, operations } = options;
  const broughtBack = operations.flatMap(({ operationId, item }) =>
    isInPlaceOperation(operationId) ? [item] : [],
  );
  try {
    const made = await mapLimited(claims, LOOKS_AT_ONCE, (claim) => claimNow(claim, options));
    const there = await mapLimited(broughtBack, LOOKS_AT_ONCE, ({ namespace, name }) =>
      client.find(PVCS, { namespace, name }, { signal }),
    );
    // Volumes restored in place have the data of the backup, so ignore their data source.
    const found = [...made, ...there.map((claim) => claim && { claim })];
    const { namespace, uid } = restore.metadata;
    const labelSelector = `velero.io/restore-uid=${uid}`;
    const downloads = await client
      .list(DATA_DOWNLOADS, { namespace, labelSelector, signal })
      .catch((error: unknown): DataDownload[] => {
        // A cluster without data movement has no such kind.
        if (isCode(error, 'KUBE_NOT_FOUND')) return [];
        throw error;
      });
    return { claims: found.filter((each) => each !== undefined), downloads };
  } catch (error) {
    signal.throwIfAborted();
    log.warn(`what was restored of volumes could not all be noted: ${messageOf(error)}`);
    return { claims: [], downloads: [] };
  }
}

async function claimNow(
  { namespace, name, restoredAs = name }: DoneItem,
  { client, signal }: InfoOptions,
): Promise<RestoredClaim | undefined> {
  const claim = await client.find(PVCS, { namespace, name: restoredAs }, { signal });
  if (!claim) return undefined;
  const { dataSource } = claim.spec as PersistentVolumeClaim['spec'] & {
    dataSource?: { kind?: string; name?: string } | null;
  };
  if (dataSource?.kind !== 'VolumeSnapshot') return { claim };
  const ref = { namespace, name: dataSource.name ?? '' };
  return { claim, snapshot: await client.find(VOLUME_SNAPSHOTS, ref, { signal }) };
}
