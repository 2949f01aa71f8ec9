import { describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { Results } from '../../src/backup/index.ts';
import {
  ClusterVolumes,
  operationTimeoutNs,
  POD_VOLUME_ACTION,
  type VolumeFact,
} from '../../src/backup-volumes/index.ts';
import { podVolumeTimeoutMs } from '../../src/backup-volumes/timeouts.ts';
import type { Backup, KubeClient, KubeObject } from '../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../src/plugin/index.ts';
import type { VolumeHelper } from '../../src/volume-policy/index.ts';
import { aBackup } from '../support/builders.ts';

const signal = new AbortController().signal;
const BACKUP = aBackup({
  metadata: { name: 'b1', namespace: 'velero', uid: 'u1' },
  spec: {},
});
const pv = (name: string, spec: object = {}): KubeObject =>
  ({
    metadata: { name },
    spec: {
      claimRef: { namespace: 'a', name: `claim-${name}` },
      persistentVolumeReclaimPolicy: 'Delete',
      ...spec,
    },
  }) as unknown as KubeObject;

const RULE = { number: 2, place: { source: 'ConfigMap velero/p', line: 7 } };

interface World {
  readonly wants?: boolean;
  readonly isSkip?: boolean;
  readonly volumeId?: string;
  readonly fails?: boolean;
  readonly filesOf?: readonly string[];
  /** The action of the rule that wants a snapshot. */
  readonly action?: string;
  readonly hasClaim?: boolean;
  readonly hasCsi?: boolean;
  /** The Backup moves all snapshots. */
  readonly moves?: boolean;
  /** VolumeSnapshots of the backup, whether each is moved. */
  readonly snapshots?: readonly boolean[];
}

function opened({
  wants = true,
  isSkip = false,
  volumeId = 'vol',
  fails = false,
  filesOf = [],
  action = isSkip ? 'skip' : undefined,
  hasClaim = true,
  hasCsi = true,
  moves = false,
  snapshots = [],
}: World = {}) {
  let taken = 0;
  const snapshotter = {
    volumeIdOf: () => Promise.resolve(volumeId),
    volumeInfo: () => Promise.resolve({ volumeType: 't', iops: undefined }),
    createSnapshot: () => {
      taken++;
      return fails ? Promise.reject(new Error('quota')) : Promise.resolve(`snap-${taken}`);
    },
  } as unknown as VolumeSnapshotter;
  const helper = {
    snapshotDecision: () =>
      Promise.resolve({
        yes: wants,
        because: action
          ? { by: 'rule', rule: { ...RULE, action: { type: action } } }
          : { by: 'nothing' },
      }),
    hasClaim: () => Promise.resolve(hasClaim),
    hasAction: (type: string) => type === action,
    filesDecision: ({ name }: { name: string }) =>
      Promise.resolve({
        yes: filesOf.includes(name),
        because:
          name === 'unbound'
            ? { by: 'noVolume', code: 'NO_VOLUME', text: 'PVC a/c has no volume' }
            : { by: 'nothing' },
      }),
  } as unknown as VolumeHelper;
  const lines: string[] = [];
  const log = new Results({ ...silentLogger, info: (_, message) => lines.push(message) });
  const volumes = new ClusterVolumes({
    backup: { ...BACKUP, spec: { snapshotMoveData: moves } },
    helper,
    log,
    signal,
    hasCsi,
    resourceTimeoutMs: 10,
    podVolumeTimeoutMs: 10,
    client: {
      list: ({ plural }: { plural: string }) =>
        Promise.resolve(
          plural === 'volumesnapshots' ? [...snapshots.map(snapshotOf), OF_OTHERS] : [],
        ),
      find: () => Promise.resolve(undefined),
    } as unknown as KubeClient,
    locations: [{ metadata: { name: 'l' }, spec: { provider: 'p' } } as never],
    snapshotters: () => snapshotter,
  });
  return { volumes, log, lines, taken: () => taken };
}

const snapshotOf = (isMoved: boolean) => ({
  metadata: {
    name: 's',
    namespace: 'a',
    labels: {
      'longshore.io/moved': String(isMoved),
      'velero.io/backup-name': BACKUP.metadata.name,
      'velero.io/backup-uid': BACKUP.metadata.uid,
    },
  },
  spec: { source: { persistentVolumeClaimName: 'claim' } },
});

/** A backup of the same name in another installation. */
const OF_OTHERS = {
  metadata: {
    name: 's',
    namespace: 'a',
    labels: { 'velero.io/backup-name': BACKUP.metadata.name, 'velero.io/backup-uid': 'other' },
  },
  spec: { source: {} },
};

const after = async (world: ReturnType<typeof opened>, object: KubeObject) => {
  const {
    facts = [],
    errors = [],
    hasEffect,
  } = (await world.volumes.after('persistentvolumes', object)) ?? {};
  return { kinds: facts.map(({ kind }) => kind), facts, errors, hasEffect };
};

describe('a PersistentVolume of a backup', () => {
  it('is snapshotted by its provider, and what was done must not be done again', async () => {
    const world = opened();
    const { kinds, hasEffect, errors } = await after(world, pv('v'));
    expect({ kinds, hasEffect, errors }).toEqual({
      kinds: ['volume', 'native'],
      hasEffect: true,
      errors: [],
    });
    const { nativeSnapshots, volumeInfos } = await world.volumes.outcome([], signal);
    expect(nativeSnapshots).toHaveLength(1);
    expect(volumeInfos).toMatchObject([
      { pvName: 'v', backupMethod: 'NativeSnapshot', result: 'succeeded' },
    ]);
  });
  it('of a CSI driver is left to the actions for PVCs; what is noted of it has no effect', async () => {
    const world = opened();
    expect(await after(world, pv('v', { csi: { driver: 'd' } }))).toMatchObject({
      kinds: ['volume'],
      hasEffect: false,
    });
    expect(world.taken()).toBe(0);
  });
  it.each([
    [
      { wants: false },
      'volumeSnapshot: not satisfy the criteria for VolumePolicy or the legacy snapshot way;',
    ],
    [
      { wants: false, isSkip: true },
      "volumeSnapshot: matched action is 'skip' in chosen resource policies;",
    ],
    [{ volumeId: '' }, 'volumeSnapshot: no applicable volumesnapshotter found;'],
  ])('that is left out has a reason: %j', async (given, reason) => {
    const world = opened(given);
    expect(await after(world, pv('v'))).toMatchObject({
      kinds: ['volume', 'skipped'],
      hasEffect: false,
    });
    const { volumeInfos } = await world.volumes.outcome([], signal);
    expect(volumeInfos).toMatchObject([{ pvName: 'v', skipped: true, skippedReason: reason }]);
  });
  it('that a rule leaves out is told with that rule in the log, also by a server that goes on', async () => {
    const first = opened({ wants: false, isSkip: true });
    const { facts } = await after(first, pv('v'));
    const later = opened();
    later.volumes.resume(facts);
    for (const { volumes, lines } of [first, later]) {
      await volumes.outcome([], signal);
      expect(lines.at(-1)).toContain('"rule":"rule 2 of ConfigMap velero/p, line 7"');
    }
  });
  it('that no driver of CSI has is noted as such with its claim, also by a server that goes on', async () => {
    const claim = { metadata: { name: 'c' }, spec: { volumeName: 'v' } } as unknown as KubeObject;
    const first = opened({ volumeId: '' });
    const { facts } = await after(first, pv('v'));
    const second = opened();
    second.volumes.resume(facts);
    for (const { volumes } of [first, second]) {
      await volumes.after('persistentvolumeclaims', claim);
      const { volumeInfos } = await volumes.outcome([], signal);
      expect(volumeInfos.map(({ skippedReason }) => skippedReason)).toEqual([
        "csiSnapshot: skipped b/c it's not a CSI volume;volumeSnapshot: no applicable volumesnapshotter found;",
      ]);
    }
    const taken = opened();
    await after(taken, pv('v'));
    await taken.volumes.after('persistentvolumeclaims', claim);
    expect((await taken.volumes.outcome([], signal)).volumeInfos).toMatchObject([
      { skipped: false },
    ]);
    for (const [world, spec] of [
      [opened({ wants: false }), {}],
      [opened(), { csi: { driver: 'd' } }],
    ] as const) {
      await after(world, pv('v', spec));
      expect(await world.volumes.after('persistentvolumeclaims', claim)).toBeUndefined();
    }
  });
  it('whose snapshot is refused is an error of the item, and a record all the same', async () => {
    const world = opened({ fails: true });
    const { kinds, errors, hasEffect } = await after(world, pv('v'));
    expect(kinds).toEqual(['volume', 'native']);
    expect([errors.length, hasEffect]).toEqual([1, true]);
    const { nativeSnapshots } = await world.volumes.outcome([], signal);
    expect(nativeSnapshots[0]?.status?.phase).toBe('Failed');
  });
});

describe('a rule that names the way of a snapshot', () => {
  const csi = { csi: { driver: 'd' } };
  const refusalOf = async (world: World, spec: object) => {
    const { errors, kinds } = await after(opened(world), pv('v', spec));
    return [...errors.map(String), ...kinds];
  };

  it('has a VolumeSnapshotter take a volume of a CSI driver', async () => {
    const world = opened({ action: 'snapshot-native' });
    expect(await after(world, pv('v', csi))).toMatchObject({ kinds: ['volume', 'native'] });
    const { volumeInfos } = await world.volumes.outcome([], signal);
    expect(volumeInfos).toMatchObject([
      { backupMethod: 'NativeSnapshot', decidedBy: 'rule 2 of ConfigMap velero/p, line 7' },
    ]);
  });

  it('is refused at the volume where nobody else could say so, and the reason is in the files', async () => {
    const native = { action: 'snapshot-native', volumeId: '' };
    expect((await refusalOf(native, csi))[0]).toContain(
      'rule 2 of ConfigMap velero/p, line 7, wants snapshot-native, which cannot be done: no applicable volumesnapshotter found',
    );
    expect((await refusalOf({ action: 'snapshot-csi', hasClaim: false }, csi))[0]).toContain(
      'no PVC has the volume, and a CSI snapshot is taken of a PVC',
    );
    const without = { action: 'snapshot-datamover', hasCsi: false };
    expect((await refusalOf(without, csi))[0]).toContain('--features=EnableCSI');
    const world = opened(native);
    await after(world, pv('v', csi));
    const { volumeInfos } = await world.volumes.outcome([], signal);
    expect(volumeInfos).toMatchObject([
      { skipped: true, skippedReason: 'volumeSnapshot: no applicable volumesnapshotter found;' },
    ]);
  });

  it.each([
    ['all are kept', {}, 2],
    ['all are moved', { moves: true }, 0],
    ['a rule keeps some of those that are moved', { moves: true, action: 'snapshot-csi' }, 1],
    ['a rule moves some of those that are kept', { action: 'snapshot-datamover' }, 1],
  ])('counts the snapshots that stay where %s', async (_, given, count) => {
    const isMixed = 'action' in given;
    const { volumes } = opened({ ...given, snapshots: [false, isMixed] });
    expect((await volumes.outcome([], signal)).csiSnapshots).toBe(count);
  });

  it('is left to the action for PVCs, which takes the snapshot or says why it cannot', async () => {
    for (const action of ['snapshot-csi', 'snapshot-datamover']) {
      expect(await refusalOf({ action }, csi)).toEqual(['volume']);
      expect(await refusalOf({ action }, {})).toEqual(['volume', 'skipped']);
    }
  });
});

describe('a pod that does not run', () => {
  it('keeps no other pod from being read for a volume of both', async () => {
    const { volumes } = opened({ filesOf: ['data'] });
    const podOf = (name: string, phase: string) =>
      ({
        metadata: { name, namespace: 'a', uid: name },
        spec: {
          nodeName: 'n',
          containers: [{ volumeMounts: [{ name: 'data' }] }],
          volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'shared' } }],
        },
        status: { phase },
      }) as unknown as KubeObject;
    const [over, running] = [podOf('over', 'Succeeded'), podOf('running', 'Running')];
    for (const pod of [over, running]) await volumes.before('pods', pod);
    expect((await volumes.after('pods', over))?.operations).toEqual([]);
    // Without an agent, the requested backup of the running pod is an error.
    const { errors = [] } = (await volumes.after('pods', running)) ?? {};
    expect(errors.map(String).join()).toContain('daemonset pod not found in running state');
  });
});

