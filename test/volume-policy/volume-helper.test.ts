import { describe, expect, it } from 'vitest';
import {
  ListedVolumes,
  parseVolumePolicies,
  type PodObject,
  type PvcObject,
  type PvObject,
  VolumeHelper,
  type VolumeHelperOptions,
} from '../../src/volume-policy/index.ts';

const pvOf = (name: string, source: object, more: object = {}): PvObject => ({
  metadata: { name: `pv-${name}` },
  spec: {
    capacity: { storage: '10Gi' },
    storageClassName: 'gp2',
    claimRef: { namespace: 'app', name, uid: `uid-${name}` },
    ...source,
    ...more,
  },
});
const pvcOf = (name: string, more: object = {}, phase = 'Bound'): PvcObject => ({
  metadata: { name, namespace: 'app', uid: `uid-${name}` },
  spec: { ...(phase === 'Bound' && { volumeName: `pv-${name}` }), ...more },
  status: { phase },
});
const podOf = (
  name: string,
  claims: Readonly<Record<string, string>>,
  annotations: Readonly<Record<string, string>> = {},
  others: readonly object[] = [],
): PodObject => {
  const volumes = Object.entries(claims).map(([volume, claimName]) => ({
    name: volume,
    persistentVolumeClaim: { claimName },
  }));
  return {
    metadata: { name, namespace: 'app', annotations },
    spec: {
      nodeName: 'n',
      containers: [{ volumeMounts: volumes }],
      volumes: [...volumes, ...(others as typeof volumes)],
    },
    status: { phase: 'Running' },
  };
};

interface Objects {
  readonly pvs?: readonly PvObject[];
  readonly pvcs?: readonly PvcObject[];
  readonly pods?: readonly PodObject[];
}

const isIn =
  (namespace: string | undefined) =>
  ({ metadata }: PvcObject | PodObject): boolean =>
    namespace === undefined || metadata.namespace === namespace;

function listed({ pvs = [], pvcs = [], pods = [] }: Objects, namespaces?: string[]) {
  const requests: string[] = [];
  const failures: Error[] = [];
  const note = (what: string): void => {
    requests.push(what);
    const failure = failures.pop();
    if (failure) throw failure;
  };
  const volumes = new ListedVolumes(
    {
      pvs: async (take) => {
        await Promise.resolve();
        note('pvs');
        return pvs.flatMap(take);
      },
      pvcs: async (namespace, take) => {
        await Promise.resolve();
        note(`pvcs ${namespace ?? '*'}`);
        return pvcs.filter(isIn(namespace)).flatMap(take);
      },
      pods: async (namespace, take) => {
        await Promise.resolve();
        note(`pods ${namespace ?? '*'}`);
        return pods.filter(isIn(namespace)).flatMap(take);
      },
    },
    { namespaces },
  );
  return { volumes, requests, failures };
}

function helperOf(
  policies: string | undefined,
  objects: Objects,
  more: Partial<VolumeHelperOptions> = {},
): VolumeHelper {
  return new VolumeHelper({
    policies: policies === undefined ? undefined : parseVolumePolicies(`version: v1\n${policies}`),
    snapshotVolumes: undefined,
    defaultsToFiles: false,
    backupExcludePvc: false,
    volumes: listed(objects).volumes,
    ...more,
  });
}

const CSI = { csi: { driver: 'ebs.csi.aws.com', volumeHandle: 'v' } };

