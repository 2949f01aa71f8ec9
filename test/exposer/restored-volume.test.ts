import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger, systemClock } from '../../src/base/index.ts';
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
      client,
      clock: systemClock,
      logger: silentLogger,
      namespace: 'velero',
      config: {},
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

describe('a volume whose policy the admission policy lets nobody put back', () => {
  it.each([
    ['keeps its policy, where an agent of an earlier version handed it over', {}, true],
    ['is tried again, where this version did', { 'longshore.io/handed-over': 'u-1' }, false],
  ])('%s', async (_, marks, isClean) => {
    const volume = {
      metadata: { name: 'pv-1', annotations: marks },
      spec: {
        claimRef: { namespace: 'app', name: 'data' },
        persistentVolumeReclaimPolicy: 'Retain',
      },
      status: { phase: 'Bound' },
    };
    const client = {
      find: ({ plural }: { plural: string }) =>
        Promise.resolve(plural === 'persistentvolumes' ? volume : undefined),
      patch: () => Promise.reject(new CodedError('KUBE_INVALID', 'denied request')),
    };
    const config = {};
    const logger = silentLogger;
    const options = { client, clock: systemClock, config, logger, namespace: 'velero' };
    const exposer = new GenericRestoreExposer(options as never);
    const annotations = {
      'longshore.io/restored-volume': 'pv-1',
      'longshore.io/reclaim-policy': 'Delete',
    };
    const download = {
      metadata: { name: 'down', uid: 'u-1', annotations },
      spec: { targetVolume: { namespace: 'app', pvc: 'data', pv: '' } },
      status: { phase: 'Failed' },
    } as unknown as DataDownload;
    expect(await exposer.cleanUp(download, [])).toBe(isClean);
  });
});

it('an agent that another one was faster than takes the policy that was noted, and not the one that was set since', async () => {
  const target = { metadata: { name: 'data', namespace: 'app', uid: 't-1' }, spec: { volumeName: 'pv-1' } }; // prettier-ignore
  const claim = {
    metadata: { name: 'down', namespace: 'velero', uid: 'c-1', ownerReferences: [{ uid: 'u-1' }] },
    spec: { volumeName: 'pv-1' },
    status: { phase: 'Bound' },
  };
  // The volume has Retain already, so that it outlives its claim.
  const volume = {
    metadata: { name: 'pv-1', uid: 'v-1' },
    spec: {
      claimRef: { namespace: 'app', name: 'data', uid: 't-1' },
      persistentVolumeReclaimPolicy: 'Retain',
    },
    status: { phase: 'Bound' },
  };
  const download = {
    metadata: { name: 'down', namespace: 'velero', uid: 'u-1', resourceVersion: '1' },
    spec: { targetVolume: { namespace: 'app', pvc: 'data', pv: '' } },
  };
  let current: object = download;
  const notes: unknown[] = [];
  const policies: string[] = [];
  const of = ({ plural }: { plural: string }, { namespace }: { namespace?: string }): unknown =>
    ({
      datadownloads: current,
      persistentvolumes: volume,
      persistentvolumeclaims: namespace === 'app' ? target : claim,
    })[plural];
  const client = {
    clock: systemClock,
    get: (resource: never, ref: never) => Promise.resolve(of(resource, ref)),
    find: ({ plural }: { plural: string }) =>
      Promise.resolve(plural === 'persistentvolumes' ? volume : undefined),
    listPage: (resource: never, scope: never) =>
      Promise.resolve({ items: [of(resource, scope)], resourceVersion: '1' }),
    patch: ({ plural }: { plural: string }, _: unknown, patch: typeof download & typeof volume) => {
      if (plural !== 'datadownloads') {
        policies.push(patch.spec.persistentVolumeReclaimPolicy);
        return Promise.resolve({});
      }
      notes.push(patch.metadata.resourceVersion);
      const annotations = {
        'longshore.io/restored-volume': 'pv-1',
        'longshore.io/reclaim-policy': 'Delete',
      };
      current = { ...download, metadata: { ...download.metadata, annotations } };
      return Promise.reject(new CodedError('KUBE_CONFLICT', 'another one was faster'));
    },
  };
  const exposer = new GenericRestoreExposer({
    client,
    clock: systemClock,
    logger: silentLogger,
    namespace: 'velero',
    config: {},
  } as never);
  await exposer.rebind(download as unknown as DataDownload, {
    operationTimeoutMs: 5000,
    signal: new AbortController().signal,
  });
  expect(notes).toEqual(['1']);
  expect(policies).toEqual(['Delete']);
});
