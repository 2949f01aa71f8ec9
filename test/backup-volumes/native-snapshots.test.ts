import { describe, expect, it } from 'vitest';
import { Results } from '../../src/backup/index.ts';
import {
  FailedSnapshotError,
  NativeSnapshots,
  zoneOf,
} from '../../src/backup-volumes/native-snapshots.ts';
import type { PersistentVolume } from '../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../src/plugin/index.ts';
import { aBackup } from '../support/builders.ts';

const signal = new AbortController().signal;
const BACKUP = aBackup({
  metadata: { name: 'b1', uid: 'u1', labels: { team: 'x' } },
  spec: {},
});
const pv = (metadata: object = {}, spec: object = {}): PersistentVolume =>
  ({ metadata: { name: 'pv1', ...metadata }, spec }) as unknown as PersistentVolume;

function snapshotterOf(answers: Partial<Record<'id' | 'info' | 'snapshot', string | Error>> = {}) {
  const asked: unknown[][] = [];
  const answer = <T>(what: 'id' | 'info' | 'snapshot', value: T): Promise<T> => {
    const given = answers[what];
    return given instanceof Error ? Promise.reject(given) : Promise.resolve(value);
  };
  const snapshotter = {
    volumeIdOf: () => answer('id', typeof answers.id === 'string' ? answers.id : 'vol-1'),
    volumeInfo: () => answer('info', { volumeType: 'gp3', iops: 100 }),
    createSnapshot: (...parameters: unknown[]) => {
      asked.push(parameters.slice(0, 3));
      return answer('snapshot', 'snap-1');
    },
  } as unknown as VolumeSnapshotter;
  return { snapshotter, asked };
}

function snapshotsOf(all: Record<string, ReturnType<typeof snapshotterOf> | Error>) {
  const log = new Results();
  const opened: string[] = [];
  const snapshots = new NativeSnapshots({
    backup: BACKUP,
    locations: Object.keys(all).map((name) => ({
      metadata: { name, uid: name, resourceVersion: '1', creationTimestamp: '' },
      spec: { provider: name, config: { region: 'r' } },
    })),
    snapshotters: (provider, config) => {
      opened.push(`${provider} ${JSON.stringify(config)}`);
      const given = all[provider];
      if (given instanceof Error) throw given;
      if (!given) throw new Error('none');
      return given.snapshotter;
    },
    log,
    signal,
  });
  return { snapshots, log, opened };
}

describe('a snapshot by a provider', () => {
  it('is taken in the first location that knows the volume, with the tags of the backup', async () => {
    const first = snapshotterOf({ id: '' });
    const second = snapshotterOf();
    const { snapshots, log, opened } = snapshotsOf({ one: first, two: second });
    const record = await snapshots.take(pv({ labels: { 'topology.kubernetes.io/zone': 'z1' } }));
    expect(record).toEqual({
      spec: {
        backupName: 'b1',
        backupUID: 'u1',
        location: 'two',
        persistentVolumeName: 'pv1',
        providerVolumeID: 'vol-1',
        volumeType: 'gp3',
        volumeAZ: 'z1',
        volumeIOPS: 100,
      },
      status: { phase: 'Completed', providerSnapshotID: 'snap-1' },
    });
    expect(second.asked).toEqual([
      ['vol-1', 'z1', { team: 'x', 'velero.io/backup': 'b1', 'velero.io/pv': 'pv1' }],
    ]);
    expect(log.warningCount).toBe(1);
    await snapshots.take(pv());
    // Each plugin is told its configuration once for a backup.
    expect(opened).toEqual(['one {"region":"r"}', 'two {"region":"r"}']);
  });
  it('is none where no location knows the volume; what could not be asked is an error', async () => {
    const { snapshots, log } = snapshotsOf({
      one: snapshotterOf({ id: new Error('no') }),
      two: new Error('no such plugin'),
    });
    expect(await snapshots.take(pv())).toBeUndefined();
    expect(log.errorCount).toBe(2);
  });
  it('that is refused is recorded as failed; a volume that nothing is known of is not', async () => {
    const { snapshots } = snapshotsOf({ one: snapshotterOf({ snapshot: new Error('quota') }) });
    const error = await snapshots.take(pv()).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(FailedSnapshotError);
    expect(error).toMatchObject({
      message: 'error taking snapshot of volume: quota',
      record: { status: { phase: 'Failed' } },
    });
    const { snapshots: other } = snapshotsOf({ one: snapshotterOf({ info: new Error('gone') }) });
    await expect(other.take(pv())).rejects.toMatchObject({
      code: 'NO_VOLUME_INFO',
      message: 'error getting volume info: gone',
    });
  });
});

describe('the zone of a volume', () => {
  const affinity = (...terms: object[][]): object => ({
    nodeAffinity: {
      required: { nodeSelectorTerms: terms.map((matchExpressions) => ({ matchExpressions })) },
    },
  });
  const isIn = (key: string, ...values: string[]): object => ({ key, operator: 'In', values });

  it.each([
    [
      {
        labels: {
          'topology.kubernetes.io/zone': 'a',
          'failure-domain.beta.kubernetes.io/zone': 'b',
        },
      },
      {},
      'a',
    ],
    [{ labels: { 'failure-domain.beta.kubernetes.io/zone': 'b' } }, {}, 'b'],
    [{}, affinity([isIn('other', 'x'), isIn('topology.ebs.csi.aws.com/zone', 'c', 'd')]), 'c'],
    [
      {},
      affinity([isIn('topology.gke.io/zone', 'e')], [isIn('topology.gke.io/zone', 'f')]),
      'e__f',
    ],
    [{}, affinity([{ key: 'topology.gke.io/zone', operator: 'NotIn', values: ['x'] }]), ''],
    [{}, {}, ''],
  ])('%j %j is %s', (metadata, spec, zone) => {
    expect(zoneOf(pv(metadata, spec))).toBe(zone);
  });
});
