import { expect, it } from 'vitest';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  type Resource,
  STORAGE_CLASSES,
} from '../../src/kube/index.ts';
import { NAMESPACE } from './objects.ts';
import { OneNode } from './one-node.ts';

const RESTORES = 20;

it('restores whose volumes nobody uses yet hold up no backup', async () => {
  using cluster = new OneNode({ moveMs: () => 60_000 });
  const { time, world } = cluster;
  world.patch(STORAGE_CLASSES, undefined, 'simulated', {
    volumeBindingMode: 'WaitForFirstConsumer',
  });
  const common = { backupStorageLocation: 'default', operationTimeout: '10m0s' };
  for (let i = 0; i < RESTORES; i++) {
    world.addTarget('app', `unused-${i}`);
    world.store.create(DATA_DOWNLOADS, NAMESPACE, {
      metadata: { name: `restore-${i}` },
      spec: {
        ...common,
        sourceNamespace: 'app',
        targetVolume: { namespace: 'app', pvc: `unused-${i}`, pv: '' },
        snapshotID: 'some',
      },
    } as never);
  }
  world.addVolume('app', 'data', 'data', '1000');
  world.addSnapshot('app', 'snap', 'data');
  const createdMs = 60_000;
  time.after(createdMs, () => {
    world.store.create(DATA_UPLOADS, NAMESPACE, {
      metadata: { name: 'backup' },
      spec: {
        ...common,
        sourceNamespace: 'app',
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: 'snap', storageClass: 'simulated' },
        sourcePVC: 'data',
      },
    } as never);
  });
  const uploads = DATA_UPLOADS as Resource<KubeObject>;
  const isCompleted = (): boolean => cluster.statusOf(uploads, 'backup').phase === 'Completed';
  await time.run(4 * 3_600_000, isCompleted);
  expect((time.nowMs - createdMs) / 60_000).toBeLessThan(2);
});