describe('a pod whose PVC is not bound', () => {
  const podIn = (phase: string) =>
    ({
      metadata: { name: 'p', namespace: 'a', uid: 'p' },
      spec: { volumes: [{ name: 'unbound', persistentVolumeClaim: { claimName: 'c' } }] },
      status: { phase },
    }) as unknown as KubeObject;
  it('is in the backup, and nothing is read of the PVC', async () => {
    const { volumes } = opened();
    await volumes.before('pods', podIn('Pending'));
    expect(await volumes.after('pods', podIn('Pending'))).toBeUndefined();
  });
  it('is an error if the pod runs: then the list of PVCs is out of date', async () => {
    await expect(opened().volumes.before('pods', podIn('Running'))).rejects.toMatchObject({
      code: 'NO_VOLUME',
    });
  });
});

describe('a server that goes on', () => {
  it('knows what the one before it did, from the facts alone', async () => {
    const facts: VolumeFact[] = [];
    const first = opened();
    facts.push(...(await after(first, pv('taken'))).facts);
    facts.push(...(await after(opened({ wants: false }), pv('skipped'))).facts);
    facts.push({ kind: 'pod', uid: 'p1', claims: ['a/claim-files'], names: ['pvb-1'] });
    const next = opened({ filesOf: ['data'] });
    next.volumes.resume(JSON.parse(JSON.stringify(facts)) as VolumeFact[]);
    const { nativeSnapshots, volumeInfos } = await next.volumes.outcome([], signal);
    expect(nativeSnapshots.map(({ status }) => status?.providerSnapshotID)).toEqual(['snap-1']);
    expect(volumeInfos.map(({ pvName, skipped }) => [pvName, skipped])).toEqual([
      ['skipped', true],
      ['taken', false],
    ]);
    // A claim that was read through another pod is not read again.
    const pod = {
      metadata: { name: 'q', namespace: 'a', uid: 'p2' },
      spec: {
        containers: [],
        volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'claim-files' } }],
      },
    } as unknown as KubeObject;
    await next.volumes.before('pods', pod);
    expect(await next.volumes.after('pods', pod)).toBeUndefined();
  });
});

