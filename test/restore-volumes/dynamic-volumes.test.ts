import { describe, expect, it } from 'vitest';
import type { BackupVolumeInfo } from '../../src/archive/index.ts';
import { type DynamicVolume, planDynamicVolume } from '../../src/restore-volumes/index.ts';

const INFO: BackupVolumeInfo = {
  backupMethod: 'CSISnapshot',
  pvInfo: { reclaimPolicy: 'Retain', labels: { team: 'x', zone: 'old' } },
};
const claim = (phase = 'Bound', volumeName = 'pv') =>
  ({
    metadata: { namespace: 'app', name: 'data' },
    spec: { volumeName },
    status: { phase },
  }) as never;
const pv = (labels: object = {}, policy = 'Delete', phase = 'Bound', name = 'data') =>
  ({
    metadata: { name: 'pv', resourceVersion: '7', labels },
    spec: { persistentVolumeReclaimPolicy: policy, claimRef: { namespace: 'app', name } },
    status: { phase },
  }) as never;
const late = { volumeBindingMode: 'WaitForFirstConsumer' } as never;
const NOTHING = { claim: undefined, pv: undefined, storageClass: undefined };

describe('what is done about a volume that was provisioned anew', () => {
  it.each<[string, Partial<DynamicVolume>, string]>([
    ['its claim is not there', {}, 'wait'],
    ['its claim is not bound', { claim: claim('Pending') }, 'wait'],
    ['its claim waits for a pod', { claim: claim('Pending'), storageClass: late }, 'skip'],
    ['its claim names no volume', { claim: claim('Bound', '') }, 'wait'],
    ['it is not there', { claim: claim() }, 'wait'],
    ['it is not bound', { claim: claim(), pv: pv({}, 'Delete', 'Available') }, 'wait'],
    ['another claim has it', { claim: claim(), pv: pv({}, 'Delete', 'Bound', 'other') }, 'fail'],
    ['it was not filled', { claim: claim(), pv: pv(), operationPhase: 'Failed' }, 'skip'],
    ['it was filled', { claim: claim(), pv: pv(), operationPhase: 'Completed' }, 'patch'],
    ['it is bound', { claim: claim(), pv: pv() }, 'patch'],
    [
      'it is as the old one',
      { claim: claim(), pv: pv({ team: 'y', zone: 'z' }, 'Retain') },
      'nothing',
    ],
  ])('where %s', (_about, found, kind) => {
    const volume = { ...NOTHING, operationPhase: undefined, ...found };
    expect(planDynamicVolume(INFO, volume).kind).toBe(kind);
  });

  it('adds labels that are missing, and leaves those that others have set', () => {
    const volume = {
      ...NOTHING,
      claim: claim(),
      pv: pv({ zone: 'new' }),
      operationPhase: undefined,
    };
    expect(planDynamicVolume(INFO, volume)).toEqual({
      kind: 'patch',
      patch: {
        metadata: { resourceVersion: '7', labels: { team: 'x' } },
        spec: { persistentVolumeReclaimPolicy: 'Retain' },
      },
    });
  });

  it.each([[{ ...INFO, backupMethod: 'NativeSnapshot' }], [{ backupMethod: 'CSISnapshot' }]])(
    'leaves a volume alone that is none, or of which nothing is noted',
    (info) => {
      const volume = { ...NOTHING, claim: claim(), pv: pv(), operationPhase: undefined };
      expect(planDynamicVolume(info, volume)).toEqual({ kind: 'nothing' });
    },
  );
});
