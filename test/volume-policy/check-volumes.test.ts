import { expect, it } from 'vitest';
import {
  type CheckedVolume,
  type CheckOptions,
  checkVolumes,
  ListedVolumes,
  parseVolumePolicies,
  type PodObject,
  type PvcObject,
  type PvObject,
} from '../../src/volume-policy/index.ts';

const CSI = { csi: { driver: 'd', volumeHandle: 'v' } };
const NFS = { nfs: { server: 's', path: '/' } };

class World {
  readonly pvs: PvObject[] = [];
  readonly pvcs: PvcObject[] = [];
  readonly pods: PodObject[] = [];

  /** A bound PVC with its volume. */
  volume(
    name: string,
    source: object,
    { pvc = {}, namespace = 'app' }: { pvc?: object; namespace?: string } = {},
  ): this {
    const claimRef = { namespace, name, uid: `uid-${name}` };
    const capacity = { storage: '1Gi' };
    this.pvs.push({ metadata: { name: `pv-${name}` }, spec: { capacity, claimRef, ...source } });
    this.pvcs.push({
      metadata: { name, namespace, uid: `uid-${name}`, ...pvc },
      spec: { volumeName: `pv-${name}` },
      status: { phase: 'Bound' },
    });
    return this;
  }

  pod(name: string, volumes: readonly object[], more: Partial<PodObject> = {}): this {
    const all = volumes as readonly { name: string }[];
    this.pods.push({
      metadata: { name, namespace: 'app' },
      status: { phase: 'Running' },
      ...more,
      spec: { nodeName: 'n', containers: [{ volumeMounts: all }], volumes: all, ...more.spec },
    });
    return this;
  }

  async check(
    rules: string | undefined,
    more: Partial<CheckOptions> = {},
  ): Promise<CheckedVolume[]> {
    const policies =
      rules === undefined
        ? undefined
        : parseVolumePolicies(`version: v1\nvolumePolicies: ${rules}`);
    const volumes = new ListedVolumes(
      {
        pvs: (take) => Promise.resolve(this.pvs.flatMap(take)),
        pvcs: (_, take) => Promise.resolve(this.pvcs.flatMap(take)),
        pods: (_, take) => Promise.resolve(this.pods.flatMap(take)),
      },
      { keep: ({ claim, withoutFiles }) => claim !== undefined || withoutFiles === undefined },
    );
    return checkVolumes(volumes, {
      policies,
      snapshotVolumes: undefined,
      defaultsToFiles: false,
      backupExcludePvc: false,
      movesData: false,
      ...more,
    });
  }
}

const claim = (name: string, claimName: string) => ({ name, persistentVolumeClaim: { claimName } });
const brief = ({ pvc, pv, pods, outcome, way, problem }: CheckedVolume): unknown[] => [
  pvc ?? pv ?? `${pods[0]?.pod ?? ''}/${pods[0]?.volume ?? ''}`,
  outcome,
  ...(way === undefined ? [] : [way]),
  ...(problem === undefined ? [] : [problem]),
];

it('says what a backup without policies does', async () => {
  const world = new World()
    .volume('disk', CSI)
    .volume('share', NFS)
    .pod(
      'web',
      [claim('a', 'disk'), { name: 'scratch', emptyDir: {} }, { name: 's', secret: {} }],
      {
        metadata: {
          name: 'web',
          namespace: 'app',
          annotations: { 'backup.velero.io/backup-volumes': 'scratch' },
        },
      },
    );
  expect((await world.check(undefined)).map(brief)).toEqual([
    ['disk', 'snapshot', 'csi'],
    ['share', 'snapshot', 'native'],
    ['web/scratch', 'fs-backup'],
  ]);
  const moved = await world.check(undefined, { movesData: true, defaultsToFiles: true });
  expect(moved.map(brief)).toEqual([
    ['disk', 'fs-backup'],
    ['share', 'snapshot', 'native'],
    ['web/scratch', 'fs-backup'],
  ]);
  const off = await world.check(undefined, { snapshotVolumes: false });
  expect(off.map(brief).slice(0, 2)).toEqual([
    ['disk', 'none'],
    ['share', 'none'],
  ]);
});