describe('the use cases of the design', () => {
  it('takes snapshots of the volumes of one class, and backs the rest up by files', async () => {
    const policies = `
volumePolicies:
- conditions: {storageClass: [gp2]}
  action: {type: snapshot}
- conditions: {}
  action: {type: fs-backup}`;
    const objects = {
      pvs: [pvOf('fast', CSI), pvOf('slow', CSI, { storageClassName: 'slow' })],
      pvcs: [pvcOf('fast'), pvcOf('slow')],
    };
    const helper = helperOf(policies, objects);
    const scratch = { name: 'scratch', emptyDir: {} };
    const pod = podOf('web', { a: 'fast', b: 'slow' }, {}, [scratch]);
    expect(await helper.volumesForFsBackup(pod)).toEqual({
      included: ['b', 'scratch'],
      optedOut: [],
    });
    const snapshots = objects.pvcs.map((pvc) => helper.shouldPerformSnapshot({ pvc }));
    expect(await Promise.all(snapshots)).toEqual([true, false]);
    const ofPvs = objects.pvs.map((pv) => helper.shouldPerformSnapshot({ pv }));
    expect(await Promise.all(ofPvs)).toEqual([true, false]);
  });

  it('backs up by files what comes from one NFS server, and leaves all else as it was', async () => {
    const policies = `
volumePolicies:
- conditions: {nfs: {server: 192.168.200.90}}
  action: {type: fs-backup}`;
    const nfs = (server: string) => ({ nfs: { server, path: '/a' } });
    const objects = {
      pvs: [pvOf('one', nfs('192.168.200.90')), pvOf('two', nfs('10.0.0.1')), pvOf('disk', CSI)],
      pvcs: [pvcOf('one'), pvcOf('two'), pvcOf('disk')],
    };
    const helper = helperOf(policies, objects);
    const inPod = { name: 'direct', nfs: { server: '192.168.200.90', path: '/b' } };
    const pod = podOf('web', { a: 'one', b: 'two', c: 'disk' }, {}, [inPod]);
    expect((await helper.volumesForFsBackup(pod)).included).toEqual(['a', 'direct']);
    const snapshots = objects.pvcs.map((pvc) => helper.shouldPerformSnapshot({ pvc }));
    expect(await Promise.all(snapshots)).toEqual([false, true, true]);
  });
});

it('decides for each volume of a pod by itself: a rule for one, the annotation for the other', async () => {
  const objects = {
    pvs: [pvOf('a', CSI), pvOf('b', CSI, { storageClassName: 'other' })],
    pvcs: [pvcOf('a'), pvcOf('b')],
  };
  const policies =
    'volumePolicies: [{conditions: {storageClass: [gp2]}, action: {type: fs-backup}}]';
  const annotations = { 'backup.velero.io/backup-volumes': 'b' };
  const pods = [podOf('web', { a: 'a', b: 'b' }, annotations)];
  const helper = helperOf(policies, { ...objects, pods });
  const [pod] = pods;
  if (!pod) throw new Error('no pod');
  expect((await helper.volumesForFsBackup(pod)).included).toEqual(['a', 'b']);
  // The annotation keeps a snapshot from being taken, where no rule decides.
  const decision = await helper.snapshotDecision({ pvc: pvcOf('b') });
  expect(decision).toEqual({
    yes: false,
    because: { by: 'annotation', key: 'backup.velero.io/backup-volumes', pod: 'web' },
  });
  const out = podOf('out', { a: 'a', b: 'b' }, { 'backup.velero.io/backup-volumes-excludes': 'b' });
  const optOut = helperOf(policies, objects, { defaultsToFiles: true });
  expect(await optOut.volumesForFsBackup(out)).toEqual({ included: ['a'], optedOut: ['b'] });
});

it.each([
  [undefined, true, true],
  [null, true, true],
  [true, true, true],
  [false, true, false],
])(
  'snapshotVolumes %s: with a rule %s, without one %s',
  async (snapshotVolumes, byRule, without) => {
    const policies =
      'volumePolicies: [{conditions: {storageClass: [gp2]}, action: {type: snapshot}}]';
    const [pv, pvc] = [pvOf('a', CSI), pvcOf('a')];
    const [otherPv, other] = [pvOf('b', CSI, { storageClassName: 'x' }), pvcOf('b')];
    const objects = { pvs: [pv, otherPv], pvcs: [pvc, other] };
    const helper = helperOf(policies, objects, { snapshotVolumes });
    expect(await helper.shouldPerformSnapshot({ pvc })).toBe(byRule);
    expect(await helper.shouldPerformSnapshot({ pv })).toBe(byRule);
    expect(await helper.shouldPerformSnapshot({ pvc: other })).toBe(without);
    expect(await helper.shouldPerformSnapshot({ pv: otherPv })).toBe(without);
  },
);

it('sees PV and PVC together, whichever of them is asked about', async () => {
  const policies = 'volumePolicies: [{conditions: {pvcLabels: {env: dev}}, action: {type: skip}}]';
  const pvc = pvcOf('a');
  const labelled = { ...pvc, metadata: { ...pvc.metadata, labels: { env: 'dev' } } };
  const pv = pvOf('a', CSI);
  const objects = { pvs: [pv], pvcs: [labelled] };
  expect(await helperOf(policies, objects).shouldPerformSnapshot({ pv })).toBe(false);
  // Velero knows no PVC there.
  const asVelero = helperOf(policies, objects, { views: 'velero' });
  expect(await asVelero.shouldPerformSnapshot({ pv })).toBe(true);
  // A PVC of that name that was made since is not the volume's.
  const newer = { ...labelled, metadata: { ...labelled.metadata, uid: 'new' } };
  const replaced = helperOf(policies, { ...objects, pvcs: [newer] });
  expect(await replaced.shouldPerformSnapshot({ pv })).toBe(true);
});

