import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  BackupArchive,
  type BackupVolumeInfo,
  Contents,
  type NewTarEntry,
  storeTarball,
} from '../../../src/archive/index.ts';
import type { Bucket } from '../../../src/blob/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';

export interface StoredItem {
  readonly type: string;
  readonly object: KubeObject;
}

export interface BackupToPut {
  readonly spec?: object;
  readonly volumeInfos?: readonly BackupVolumeInfo[];
  readonly podVolumeBackups?: readonly KubeObject[];
  /** Files of the tarball beside those of items. */
  readonly raw?: Readonly<Record<string, string>>;
  readonly directory: string;
  readonly uid?: string;
  readonly creationTimestamp?: string;
}

const VERSIONS: Record<string, string> = {
  deployments: 'apps/v1',
  replicasets: 'apps/v1',
  jobs: 'batch/v1',
  customresourcedefinitions: 'apiextensions.k8s.io/v1',
  things: 'stable.example.com/v1',
  gadgets: 'new.example.com/v1',
  priorityclasses: 'scheduling.k8s.io/v1',
  datauploads: 'velero.io/v2alpha1',
};
const KINDS: Record<string, string> = {
  configmaps: 'ConfigMap',
  customresourcedefinitions: 'CustomResourceDefinition',
  datauploads: 'DataUpload',
  deployments: 'Deployment',
  gadgets: 'Gadget',
  jobs: 'Job',
  namespaces: 'Namespace',
  persistentvolumeclaims: 'PersistentVolumeClaim',
  persistentvolumes: 'PersistentVolume',
  pods: 'Pod',
  priorityclasses: 'PriorityClass',
  replicasets: 'ReplicaSet',
  secrets: 'Secret',
  serviceaccounts: 'ServiceAccount',
  services: 'Service',
  things: 'Thing',
};

/**
 * An object in a backup, with the fields that its API server had set. `id`: `namespace/name`, or a
 * name.
 */
export function stored(type: string, id: string, more: object = {}): StoredItem {
  const plural = type.split('.')[0] ?? '';
  const [first = '', second] = id.split('/');
  const place = second === undefined ? { name: first } : { namespace: first, name: second };
  const { metadata, ...rest } = more as { metadata?: object };
  const object = {
    apiVersion: VERSIONS[plural] ?? 'v1',
    kind: KINDS[plural] ?? plural,
    metadata: {
      ...place,
      uid: `old-${id.replace('/', '.')}`,
      resourceVersion: '77',
      creationTimestamp: '2025-01-01T00:00:00Z',
      ...metadata,
    },
    ...rest,
  };
  return { type, object: object };
}

/** The tarball of a backup. `raw`: text by path, for files that are no items. */
export const entriesOf = (
  items: readonly StoredItem[],
  raw: Readonly<Record<string, string>> = {},
): NewTarEntry[] => [
  ...items.map(({ type, object }) => {
    const { namespace = '', name } = object.metadata;
    const scope = namespace === '' ? 'cluster' : `namespaces/${namespace}`;
    const bytes = Buffer.from(JSON.stringify(object));
    return { path: `resources/${type}/${scope}/${name}.json`, bytes, mtime: 0 };
  }),
  ...Object.entries(raw).map(([path, text]) => ({ path, bytes: Buffer.from(text), mtime: 0 })),
];

/**
 * The files of a completed backup `b1` in the bucket, as a server puts them. `directory`: scratch
 * space.
 */
export async function putBackup(
  bucket: Bucket,
  items: readonly StoredItem[],
  {
    volumeInfos = [],
    podVolumeBackups = [],
    raw = {},
    spec = {},
    directory,
    ...named
  }: BackupToPut,
): Promise<void> {
  await using contents = await storeTarball(directory, each(entriesOf(items, raw)));
  await new BackupArchive(bucket).put('b1', {
    contents,
    volumeInfos,
    podVolumeBackups,
    itemOperations: [],
    volumeSnapshots: [],
    resourceList: {},
    results: {},
    metadata: {
      apiVersion: 'velero.io/v1',
      kind: 'Backup',
      metadata: { name: 'b1', namespace: 'velero', uid: 'backup-uid', ...named },
      spec: { storageLocation: 'default', ...spec },
      status: { phase: 'Completed' },
    },
  });
}

/** The contents of a backup, through its tarball, as a restore gets them. */
export async function contentsOf(
  items: readonly StoredItem[],
  raw: Readonly<Record<string, string>> = {},
): Promise<Contents> {
  const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-restore-'));
  try {
    await using file = await storeTarball(directory, each(entriesOf(items, raw)));
    return await Contents.open(file.read(), 'a backup', { directory });
  } finally {
    await fs.rm(directory, { recursive: true, force: true });
  }
}

async function* each<T>(items: readonly T[]): AsyncGenerator<T> {
  for (const item of items) yield await Promise.resolve(item);
}
