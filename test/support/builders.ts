import type {
  Backup,
  DataDownload,
  DataUpload,
  KubeObject,
  Pod,
  PodVolumeBackup,
  PodVolumeRestore,
  Restore,
} from '../../src/kube/index.ts';

/** The fields that a test sets. The builder adds the required fields. */
interface Said<T extends KubeObject & { spec?: object; status?: object }> {
  readonly apiVersion?: string;
  readonly kind?: string;
  readonly metadata?: Partial<KubeObject['metadata']>;
  readonly spec?: Partial<NonNullable<T['spec']>>;
  readonly status?: NonNullable<T['status']>;
}

/** The builder adds a name and these fields of the spec if the test does not set them. */
const builderOf =
  <T extends KubeObject & { spec: object; status?: object }>(name: string, spec: T['spec']) =>
  (said: Said<T> = {}): T =>
    ({
      ...said,
      metadata: { name, ...said.metadata },
      spec: { ...spec, ...said.spec },
    }) as KubeObject as T;

const MOVEMENT = { backupStorageLocation: 'default', operationTimeout: '10m0s' };

export const anUpload = builderOf<DataUpload>('up', {
  ...MOVEMENT,
  snapshotType: 'CSI',
  sourcePVC: 'data',
  sourceNamespace: 'app',
});
export const aDownload = builderOf<DataDownload>('down', {
  ...MOVEMENT,
  targetVolume: { namespace: 'app', pvc: 'data', pv: '' },
  snapshotID: 'k1',
  sourceNamespace: 'app',
});
export const aPodVolumeBackup = builderOf<PodVolumeBackup>('pvb', {
  backupStorageLocation: 'default',
  node: 'node-1',
  pod: { kind: 'Pod', namespace: 'app', name: 'web-0' },
  repoIdentifier: '',
  volume: 'data',
});
export const aPodVolumeRestore = builderOf<PodVolumeRestore>('pvr', {
  backupStorageLocation: 'default',
  pod: { kind: 'Pod', namespace: 'app', name: 'web-0' },
  repoIdentifier: '',
  snapshotID: 'k1',
  sourceNamespace: 'app',
  volume: 'data',
});
export const aPod = builderOf<Pod>('pod', { containers: [] });
export const aBackup = builderOf<Backup>('b', {});
export const aRestore = builderOf<Restore>('r', {});
