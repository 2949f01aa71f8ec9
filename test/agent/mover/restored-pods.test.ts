import { beforeEach, describe, expect, it } from 'vitest';
import {
  endedPod,
  isLeaving,
  RestoresByPod,
  SharedClaims,
  trimmedRestored,
} from '../../../src/agent/mover/restored-pods.ts';
import { keyOf, type Listener, type Pod, type PodVolumeRestore } from '../../../src/kube/index.ts';

const POD = { namespace: 'app', name: 'web', uid: 'pod-1' };
const claim = (name: string, claimName: string): object => ({
  name,
  persistentVolumeClaim: { claimName },
});
const pod = trimmedRestored({
  metadata: { ...POD, resourceVersion: '1' },
  spec: {
    containers: [],
    volumes: [
      claim('left', 'data'),
      claim('right', 'data'),
      claim('own', 'other'),
      { name: 'tmp' },
    ],
  },
} as unknown as Pod);

it('a pod has ended when it is gone, and when a list shows another one of its name', () => {
  const later = { ...pod, metadata: { ...pod.metadata, resourceVersion: '2' } };
  const another = { ...pod, metadata: { ...pod.metadata, uid: 'pod-2' } };
  expect(endedPod(undefined, pod)).toBe(pod);
  expect(endedPod(another, pod)).toBe(pod);
  expect(endedPod(later, pod)).toBeUndefined();
  expect(endedPod(pod, undefined)).toBeUndefined();
});

it('a pod leaves once: when it is going, also when first seen, when it is gone, when another one has its name', () => {
  const going = {
    ...pod,
    metadata: { ...pod.metadata, deletionTimestamp: '2026-01-01T00:00:00Z' },
  };
  const another = { ...pod, metadata: { ...pod.metadata, uid: 'pod-2' } };
  expect(isLeaving(going, pod)).toBe(true);
  expect(isLeaving(going, undefined)).toBe(true);
  expect(isLeaving(undefined, pod)).toBe(true);
  expect(isLeaving(another, pod)).toBe(true);
  expect(isLeaving(going, going)).toBe(false);
  expect(isLeaving(pod, undefined)).toBe(false);
});

describe('restores into a claim that a pod has twice', () => {
  const restores = new Map<string, PodVolumeRestore>();
  let listeners: Listener<PodVolumeRestore>[];
  let byPod: RestoresByPod;
  let shared: SharedClaims;

  beforeEach(() => {
    restores.clear();
    listeners = [];
    byPod = new RestoresByPod({
      get: (ref) => restores.get(keyOf(ref)),
      onChange: (listener) => {
        listeners.push(listener);
      },
    });
    shared = new SharedClaims(byPod);
  });

  function tell(
    name: string,
    volume: string,
    phase?: NonNullable<PodVolumeRestore['status']>['phase'],
    pod = POD,
  ): PodVolumeRestore {
    const metadata = { name, namespace: 'velero', uid: `uid-${name}` };
    const status = { phase, progress: { totalBytes: 7, bytesDone: 7 } };
    const restore = { metadata, spec: { pod, volume }, status } as unknown as PodVolumeRestore;
    const key = keyOf(metadata);
    const before = restores.get(key);
    restores.set(key, restore);
    for (const listener of listeners) listener(restore, before);
    return restore;
  }

  function forget(name: string): void {
    const key = keyOf({ namespace: 'velero', name });
    const before = restores.get(key);
    restores.delete(key);
    for (const listener of listeners) listener(undefined, before);
  }

  it('the first that asks goes first, whatever it is called, until it ends', () => {
    const second = tell('z', 'left');
    const first = tell('a', 'right');
    expect(shared.hindranceOf(second, pod, true)).toBeUndefined();
    const waits = {
      waitsFor: expect.stringContaining('z restores volume left, which is the same') as string,
    };
    expect(shared.hindranceOf(first, pod, true)).toEqual(waits);
    expect(shared.hindranceOf(second, pod, true)).toBeUndefined();
    tell('z', 'left', 'InProgress');
    expect(shared.hindranceOf(first, pod, true)).toEqual(waits);
    expect(byPod.waitingFor(POD)).toEqual(['velero/a']);
    tell('z', 'left', 'Failed');
    expect(shared.hindranceOf(first, pod, true)).toBeUndefined();
  });

  it('one that was asked of before the other was made is remembered', () => {
    const early = tell('z', 'left');
    expect(shared.hindranceOf(early, pod, true)).toBeUndefined();
    const late = tell('a', 'right');
    expect(shared.hindranceOf(late, pod, true)).toHaveProperty('waitsFor');
    forget('z');
    expect(shared.hindranceOf(late, pod, true)).toBeUndefined();
  });

  it('what one restored the other has too, also when the pod has gone on by then', () => {
    tell('a', 'left', 'InProgress');
    const other = tell('b', 'right');
    expect(shared.hindranceOf(other, pod, false)).toHaveProperty('waitsFor');
    tell('a', 'left', 'Completed');
    for (const isReady of [true, false]) {
      expect(shared.hindranceOf(other, pod, isReady)).toEqual({
        doneBy:
          'volume left is the same PersistentVolumeClaim data, which PodVolumeRestore a has restored',
        totalBytes: 7,
      });
    }
  });

  it('a pod that is over waits for none that has not begun', () => {
    const one = tell('a', 'left');
    const other = tell('b', 'right');
    expect(shared.hindranceOf(one, pod, false)).toBeUndefined();
    expect(shared.hindranceOf(other, pod, false)).toBeUndefined();
  });

  it.each([
    ['of another claim', 'own', 'left', POD],
    ['that is no claim', 'tmp', 'left', POD],
    ['of an earlier pod of that name', 'right', 'left', { ...POD, uid: 'pod-0' }],
  ] as const)('a volume %s is its own', (_what, volume, otherVolume, otherPod) => {
    tell('a', otherVolume, 'Completed', otherPod);
    expect(shared.hindranceOf(tell('b', volume), pod, true)).toBeUndefined();
  });
});
