import { describe, expect, it } from 'vitest';
import type { BackupVolumeInfo, NativeSnapshot } from '../../src/archive/index.ts';
import type { PersistentVolume } from '../../src/kube/index.ts';
import { planVolume, type VolumeFacts } from '../../src/restore-volumes/decisions.ts';

const NATIVE = {
  spec: { persistentVolumeName: 'pv', location: 'default', volumeType: 'gp3' },
  status: { phase: 'Completed', providerSnapshotID: 'snap-1' },
} as NativeSnapshot;
const pv = (persistentVolumeReclaimPolicy: string): PersistentVolume =>
  ({ metadata: { name: 'pv' }, spec: { persistentVolumeReclaimPolicy } }) as PersistentVolume;
const NOTHING: VolumeFacts = {
  info: undefined,
  native: undefined,
  restorePVs: undefined,
  hasFileBackup: false,
  hasCsiSnapshot: false,
  hasUploadResult: false,
};
const noted = (info: BackupVolumeInfo): Partial<VolumeFacts> => ({ info });

type Row = readonly [
  about: string,
  facts: Partial<VolumeFacts>,
  onDelete: string,
  onRetain: string,
  warning?: RegExp,
];

/** Decisions for a volume with reclaim policy Delete, and for a volume with Retain. */
const ROWS: readonly Row[] = [
  [
    'a native snapshot',
    { ...noted({ backupMethod: 'NativeSnapshot' }), native: NATIVE },
    'snapshot',
    'snapshot',
  ],
  [
    'a native snapshot, restorePVs true',
    { ...noted({ backupMethod: 'NativeSnapshot' }), native: NATIVE, restorePVs: true },
    'snapshot',
    'snapshot',
  ],
  [
    'a native snapshot, restorePVs false',
    { ...noted({ backupMethod: 'NativeSnapshot' }), native: NATIVE, restorePVs: false },
    'withoutSnapshot',
    'withoutSnapshot',
  ],
  [
    'a note of a native snapshot that is not there',
    noted({ backupMethod: 'NativeSnapshot' }),
    'withoutSnapshot',
    'withoutSnapshot',
    /stands for the storage/,
  ],
  [
    'a pod volume backup',
    noted({ backupMethod: 'PodVolumeBackup', result: 'succeeded' }),
    'provision',
    'provision',
  ],
  [
    'a pod volume backup, restorePVs false',
    { ...noted({ backupMethod: 'PodVolumeBackup' }), restorePVs: false },
    'provision',
    'provision',
  ],
  [
    'a pod volume backup that failed',
    noted({ backupMethod: 'PodVolumeBackup', result: 'failed', pvbInfo: { podName: 'p' } }),
    'provision',
    'provision',
    /failed \(p\): its claim gets an empty/,
  ],
  [
    'a CSI snapshot',
    noted({ backupMethod: 'CSISnapshot', snapshotDataMoved: false }),
    'provision',
    'provision',
  ],
  [
    'a CSI snapshot that was moved',
    noted({ backupMethod: 'CSISnapshot', snapshotDataMoved: true }),
    'provision',
    'provision',
  ],
  [
    'a CSI snapshot that failed',
    noted({ backupMethod: 'CSISnapshot', result: 'failed' }),
    'provision',
    'provision',
    /snapshot failed/,
  ],
  [
    'a volume that was skipped',
    noted({ skipped: true, skippedReason: 'by the policy' }),
    'provision',
    'asIs',
  ],
  ['a method that nobody knows', noted({ backupMethod: 'Other' }), 'provision', 'asIs'],
  [
    'a note without a method, and a file backup',
    { ...noted({}), hasFileBackup: true },
    'provision',
    'asIs',
  ],
  ['no note, a native snapshot', { native: NATIVE }, 'snapshot', 'snapshot'],
  [
    'no note, a native snapshot and all others',
    { native: NATIVE, hasFileBackup: true, hasCsiSnapshot: true },
    'snapshot',
    'snapshot',
  ],
  [
    'no note, a native snapshot, restorePVs false',
    { native: NATIVE, restorePVs: false },
    'withoutSnapshot',
    'withoutSnapshot',
  ],
  ['no note, a file backup', { hasFileBackup: true }, 'provision', 'provision'],
  ['no note, a VolumeSnapshot', { hasCsiSnapshot: true }, 'provision', 'provision'],
  ['no note, the result of an upload', { hasUploadResult: true }, 'provision', 'provision'],
  ['nothing at all', {}, 'provision', 'asIs'],
];

describe('what a restore does about a PersistentVolume', () => {
  it.each(ROWS.map((row) => [row[0], row] as const))('%s', (_about, row) => {
    const [, facts, onDelete, onRetain, warning] = row;
    const given = { ...NOTHING, ...facts };
    const plans = [planVolume(pv('Delete'), given), planVolume(pv('Retain'), given)];
    expect(plans.map(({ kind }) => kind)).toEqual([onDelete, onRetain]);
    const [, retained] = plans;
    const text = retained && 'warning' in retained ? (retained.warning ?? '') : '';
    if (warning) expect(text).toMatch(warning);
    else expect(text).toBe('');
  });

  it('says that a volume comes up empty, and why', () => {
    const info = { skipped: true, skippedReason: 'by the policy' };
    expect(planVolume(pv('Delete'), { ...NOTHING, info })).toMatchObject({
      warning:
        'the backup has none of its data (by the policy), and its reclaim policy is Delete: its claim gets an empty volume',
    });
  });
});
