import { describe, expect, it } from 'vitest';
import { findPodVolume } from '../../src/exposer/pod-volume-path.ts';
import type { KubeClient } from '../../src/kube/index.ts';
import { aPod } from '../support/builders.ts';

const volumes = [
  { name: 'claimed', persistentVolumeClaim: { claimName: 'data' } },
  { name: 'in-tree', persistentVolumeClaim: { claimName: 'old' } },
  { name: 'moved', persistentVolumeClaim: { claimName: 'moved' } },
  { name: 'local', persistentVolumeClaim: { claimName: 'local' } },
  { name: 'flex', persistentVolumeClaim: { claimName: 'flex' } },
  { name: 'device', persistentVolumeClaim: { claimName: 'device' } },
  { name: 'unbound', persistentVolumeClaim: { claimName: 'unbound' } },
  { name: 'node-directory', persistentVolumeClaim: { claimName: 'node-directory' } },
  { name: 'fresh', ephemeral: { volumeClaimTemplate: {} } },
  { name: 'scratch', emptyDir: {} },
  { name: 'share', nfs: { server: 'x', path: '/' } },
  { name: 'inline', csi: { driver: 'example.com' } },
  { name: 'etc', hostPath: { path: '/etc' } },
  { name: 'settings', configMap: { name: 'x' } },
  { name: 'new-kind', somethingNew: { a: 1 } },
];
const pod = aPod({
  metadata: { name: 'web-0', namespace: 'app', uid: 'pod-1' },
  spec: { containers: [], volumes },
});
const claim = (volumeName: string, more: object = {}): object => ({
  spec: { volumeName, resources: { requests: { storage: '3Gi' } }, ...more },
});
const claims: Record<string, object> = {
  data: claim('pv-csi'),
  old: claim('pv-nfs'),
  moved: claim('pv-moved'),
  local: claim('pv-local'),
  flex: claim('pv-flex'),
  device: claim('pv-csi', { volumeMode: 'Block' }),
  unbound: claim(''),
  'node-directory': claim('pv-host'),
  'web-0-fresh': claim('pv-fresh'),
};
const persistent: Record<string, object> = {
  'pv-csi': { spec: { csi: { driver: 'a' }, claimRef: { name: 'data' } } },
  'pv-nfs': { spec: { capacity: { storage: '1Gi' }, nfs: { server: 'x' } } },
  'pv-moved': {
    spec: { gcePersistentDisk: {} },
    annotations: { 'pv.kubernetes.io/migrated-to': 'b' },
  },
  'pv-local': { spec: { local: { path: '/mnt' } } },
  'pv-flex': { spec: { flexVolume: { driver: 'example.com/nfs' } } },
  'pv-host': { spec: { hostPath: { path: '/srv' } } },
  'pv-fresh': { spec: { csi: { driver: 'a' } } },
};
const client = {
  get: ({ plural }: { plural: string }, { name }: { name: string }) => {
    const found = plural === 'persistentvolumes' ? persistent[name] : claims[name];
    if (!found) return Promise.reject(new Error(`no ${plural} ${name}`));
    const { annotations } = found as { annotations?: object };
    return Promise.resolve({ metadata: { name, annotations }, ...found });
  },
} as unknown as KubeClient;

describe('where the kubelet has a volume of a pod', () => {
  it.for([
    ['claimed', 'volumes/kubernetes.io~csi/pv-csi/mount', '3Gi'],
    ['in-tree', 'volumes/kubernetes.io~nfs/pv-nfs', '3Gi'],
    ['moved', 'volumes/kubernetes.io~csi/pv-moved/mount', '3Gi'],
    ['local', 'volumes/kubernetes.io~local-volume/pv-local', '3Gi'],
    ['flex', 'volumes/example.com~nfs/pv-flex', '3Gi'],
    ['fresh', 'volumes/kubernetes.io~csi/pv-fresh/mount', '3Gi'],
    ['scratch', 'volumes/kubernetes.io~empty-dir/scratch', undefined],
    ['share', 'volumes/kubernetes.io~nfs/share', undefined],
    ['inline', 'volumes/kubernetes.io~csi/inline/mount', undefined],
  ] as const)('%s', async ([name, path, capacity]) => {
    const found = await findPodVolume(client, pod, name);
    expect(found).toMatchObject({ path });
    expect(found.capacity).toBe(capacity);
    // Its storage class and annotations have rules for the backup.
    expect(found.claim !== undefined).toBe(capacity !== undefined);
  });

  it.for([
    ['nowhere', 'volume not found in pod: volume nowhere of pod app/web-0 does not exist'],
    ['device', 'is a block volume'],
    ['unbound', 'PVC app/unbound has no volume'],
    ['node-directory', 'is a directory of the node (hostPath)'],
    ['etc', 'is a directory of the node (hostPath)'],
    ['settings', 'is a ConfigMap'],
    ['new-kind', 'is of a kind that is not known here: somethingNew'],
  ] as const)('%s is refused: %s', async ([name, message]) => {
    await expect(findPodVolume(client, pod, name)).rejects.toThrow(message);
  });
});
