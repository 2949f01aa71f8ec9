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
/** Kinds of restored objects that users work with. */
export const RESTORED: readonly Resource<KubeObject>[] = [
  ...([CONFIG_MAPS, SECRETS, ACCOUNTS, PVCS, PODS] as readonly Resource<KubeObject>[]),
];
/** Velero's files of a finished restore (pkg/persistence/object_store_layout.go). */
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

/** The end of a restore, without values that differ from run to run. */
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

/** Reads without versions, as Velero does. Throws for unreadable files. */
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

/** For a claim, the content of its volume, and labels of its PersistentVolume. */
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
