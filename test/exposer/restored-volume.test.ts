import { describe, expect, it } from 'vitest';
import { silentLogger, systemClock } from '../../src/base/index.ts';
import { GenericRestoreExposer } from '../../src/exposer/generic-restore.ts';
import type { DataDownload } from '../../src/kube/index.ts';

describe('the volume of a restore, whose users keep it (Retain), while the clean-up goes on', () => {
  it.each([
    ['Completed', []],
    ['Failed', ['Delete']],
  ])('%s: the policy is put back: %j', async (phase, expected) => {
    const policies: string[] = [];
    const volume = {
      metadata: { name: 'pv-1' },
      spec: {
        claimRef: { namespace: 'app', name: 'data' },
        persistentVolumeReclaimPolicy: 'Retain',
      },
      status: { phase: 'Bound' },
    };
    const client = {
      find: ({ plural }: { plural: string }) =>
        Promise.resolve(plural === 'persistentvolumes' ? volume : undefined),
      patch: (_: unknown, __: unknown, { spec }: typeof volume) => {
        policies.push(spec.persistentVolumeReclaimPolicy);
        return Promise.resolve({});
      },
    };
    const exposer = new GenericRestoreExposer({
      ...{ client, clock: systemClock, logger: silentLogger, namespace: 'velero' },
    } as never);
    const download = {
      metadata: {
        name: 'down',
        uid: 'u-1',
        annotations: {
          'longshore.io/restored-volume': 'pv-1',
          'longshore.io/reclaim-policy': 'Delete',
        },
      },
      spec: { targetVolume: { namespace: 'app', pvc: 'data', pv: '' } },
      status: { phase },
    } as unknown as DataDownload;
    expect(await exposer.cleanUp(download, [])).toBe(true);
    expect(policies).toEqual(expected);
  });
});
