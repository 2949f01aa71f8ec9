import { expect, it } from 'vitest';
import { describeUsers, targetProblem } from '../../src/exposer/index.ts';
import { usesClaim } from '../../src/exposer/claim-users.ts';
import { secondVolume, volumeNameFor } from '../../src/exposer/second-volume.ts';
import {
  type DataDownload,
  inPlaceConfig,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
} from '../../src/kube/index.ts';

const download = (dryRun = false): DataDownload =>
  ({
    metadata: { name: 'd', uid: 'd-1' },
    spec: {
      targetVolume: { namespace: 'shop', pvc: 'data', pv: '' },
      datamover: 'longshore',
      dataMoverConfig: inPlaceConfig({ dryRun, keepExtra: false, claimUid: 'c-1' }),
    },
  }) as never;
const claim: PersistentVolumeClaim = {
  metadata: { name: 'data', namespace: 'shop', uid: 'c-1' },
  spec: { volumeName: 'pv-1' },
  status: { phase: 'Bound' },
} as never;
const volume = (spec: object, metadata: object = {}): PersistentVolume =>
  ({
    metadata: { name: 'pv-1', ...metadata },
    spec: { accessModes: ['ReadWriteOnce'], claimRef: { uid: 'c-1' }, ...spec },
  }) as never;
const csi = { driver: 'd', volumeHandle: 'h' };
const nodeAffinity = { required: { nodeSelectorTerms: [] } };

it.each([
  [{ csi }],
  [{ nfs: { server: 's', path: '/p' } }],
  [{ local: { path: '/p' }, nodeAffinity }],
  [{ hostPath: { path: '/p' }, nodeAffinity }],
])('%j can be restored in place', (spec) => {
  expect(targetProblem(download(), claim, volume(spec))).toBeUndefined();
});

it.each([
  [{ hostPath: { path: '/p' } }, {}, 'PersistentVolume pv-1 is neither of a CSI driver nor nfs,'],
  [{ iscsi: {} }, {}, 'restore it with "longshore snapshot restore --in-place" where it is mount'],
  [{ csi: { ...csi, readOnly: true } }, {}, 'PersistentVolume pv-1 can only be read'],
  [{ csi, accessModes: ['ReadOnlyMany'] }, {}, 'PersistentVolume pv-1 can only be read'],
  [{ csi, claimRef: { uid: 'c-2' } }, {}, 'PersistentVolume pv-1 is of another PVC'],
  [{ csi }, { deletionTimestamp: 'now' }, 'PersistentVolume pv-1 is being deleted'],
])('%j %j cannot', (spec, metadata, text) => {
  expect(targetProblem(download(), claim, volume(spec, metadata))).toContain(text);
});

it('a volume object that was made anew is another one, whatever its name is', () => {
  const { spec, ...rest } = download();
  const order = { dryRun: false, keepExtra: false, claimUid: 'c-1', volumeUid: 'v-1' };
  const meant = { ...rest, spec: { ...spec, dataMoverConfig: inPlaceConfig(order) } };
  expect(targetProblem(meant, claim, volume({ csi }, { uid: 'v-1' }))).toBeUndefined();
  expect(targetProblem(meant, claim, volume({ csi }, { uid: 'v-2' }))).toBe(
    'PersistentVolume pv-1 is another one than was meant: it was deleted and made again',
  );
});

it('what can only be read can be looked at', () => {
  const readOnly = volume({ csi: { ...csi, readOnly: true }, accessModes: ['ReadOnlyMany'] });
  expect(targetProblem(download(true), claim, readOnly)).toBeUndefined();
});

it.each([
  [undefined, 'PVC shop/data does not exist'],
  [{ ...claim, metadata: { ...claim.metadata, uid: 'c-2' } }, 'is another one than was meant'],
  [{ ...claim, metadata: { ...claim.metadata, deletionTimestamp: 'now' } }, 'is being deleted'],
  [{ ...claim, status: { phase: 'Lost' } }, 'PVC shop/data is Lost, and has no volume'],
] as const)('a PVC is refused: %#', (found, text) => {
  const problem = targetProblem(download(), found, volume({ csi }));
  expect(problem).toContain(text);
});

it('a second object has what the volume is, and nothing of its claim, its class or its provisioner', () => {
  const first = volume(
    {
      csi: { ...csi, nodeStageSecretRef: { name: 's' } },
      mountOptions: ['noatime'],
      storageClassName: 'fast',
      volumeAttributesClassName: 'gold',
      persistentVolumeReclaimPolicy: 'Delete',
      capacity: { storage: '1Gi' },
      nodeAffinity,
    },
    {
      labels: { 'topology.kubernetes.io/zone': 'a', app: 'db' },
      annotations: { 'pv.kubernetes.io/provisioned-by': 'd' },
      finalizers: ['external-provisioner.volume.kubernetes.io/finalizer'],
    },
  );
  const ref = { namespace: 'velero', name: 'd-in-place' };
  expect(secondVolume(download(), first, ref)).toEqual({
    metadata: {
      name: volumeNameFor(first),
      labels: { 'topology.kubernetes.io/zone': 'a', 'longshore.io/in-place-for': 'd-1' },
      annotations: { 'longshore.io/owner-uid': 'd-1', 'longshore.io/owner-name': 'd' },
    },
    spec: {
      accessModes: ['ReadWriteOnce'],
      capacity: { storage: '1Gi' },
      nodeAffinity,
      csi: { ...csi, nodeStageSecretRef: { name: 's' } },
      mountOptions: ['noatime'],
      persistentVolumeReclaimPolicy: 'Retain',
      storageClassName: '',
      claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', ...ref },
    },
  });
});

it('two objects of one volume have one name, and two volumes have two', () => {
  const other = { ...csi, volumeAttributes: { a: 'b' } };
  expect(volumeNameFor(volume({ csi }))).toBe(volumeNameFor(volume({ csi: other })));
  const next = { ...csi, volumeHandle: 'h2' };
  expect(volumeNameFor(volume({ csi }))).not.toBe(volumeNameFor(volume({ csi: next })));
});

it('a pod uses a claim that it names, or that was made for it, until it is over', () => {
  const pod = (volumes: object[], phase = 'Pending'): Pod =>
    ({ metadata: { name: 'web' }, spec: { volumes }, status: { phase } }) as never;
  const named = [{ name: 'v', persistentVolumeClaim: { claimName: 'data' } }];
  expect(usesClaim(pod(named), 'data')).toBe(true);
  expect(usesClaim(pod(named), 'other')).toBe(false);
  expect(usesClaim(pod(named, 'Succeeded'), 'data')).toBe(false);
  expect(usesClaim(pod(named, 'Unknown'), 'data')).toBe(true);
  // The kubelet evicts it, and its native sidecar still runs.
  const evicted = pod(named, 'Failed');
  const running = [{ name: 'sidecar', state: { running: {} } }];
  evicted.status = { ...evicted.status, initContainerStatuses: running };
  expect(usesClaim(evicted, 'data')).toBe(true);
  expect(usesClaim(pod([{ name: 'tmp', ephemeral: {} }]), 'web-tmp')).toBe(true);
  expect(usesClaim(pod([{ name: 'tmp', emptyDir: {} }]), 'web-tmp')).toBe(false);
});

it('pods that use a claim are named, the first three of many', () => {
  const ref = { namespace: 'shop', name: 'data' };
  expect(describeUsers(ref, ['a'])).toBe('pod shop/a uses PVC shop/data');
  expect(describeUsers(ref, ['a', 'b', 'c', 'd'])).toBe(
    'pods shop/a, shop/b, shop/c and 1 more use PVC shop/data',
  );
});
