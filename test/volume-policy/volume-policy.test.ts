import { expect, it } from 'vitest';
import {
  filesAreBackedUp,
  parseVolumePolicies,
  takesSnapshot,
  type VolumeView,
} from '../../src/volume-policy/index.ts';

const GIB = 1024 ** 3;
const volume: VolumeView = {
  capacityBytes: 10 * GIB,
  storageClass: 'gp2',
  csi: { driver: 'ebs.csi.aws.com', volumeAttributes: { protocol: 'nfs', zone: 'a' } },
  type: 'csi',
  pvcLabels: { env: 'prod', app: 'db' },
  pvcPhase: 'Bound',
  pvcVolumeMode: 'Filesystem',
  pvcAccessModes: ['ReadWriteOnce', 'ReadOnlyMany'],
};
/** A PVC without a volume. */
const unbound: VolumeView = {
  capacityBytes: 0,
  storageClass: '',
  type: '',
  pvcLabels: {},
  pvcPhase: 'Pending',
  pvcVolumeMode: '',
  pvcAccessModes: [],
};

const matches = (conditions: string, of: VolumeView = volume): boolean =>
  parseVolumePolicies(
    `version: v1\nvolumePolicies: [{conditions: ${conditions}, action: {type: skip}}]`,
  ).actionFor(of) !== undefined;

it.each([
  ['{}', true],
  ['{capacity: "0,100Gi"}', true],
  ['{capacity: "10Gi,10Gi"}', true],
  ['{capacity: "10Gi,"}', true],
  ['{capacity: " 11Gi , 0 "}', false],
  ['{capacity: ",9Gi"}', false],
  ['{storageClass: [gp3, gp2]}', true],
  ['{storageClass: [gp3]}', false],
  ['{csi: {}}', true],
  ['{csi: {driver: ebs.csi.aws.com}}', true],
  ['{csi: {driver: other}}', false],
  ['{csi: {driver: ebs.csi.aws.com, volumeAttributes: {protocol: nfs}}}', true],
  ['{csi: {driver: ebs.csi.aws.com, volumeAttributes: {protocol: smb}}}', false],
  ['{nfs: {}}', false],
  ['{volumeTypes: [nfs, csi]}', true],
  ['{volumeTypes: [nfs]}', false],
  ['{pvcLabels: {env: prod}}', true],
  ['{pvcLabels: {env: prod, more: x}}', false],
  ['{pvcPhase: [Bound]}', true],
  ['{pvcPhase: [Pending, Lost]}', false],
  ['{pvcVolumeMode: Filesystem}', true],
  ['{pvcVolumeMode: Block}', false],
  ['{pvcAccessModes: [ReadOnlyMany, ReadWriteOnce]}', true],
  ['{pvcAccessModes: [ReadWriteOnce]}', false],
  ['{storageClass: [gp2], pvcPhase: [Pending]}', false],
])('conditions %s of a bound volume: %s', (conditions, expected) => {
  expect(matches(conditions)).toBe(expected);
});

it.each([
  ['{}', true],
  ['{capacity: ",10Gi"}', true],
  ['{capacity: "1Gi,"}', false],
  ['{storageClass: [""]}', false],
  ['{pvcPhase: [Pending]}', true],
  ['{csi: {}}', false],
])('conditions %s of a PVC without a volume: %s', (conditions, expected) => {
  expect(matches(conditions, unbound)).toBe(expected);
});

it('takes NFS by server, by path, or by both', () => {
  const nfs = { ...volume, csi: undefined, nfs: { server: 'a', path: '/x' }, type: 'nfs' };
  expect(matches('{nfs: {}}', nfs)).toBe(true);
  expect(matches('{nfs: {server: a}}', nfs)).toBe(true);
  expect(matches('{nfs: {path: /x}}', nfs)).toBe(true);
  expect(matches('{nfs: {server: a, path: /y}}', nfs)).toBe(false);
});

it('takes the first policy that is about the volume', () => {
  const policies = parseVolumePolicies(`
version: v1
volumePolicies:
- conditions: {storageClass: [gp3]}
  action: {type: skip}
- conditions: {csi: {}}
  action: {type: custom, parameters: {mover: acme}}
- conditions: {}
  action: {type: fs-backup}
`);
  expect(policies.actionFor(volume)).toEqual({ type: 'custom', parameters: { mover: 'acme' } });
  expect(policies.actionFor(unbound)).toEqual({ type: 'fs-backup' });
});

it.each([
  ['version: v2', 'incompatible version number'],
  ['version: v1\nsomething: else', 'something'],
  ['version: v1\nvolumePolicies: [{action: {type: delete}}]', 'invalid action type delete'],
  [
    'version: v1\nvolumePolicies: [{conditions: {capacity: "10Gi"}, action: {type: skip}}]',
    'Capac',
  ],
  ['version: v1\nvolumePolicies: [{conditions: {capacity: "9,1"}, action: {type: skip}}]', 'Capac'],
  [
    'version: v1\nvolumePolicies: [{conditions: {pvcLabels: null}, action: {type: skip}}]',
    'pvcLab',
  ],
  [
    'version: v1\nvolumePolicies: [{conditions: {csi: {volumeAttributes: {a: b}}}, action: {type: skip}}]',
    'csi driver should not be empty',
  ],
  ['{', 'resource policies'],
  ['', 'resource policies'],
])('refuses %j', (yaml, text) => {
  expect(() => parseVolumePolicies(yaml)).toThrow(text);
});

it('lets a policy count more than the switch of the backup, and annotations only without one', () => {
  const none = { action: undefined, snapshotVolumes: undefined, isBackedUpByFiles: false };
  const action = (type: 'snapshot' | 'skip' | 'fs-backup' | 'custom') => ({ type });
  expect(takesSnapshot(none)).toBe(true);
  expect(takesSnapshot({ ...none, snapshotVolumes: true })).toBe(true);
  expect(takesSnapshot({ ...none, snapshotVolumes: false })).toBe(false);
  expect(takesSnapshot({ ...none, isBackedUpByFiles: true })).toBe(false);
  const taken = { action: action('snapshot'), snapshotVolumes: false, isBackedUpByFiles: true };
  expect(takesSnapshot(taken)).toBe(true);
  for (const type of ['skip', 'fs-backup', 'custom'] as const) {
    expect(takesSnapshot({ ...none, action: action(type), snapshotVolumes: true })).toBe(false);
  }
});

it('reads the annotations of pods in either default', () => {
  const pod = (annotations: Record<string, string>) => [{ annotations, volumeName: 'data' }];
  const names = 'backup.velero.io/backup-volumes';
  expect(filesAreBackedUp(pod({}), false)).toBe(false);
  expect(filesAreBackedUp(pod({ [names]: 'logs,data' }), false)).toBe(true);
  expect(filesAreBackedUp(pod({ [names]: 'logs, data' }), false)).toBe(false);
  expect(filesAreBackedUp(pod({}), true)).toBe(true);
  expect(filesAreBackedUp(pod({ [`${names}-excludes`]: 'data' }), true)).toBe(false);
  expect(filesAreBackedUp([], true)).toBe(false);
});
