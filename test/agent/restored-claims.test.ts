import { describe, expect, it } from 'vitest';
import { podVolumeRestores } from '../../src/agent/directions/pod-volumes.ts';
import type { KubeObject, ObjectRef, PodVolumeRestore, Resource } from '../../src/kube/index.ts';

const SIGNAL = new AbortController().signal;
const MADE = '2026-01-01T00:00:10Z';

const restore = (note: object | undefined, uid = 'pvr'): PodVolumeRestore =>
  ({
    metadata: {
      name: 'pvr-1',
      namespace: 'velero',
      uid,
      creationTimestamp: MADE,
      annotations: note && { 'longshore.io/restored': JSON.stringify(note) },
    },
    spec: { pod: { namespace: 'app', name: 'job-0', uid: 'pod-1' }, volume: 'data' },
  }) as unknown as PodVolumeRestore;
const NOTED = { by: 'mover', bootId: 'b', isOfClaim: true, lastingClaim: 'claim' };
const claim = (changes: object = {}, phase = 'Bound'): object => ({
  metadata: { name: 'claim', namespace: 'app', creationTimestamp: MADE, ...changes },
  status: { phase },
});
const WENT_ON = {
  initContainerStatuses: [{ name: 'restore-wait', state: { terminated: { exitCode: 0 } } }],
};
const pod = (status: object, uid = 'pod-1'): object => ({
  metadata: { name: 'job-0', namespace: 'app', uid },
  spec: {},
  status,
});

/** Asks a cluster with these objects, by kind. */
function isSeenDone(objects: Readonly<Record<string, unknown>>): Promise<boolean> | undefined {
  const names = { Pod: 'app/job-0', PersistentVolumeClaim: 'app/claim' } as Record<string, string>;
  const find = ({ kind }: Resource<KubeObject>, ref: ObjectRef): Promise<unknown> => {
    const name = `${ref.namespace ?? ''}/${ref.name}`;
    return Promise.resolve(name === (names[kind] ?? 'velero/pvr-1') ? objects[kind] : undefined);
  };
  const direction = podVolumeRestores({
    exposer: { client: { find } } as never,
    node: 'node-1',
    restoredPods: { get: () => undefined },
    sharedClaims: undefined as never,
  });
  // As a watch had it before the mover noted anything.
  return direction.isSeenDone?.(restore(undefined), SIGNAL);
}

describe('a restore whose mover died before it could say how it went', () => {
  it.each([
    ['the pod has gone on', { Pod: pod(WENT_ON) }, true],
    ['the pod still waits', { Pod: pod({}), PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim() }, false], // prettier-ignore
    ['the pod is gone', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim() }, true],
    ['another pod has its name', { Pod: pod(WENT_ON, 'pod-2'), PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim() }, true], // prettier-ignore
    ['the pod was evicted', { Pod: pod({ phase: 'Failed' }), PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim() }, true], // prettier-ignore
    ['nothing is noted', { PodVolumeRestore: restore(undefined), PersistentVolumeClaim: claim() }, false], // prettier-ignore
    ['it is noted on a restore that had the name', { PodVolumeRestore: restore(NOTED, 'other'), PersistentVolumeClaim: claim() }, false], // prettier-ignore
    ['its claim went with the pod', { PodVolumeRestore: restore({ ...NOTED, lastingClaim: undefined }), PersistentVolumeClaim: claim() }, false], // prettier-ignore
    ['its claim is gone', { PodVolumeRestore: restore(NOTED) }, false],
    ['its claim is going', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim({ deletionTimestamp: MADE }) }, false], // prettier-ignore
    ['its claim goes with the pod', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim({ ownerReferences: [{ uid: 'pod-1' }] }) }, false], // prettier-ignore
    ['its claim is of a StatefulSet', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim({ ownerReferences: [{ uid: 'set' }] }) }, true], // prettier-ignore
    ['its claim has lost its volume', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim({}, 'Lost') }, false], // prettier-ignore
    ['its claim was made anew since', { PodVolumeRestore: restore(NOTED), PersistentVolumeClaim: claim({ creationTimestamp: '2026-01-01T00:00:11Z' }) }, false], // prettier-ignore
  ])('%s', async (_what, objects, expected) => {
    expect(await isSeenDone(objects)).toBe(expected);
  });
});
