import { gunzipSync } from 'node:zlib';
import { RestoreArchive } from '../../../src/archive/index.ts';
import { restoreOperationSchema } from '../../../src/item-operations/index.ts';
import {
  CONFIG_MAPS,
  type KubeObject,
  NAMESPACES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  SECRETS,
} from '../../../src/kube/index.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import type { Loose } from '../objects.ts';
import type { SharedBucket } from '../servers/bucket.ts';
import type { World } from '../world.ts';
import { RESTORE } from './cluster.ts';

export const ACCOUNTS: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  kind: 'ServiceAccount',
  plural: 'serviceaccounts',
  namespaced: true,
};
/** What restores make that users work with. */
export const RESTORED: readonly Resource<KubeObject>[] = [
  ...([CONFIG_MAPS, SECRETS, ACCOUNTS, PVCS, PODS] as readonly Resource<KubeObject>[]),
];
/**
 * Velero's names (pkg/persistence/object_store_layout.go), of which a restore that has run has
 * each.
 */
const FILES = [
  `restore-${RESTORE}-logs.gz`,
  `restore-${RESTORE}-results.gz`,
  `restore-${RESTORE}-resource-list.json.gz`,
  `restore-${RESTORE}-itemoperations.json.gz`,
  `${RESTORE}-volumeinfo.json.gz`,
];

export interface Status {
  readonly phase?: string;
  readonly failureReason?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly completionTimestamp?: string;
  readonly restoreItemOperationsAttempted?: number;
  readonly restoreItemOperationsCompleted?: number;
  readonly restoreItemOperationsFailed?: number;
  readonly hookStatus?: { readonly hooksAttempted?: number; readonly hooksFailed?: number };
}

/** What a restore is in the end, without what differs from run to run. */
export interface End {
  readonly status: Status;
  /** By `Kind namespace/name`. */
  readonly objects: ReadonlyMap<string, string>;
  readonly errors: readonly string[];
  readonly warnings: readonly string[];
  readonly log: string;
  readonly resourceList: readonly string[];
  readonly operations: readonly string[];
  readonly operationPhases: readonly string[];
  readonly volumes: readonly string[];
  readonly missing: readonly string[];
}

/** Without knowing of versions, as Velero reads it. Throws where it cannot be read. */
export async function endOf(
  shared: SharedBucket,
  world: World,
  { uid, status, spaces }: { uid: string; status: Status; spaces: readonly string[] },
): Promise<End> {
  const bucket = new MemoryBucket();
  for (const [key, bytes] of shared.objects) bucket.objects.set(key, bytes);
  const archive = new RestoreArchive(bucket);
  const texts = (
    lists: Awaited<ReturnType<typeof archive.results>>['errors'] = {},
  ): readonly string[] =>
    [
      ...[...(lists.velero ?? []), ...(lists.cluster ?? [])],
      ...Object.entries(lists.namespaces ?? {}).flatMap(([space, all]) =>
        all.map((text) => `${space}: ${text}`),
      ),
    ]
      .map((text) => text.replaceAll(uid, 'UID'))
      .sort();
  const { errors, warnings } = await archive.results(RESTORE);
  const operations = await archive.loadItemOperations(RESTORE, restoreOperationSchema);
  const volumes = await archive.volumeInfos(RESTORE);
  const list = await archive.resourceList(RESTORE);
  const log = bucket.objects.get(`restores/${RESTORE}/restore-${RESTORE}-logs.gz`);
  return {
    status,
    objects: objectsOf(world, uid, spaces),
    errors: texts(errors),
    warnings: texts(warnings),
    log: log ? gunzipSync(log).toString() : '',
    resourceList: Object.entries(list).flatMap(([kind, names]) =>
      names.map((name) => `${kind} ${name}`),
    ),
    operations: operations
      .map(({ spec, status: { phase, error = '' } }) => {
        const { Namespace, Name } = spec.resourceIdentifier;
        return `${Namespace}/${Name} ${phase ?? ''} ${error}`;
      })
      .sort(),
    operationPhases: operations.map(({ status: { phase = '' } }) => phase),
    volumes: volumes
      .map(({ pvcNamespace = '', pvcName = '', pvName, restoreMethod, pvrInfo }) =>
        [pvcNamespace, pvcName, restoreMethod, pvrInfo?.Phase, pvName === undefined].join(' '),
      )
      .sort(),
    missing: FILES.filter((file) => !bucket.objects.has(`restores/${RESTORE}/${file}`)),
  };
}

function objectsOf(
  world: World,
  uid: string,
  spaces: readonly string[],
): ReadonlyMap<string, string> {
  const kinds = [...RESTORED, NAMESPACES];
  const found = kinds.flatMap((resource) =>
    world.store.list(resource).flatMap((object) => {
      const { namespace, name } = object.metadata;
      if (!spaces.includes(namespace ?? name)) return [];
      const text = formOf(object as unknown as Loose, world).replaceAll(uid, 'UID');
      return [[`${resource.kind} ${namespace ?? ''}/${name}`, text] as const];
    }),
  );
  return new Map(found);
}

/** Of a claim the volume is what is in it, and what its PersistentVolume has of the old one. */
function formOf(object: Loose, world: World): string {
  const { kind, metadata, spec, data, secrets } = object as Loose & Record<string, unknown>;
  const { labels, annotations, namespace = '', name } = metadata;
  const form: Record<string, unknown> = { labels, annotations, spec, data, secrets };
  if (kind === 'PersistentVolumeClaim') {
    const volume = world.find(PVS, String(spec.volumeName));
    const { tier } = volume?.metadata.labels ?? {};
    form.spec = {
      storageClassName: spec.storageClassName,
      tier,
      content: world.contentOf(namespace, name),
      policy: volume?.spec.persistentVolumeReclaimPolicy,
      phase: object.status?.phase,
    };
  }
  return JSON.stringify(form);
}