describe('how long the files of pods may take', () => {
  const HOUR_MS = 3_600_000;
  const backupWith = (annotation?: string): Backup => ({
    metadata: {
      ...BACKUP.metadata,
      ...(annotation !== undefined && {
        annotations: { 'velero.io/pod-volume-timeout': annotation },
      }),
    },
    spec: {},
  });
  it('is what the server says, or an annotation of the Backup', () => {
    const log = new Results();
    const of = (annotation?: string): number =>
      podVolumeTimeoutMs(backupWith(annotation), 4 * HOUR_MS, log);
    expect([of(), of(''), of('24h'), of('1h30m')]).toEqual(
      [4, 4, 24, 1.5].map((hours) => hours * HOUR_MS),
    );
    expect(log.warningCount).toBe(0);
    expect([of('1d'), of('soon'), of('-1h')]).toEqual([4, 4, 4].map((hours) => hours * HOUR_MS));
    expect(log.warningCount).toBe(3);
  });
  it('is what their operations may take as well', () => {
    const HOUR_NS = 3_600_000_000_000n;
    const of = (action: string, askedNs: bigint, ofActions = new Map<string, bigint>()) =>
      operationTimeoutNs(action, backupWith('24h'), askedNs, {
        ofActions,
        podVolumeMs: 4 * HOUR_MS,
      });
    expect(of(POD_VOLUME_ACTION, HOUR_NS)).toBe(24n * HOUR_NS);
    expect(of(POD_VOLUME_ACTION, 48n * HOUR_NS)).toBe(48n * HOUR_NS);
    expect(of('example.io/other', HOUR_NS)).toBe(HOUR_NS);
    // The server's setting for a single action counts, longer or shorter.
    const own = new Map([
      ['example.io/other', 2n * HOUR_NS],
      [POD_VOLUME_ACTION, 3n],
    ]);
    expect(of('example.io/other', HOUR_NS, own)).toBe(2n * HOUR_NS);
    expect(of(POD_VOLUME_ACTION, HOUR_NS, own)).toBe(3n);
    expect(of('example.io/third', HOUR_NS, own)).toBe(HOUR_NS);
  });
});