it('decides about a PVC without a volume by what it asks for, and fails where no rule does', async () => {
  const pending = pvcOf(
    'a',
    { storageClassName: 'gp2', resources: { requests: { storage: '5Gi' } } },
    'Pending',
  );
  const conditions = '{storageClass: [gp2], capacity: "5Gi,5Gi"}';
  const helper = helperOf(`volumePolicies: [{conditions: ${conditions}, action: {type: skip}}]`, {
    pvcs: [pending],
  });
  expect(await helper.shouldPerformSnapshot({ pvc: pending })).toBe(false);
  const none = helperOf('volumePolicies: []', { pvcs: [pending] });
  await expect(none.shouldPerformSnapshot({ pvc: pending })).rejects.toMatchObject({
    code: 'NO_VOLUME',
    message: 'PVC app/a has no volume backing this claim',
  });
  const pod = podOf('web', { data: 'a' });
  await expect(none.volumesForFsBackup(pod)).rejects.toMatchObject({ code: 'NO_VOLUME' });
  await expect(none.volumesForFsBackup(podOf('web', { data: 'gone' }))).rejects.toMatchObject({
    code: 'NO_PVC',
    message: 'PVC app/gone, which pod app/web mounts, is not there',
  });
  const lost = { ...pvcOf('b'), status: { phase: 'Lost' } };
  await expect(none.shouldPerformSnapshot({ pvc: lost })).rejects.toThrow(
    'PVC app/b is in phase Lost and is not bound to a volume',
  );
  await expect(none.shouldPerformSnapshot({ pvc: pvcOf('c') })).rejects.toThrow(
    'PVC app/c is bound to the volume pv-c, which is not there or not its own',
  );
});

it('gives custom actions and parameters to whoever asks', async () => {
  const policies = `
volumePolicies:
- conditions: {storageClass: [acme]}
  action: {type: custom, parameters: {mover: acme, level: 3, dataMover: x}}
- conditions: {}
  action: {type: snapshot, parameters: {snapshotClass: fast, dataMover: acme}}`;
  const pvs = [pvOf('a', CSI, { storageClassName: 'acme' }), pvOf('b', CSI)];
  const pvcs = [pvcOf('a'), pvcOf('b')];
  const helper = helperOf(policies, { pvs, pvcs });
  const [pvc, other] = pvcs;
  if (!pvc || !other) throw new Error('no PVCs');
  expect(await helper.shouldPerformCustomAction({ pvc })).toBe(true);
  expect(await helper.shouldPerformCustomAction({ pvc }, { mover: 'acme', level: 3 })).toBe(true);
  expect(await helper.shouldPerformCustomAction({ pvc }, { mover: 'other' })).toBe(false);
  expect(await helper.shouldPerformCustomAction({ pvc }, { toString: undefined })).toBe(false);
  expect(await helper.shouldPerformCustomAction({ pvc: other })).toBe(false);
  expect(await helper.actionParameters({ pvc })).toMatchObject({ type: 'custom' });
  expect(await helper.snapshotClass({ pvc: other })).toBe('fast');
  expect(await helper.dataMover({ pvc: other })).toBe('acme');
  // The parameters of a custom action belong to another program.
  expect(await helper.dataMover({ pvc })).toBeUndefined();
  const pending = pvcOf('p', {}, 'Pending');
  expect(await helper.actionParameters({ pvc: pending })).toBeUndefined();
  expect(await helper.shouldPerformCustomAction({ pvc: pending })).toBe(false);
  expect(await helperOf(undefined, { pvs, pvcs }).actionParameters({ pvc })).toBeUndefined();
});