it('names what nobody backs up although a rule asks for its files', async () => {
  const world = new World()
    .volume('alone', CSI)
    .volume('stopped', CSI)
    .volume('raw', CSI)
    .volume('unused', CSI)
    .volume('twice', CSI)
    .pod('a', [claim('v', 'stopped')], { status: { phase: 'Pending' } })
    .pod('b', [claim('v', 'raw')], { spec: { containers: [{ volumeDevices: [{ name: 'v' }] }] } })
    .pod('c', [claim('v', 'unused')], { spec: { containers: [{}] } })
    .pod('d', [claim('v', 'twice')], { spec: { containers: [{}] } })
    .pod('e', [claim('v', 'twice')]);
  for (const pod of world.pods) pod.metadata satisfies object;
  const verdicts = (await world.check('[{action: {type: fs-backup}}]')).map(brief);
  expect(verdicts).toEqual([
    ['alone', 'none', 'no pod mounts it, so that nothing backs it up'],
    ['raw', 'none', 'pod b has it as a block device, which has no files'],
    ['stopped', 'none', 'pod a is not running, so that its files cannot be read'],
    ['twice', 'fs-backup'],
    ['unused', 'none', 'no container of pod c mounts it'],
  ]);
  const without = await world.check('[{action: {type: fs-backup}}]', { backupExcludePvc: true });
  expect(without.map(brief).at(-2)).toEqual([
    'twice',
    'none',
    'the backup leaves PVCs out, and with them their files',
  ]);
});

it('tells PVCs without a volume, excluded PVCs, volumes that nobody has claimed, and those of other namespaces', async () => {
  const world = new World()
    .volume('b', CSI, { pvc: { labels: { 'velero.io/exclude-from-backup': 'true' } } })
    .volume('c', CSI, { namespace: 'other' });
  world.pvcs.push({
    metadata: { name: 'a', namespace: 'app' },
    spec: {},
    status: { phase: 'Pending' },
  });
  world.pvs.push({ metadata: { name: 'free' }, spec: { ...CSI } });
  const hasNamespace = (namespace: string): boolean => namespace === 'app';
  const checked = await world.check('[{conditions: {nfs: {}}, action: {type: skip}}]', {
    hasNamespace,
  });
  expect(checked.map(brief)).toEqual([
    ['free', 'none', 'no PVC has the volume, and a CSI snapshot is taken of a PVC'],
    ['a', 'none', 'the PVC has no volume backing this claim'],
    ['b', 'skip', 'the PVC has the label velero.io/exclude-from-backup=true'],
  ]);
  const wanted = await world.check('[{action: {type: snapshot}}]', { hasNamespace });
  expect(brief(wanted[1] as CheckedVolume)).toEqual([
    'a',
    'none',
    'the PVC has no volume backing this claim',
  ]);
});

it('tells where Velero decides otherwise', async () => {
  const labels = { tier: 'db' };
  const world = new World()
    .volume('disk', CSI, { pvc: { labels } })
    .volume('share', NFS, { pvc: { labels } });
  world.pvcs.push({
    metadata: { name: 'wait', namespace: 'app' },
    spec: { storageClassName: 'gp2', resources: { requests: { storage: '5Gi' } } },
    status: { phase: 'Pending' },
  });
  const rules = `
  - {conditions: {pvcLabels: {tier: db}}, action: {type: custom}}
  - {conditions: {storageClass: [gp2]}, action: {type: skip}}`;
  const checked = await world.check(rules);
  const both = checked.map(({ pvc, outcome, velero }) => [pvc, outcome, velero?.outcome]);
  expect(both).toEqual([
    ['disk', 'custom', undefined],
    // For a volume without a CSI driver, Velero asks about the PV, and knows no labels then.
    ['share', 'custom', 'snapshot'],
    // Velero knows neither class nor size of a PVC without a volume.
    ['wait', 'skip', 'error'],
  ]);
  const own = await world.check('[{action: {type: snapshot-datamover}}]');
  expect(own[0]).toMatchObject({ outcome: 'snapshot', way: 'moved', velero: { outcome: 'error' } });
  expect(own[1]).toMatchObject({ outcome: 'error', problem: 'the volume is of no CSI driver' });
  expect(own[0]?.velero?.problem).toContain('refuses the whole document');
});

it('looks once more at the PVC before a native snapshot, as Velero does', async () => {
  const world = new World().volume('share', NFS, { pvc: { labels: { tier: 'db' } } });
  const rules = '[{conditions: {pvcLabels: {tier: db}}, action: {type: skip}}]';
  const [checked] = await world.check(rules);
  expect(checked?.outcome).toBe('skip');
  expect(checked?.velero).toBeUndefined();
});
