import {
  type Backup,
  type KubeClient,
  type KubeObject,
  type PersistentVolumeClaim,
  PVCS,
  type Restore,
} from '../../src/kube/index.ts';
import { NAMESPACE } from './dev-cluster.ts';

/** A Backup as Velero's server passes it to a plugin. */
export const backupOf = (
  name: string,
  spec: Partial<Backup['spec']> = {},
  phase = 'InProgress',
): Backup => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: {
    name,
    namespace: NAMESPACE,
    uid: `${name}-6a1d-4f6b-9d0c-2f0f5b6a7c8d`,
    resourceVersion: '1',
    creationTimestamp: '2026-11-24T10:00:00Z',
  },
  spec: {
    storageLocation: 'default',
    snapshotMoveData: true,
    csiSnapshotTimeout: '10m0s',
    ...spec,
  },
  status: { phase },
});

export const restoreOf = (
  name: string,
  backup: string,
  spec: Partial<Restore['spec']> = {},
): Restore => ({
  apiVersion: 'velero.io/v1',
  kind: 'Restore',
  metadata: {
    name,
    namespace: NAMESPACE,
    uid: `${name}-0b7c-4a55-8e21-5d1f1f0d9a11`,
    resourceVersion: '1',
    creationTimestamp: '2026-11-24T11:00:00Z',
  },
  spec: { backupName: backup, ...spec },
});

export const pvcOf = (
  client: KubeClient,
  namespace: string,
  name: string,
): Promise<PersistentVolumeClaim> => client.get(PVCS, { namespace, name });

/** The item in its stored form, without fields that only the cluster knows. */
export const stored = <T extends KubeObject>(item: T): T => JSON.parse(JSON.stringify(item)) as T;