it('never backs up the files of what has none, whatever a rule says', async () => {
  const everything = 'volumePolicies: [{action: {type: fs-backup}}]';
  const sources = ['hostPath', 'secret', 'configMap', 'projected', 'downwardAPI'].map((source) => ({
    name: source,
    [source]: {},
  }));
  const others = [
    ...sources,
    { name: 'default-token-abc', emptyDir: {} },
    { name: 'ok', emptyDir: {} },
  ];
  const objects = { pvs: [pvOf('a', CSI)], pvcs: [pvcOf('a')] };
  const pod = podOf('web', { data: 'a' }, {}, others);
  const helper = helperOf(everything, objects);
  expect((await helper.volumesForFsBackup(pod)).included).toEqual(['data', 'ok']);
  const without = helperOf(everything, objects, { backupExcludePvc: true });
  expect((await without.volumesForFsBackup(pod)).included).toEqual(['ok']);
});

it('lists each resource once for 10,000 pods, and keeps little of them', async () => {
  const padding = 'x'.repeat(10_000);
  const makePod = (i: number): PodObject => ({
    ...podOf(`pod-${i}`, { data: `pvc-${i}` }, { 'a/b': `${padding}${i}` }, [
      { name: 'token', projected: { sources: [`${padding}${i}`] } },
    ]),
  });
  const requests: string[] = [];
  const many = 10_000;
  const objects = <T, K>(make: (i: number) => T, take: (item: T) => readonly K[]): Promise<K[]> =>
    Promise.resolve(Array.from({ length: many }, (_, i) => take(make(i))).flat());
  const pvOfNumber = (i: number): PvObject => pvOf(`pvc-${i}`, CSI);
  const volumes = new ListedVolumes({
    pvs: (take) => (requests.push('pvs'), objects(pvOfNumber, take)),
    pvcs: (_, take) => (requests.push('pvcs'), objects((i) => pvcOf(`pvc-${i}`), take)),
    pods: (_, take) => (requests.push('pods'), objects(makePod, take)),
  });
  const helper = helperOf(
    'volumePolicies: [{conditions: {nfs: {}}, action: {type: skip}}]',
    {},
    { volumes },
  );
  for (let i = 0; i < many; i += 100) {
    expect(await helper.shouldPerformSnapshot({ pvc: pvcOf(`pvc-${i}`) })).toBe(true);
    const pod = podOf(`pod-${i}`, { data: `pvc-${i}` });
    expect((await helper.volumesForFsBackup(pod)).included).toEqual([]);
  }
  expect(requests.sort()).toEqual(['pods', 'pvcs', 'pvs']);
  // The kept data has no part of the 200 MB of pods.
  const kept = JSON.stringify(await volumes.pods());
  expect(kept.length).toBeLessThan(4 << 20);
  expect(kept).not.toContain('xxx');
});

it('finds volumes of a namespace that the backup does not name, which an action may have added', async () => {
  const pvc = pvcOf('data');
  const { namespace = '' } = pvc.metadata;
  const pods = [podOf('web', { data: 'data' }, { 'backup.velero.io/backup-volumes': 'data' })];
  const { volumes, requests } = listed({ pvcs: [pvc], pvs: [pvOf('data', CSI)], pods }, [
    'elsewhere',
  ]);
  const helper = helperOf(
    'volumePolicies: [{conditions: {csi: {}}, action: {type: fs-backup}}]',
    {},
    { volumes },
  );
  expect((await helper.volumesForFsBackup(podOf('web', { data: 'data' }))).included).toEqual([
    'data',
  ]);
  expect((await volumes.usersOf(namespace, 'data')).map(({ pod }) => pod)).toEqual(['web']);
  await volumes.pvc(namespace, 'other');
  expect(requests).toEqual([`pvcs ${namespace}`, 'pvs', `pods ${namespace}`]);
});

it('lists a few namespaces by themselves, and everything for many', async () => {
  const few = listed({}, ['a', 'b', 'a']);
  await few.volumes.pods();
  await few.volumes.pvcs();
  expect(few.requests).toEqual(['pods a', 'pods b', 'pvcs a', 'pvcs b']);
  const many = listed(
    {},
    Array.from({ length: 11 }, (_, i) => `n${i}`),
  );
  await many.volumes.pods();
  expect(many.requests).toEqual(['pods *']);
});

it('lists again after a failure, and once for all who wait', async () => {
  const { volumes, requests, failures } = listed({ pvcs: [pvcOf('a')] });
  failures.push(new Error('away'));
  const both = await Promise.allSettled([volumes.pvc('app', 'a'), volumes.pvc('app', 'a')]);
  expect(both.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  expect((await volumes.pvc('app', 'a'))?.name).toBe('a');
  expect(requests).toEqual(['pvcs *', 'pvcs *']);
});
