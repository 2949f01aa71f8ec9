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

/** What a restore says of itself after its items, and what it leaves to others. */

/** Objects that are looked up at once. Our choice. */
const LOOKS_AT_ONCE = 8;

/** Go leaves out zeros. */
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

/** Claims whose PersistentVolume gets what the old one had. */
export function provisionedClaims(
  claims: readonly DoneItem[],
  infos: readonly BackupVolumeInfo[],
  restore: Restore,
): ProvisionedClaim[] {
  const idOf = (namespace: string, name: string): string => `${namespace}/${name}`;
  // Of several namespaces that are mapped to one, nobody knows which one's claim was made.
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
    // The one that keeps what is in the volume, and the labels that all have.
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

/** Volumes of pods that are restored by their files, and are ones of claims. */
export const podVolumesOf = (operations: readonly JournaledOperation[]): RestoredPodVolume[] =>
  operations.flatMap(({ action, operationId, claim }) =>
    action === POD_VOLUME_RESTORE_ACTION && claim !== undefined
      ? [{ name: operationId, claim }]
      : [],
  );

/**
 * Claims whose files the backup says it has, as `namespace/name` in the backup. An empty volume has
 * no snapshot.
 */
const withNotedFiles = (infos: readonly BackupVolumeInfo[]): string[] =>
  infos.flatMap(({ backupMethod, pvbInfo, pvcNamespace = '', pvcName = '' }) =>
    backupMethod === 'PodVolumeBackup' && (pvbInfo?.snapshotHandle ?? '') !== '' && pvcName !== ''
      ? [`${pvcNamespace}/${pvcName}`]
      : [],
  );

/** Claims whose data the backup has moved, as `namespace/name` in the cluster. */
const withMovedData = (infos: readonly BackupVolumeInfo[], restore: Restore): string[] =>
  infos.flatMap(
    ({ snapshotDataMoved, snapshotDataMovementInfo, pvcNamespace = '', pvcName = '' }) =>
      snapshotDataMoved === true && (snapshotDataMovementInfo?.snapshotHandle ?? '') !== ''
        ? [`${targetNamespace(pvcNamespace, restore)}/${pvcName}`]
        : [],
  );

/**
 * Says which claims would get data of the backup, and were made without any: also where its
 * PodVolumeBackups are lost, and where a claim that was there, so that its data were left alone,
 * had gone when it was made. Of claims that were there it says so where they were to be brought
 * back.
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
    /** Claims of the backup that the cluster had already, and that were to be brought back. */
    readonly there: readonly Pick<DoneItem, 'namespace' | 'name'>[];
    /** `namespace/name` in the backup. */
    readonly withFiles: Iterable<string>;
    /** Of the backup. */
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
  // Those of operations are told by them.
  const told = new Set(operations.filter(isOfClaim).map(({ item }) => idOf(item)));
  for (const id of new Set([...known, ...withNotedFiles(infos)])) {
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
  const left = there.filter((item) => !told.has(idOf(item)) && !filled.has(idOf(item)));
  sayWhatIsLeft(left, { infos, restore }, log);
}

const isOfClaim = ({ operationId }: JournaledOperation): boolean => isInPlaceOperation(operationId);

/**
 * Of claims that were to be brought back: whose volumes are as they were before, although nothing
 * failed.
 */
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

/**
 * A claim that exists, whose files would come through a pod that did not have them in the backup.
 */
export const leftFilesText = (claim: string, pod: string): string =>
  `the files of PersistentVolumeClaim ${claim} are not restored through pod ${pod}: the claim was there before, and the pod that they were backed up through is not made by this restore. To have them, restore again when neither the claim nor its pods are there`;

/**
 * Ways in which a backup has the data of a volume, and why a claim that exists does not get them.
 */
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
 * Warns about each existing claim whose data the backup has and the restore left alone. Returns
 * these claims for the volume infos. Says nothing if the restore leaves out volumes, or restores
 * existing ones in place.
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
    /** `namespace/name` in the backup: claims with PodVolumeBackups, also if no info names them. */
    readonly withFiles: Iterable<string>;
    readonly operations: readonly JournaledOperation[];
    readonly restore: Restore;
    /** `namespace/name` of claims that the log has such a warning of. */
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
 * What the cluster has of the claims and the moved data of a restore. What cannot be asked for is a
 * warning, and missing.
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
    // Whatever those were made from once, their data are those of the backup.
    const found = [...made, ...there.map((claim) => claim && { claim })];
    const { namespace, uid } = restore.metadata;
    const labelSelector = `velero.io/restore-uid=${uid}`;
    const downloads = await client
      .list(DATA_DOWNLOADS, { namespace, labelSelector, signal })
      .catch((error: unknown): DataDownload[] => {
        // A cluster where no data are moved has no such kind.
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
