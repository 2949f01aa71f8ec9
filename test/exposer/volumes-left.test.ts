import { expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../src/base/index.ts';
import { CsiSnapshotExposer, type ExposerOptions } from '../../src/exposer/index.ts';
import type { DataUpload, KubeObject, ObjectRef, Resource } from '../../src/kube/index.ts';
import { anUpload } from '../support/builders.ts';

const upload = anUpload({
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
  spec: { sourceNamespace: 'app', csiSnapshot: { volumeSnapshot: 'snap', storageClass: 'c' } },
});

it('the snapshot stays until the volume that was made of it is gone, also one that was bound late', async () => {
  const claim = {
    metadata: { name: 'up', namespace: 'velero', uid: 'c-1', ownerReferences: [{ uid: 'u-1' }] },
    spec: { volumeName: 'pv-late' },
  };
  const volume = {
    metadata: { name: 'pv-late', uid: 'v-1' },
    spec: {
      persistentVolumeReclaimPolicy: 'Delete',
      claimRef: { namespace: 'velero', name: 'up' },
    },
  };
  const objects = new Map<string, unknown>([
    ['DataUpload/up', upload],
    ['PersistentVolumeClaim/up', claim],
    ['PersistentVolume/pv-late', volume],
  ]);
  const deleted: string[] = [];
  const find = ({ kind }: Resource<KubeObject>, { name }: ObjectRef): Promise<unknown> =>
    Promise.resolve(objects.get(`${kind}/${name}`));
  const refusals = ['KUBE_UNAVAILABLE', 'KUBE_CONFLICT'];
  const client = {
    find,
    replace: ({ kind }: Resource<KubeObject>, object: KubeObject): Promise<void> => {
      const refusal = refusals.shift();
      if (refusal) return Promise.reject(new CodedError(refusal, 'not now'));
      objects.set(`${kind}/${object.metadata.name}`, object);
      return Promise.resolve();
    },
    listPage: ({ kind }: Resource<KubeObject>): Promise<object> => {
      const items = [...objects.entries()].flatMap(([key, object]) =>
        key.startsWith(`${kind}/`) ? [object] : [],
      );
      return items.length > 0
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'its driver takes its time'))
        : Promise.resolve({ items, resourceVersion: '1' });
    },
    delete: ({ kind }: Resource<KubeObject>, { name }: ObjectRef): Promise<void> => {
      deleted.push(`${kind}/${name}`);
      // A volume goes with its claim, some time later.
      objects.delete(`${kind}/${name}`);
      return Promise.resolve();
    },
  };
  const config = { backupPvc: {} };
  const options = { client, config, namespace: 'velero', logger: silentLogger };
  const exposer = new CsiSnapshotExposer(options as unknown as ExposerOptions);
  // As long as the late volume cannot be noted on the CR, its claim stays.
  expect(await exposer.cleanUp(upload, [])).toBe(false);
  expect(deleted).toEqual([]);
  // No volume was noted, because the claim had none yet.
  expect(await exposer.cleanUp(upload, [])).toBe(false);
  expect(deleted).toEqual(['PersistentVolumeClaim/up']);
  // If this agent dies now, the next agent reads this note.
  const noted = objects.get('DataUpload/up') as DataUpload;
  expect(noted.metadata.annotations).toEqual({ 'longshore.io/volumes': 'pv-late' });
  const other = new CsiSnapshotExposer(options as unknown as ExposerOptions);
  expect(await other.cleanUp(noted, ['pv-late'])).toBe(false);
  // Its claim, which named it, is gone.
  expect(await exposer.cleanUp(upload, [])).toBe(false);
  expect(deleted).not.toContain('VolumeSnapshot/snap');
  objects.delete('PersistentVolume/pv-late');
  expect(await exposer.cleanUp(upload, [])).toBe(true);
  expect(deleted).toContain('VolumeSnapshot/snap');
});
