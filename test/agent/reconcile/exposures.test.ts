import { setImmediate as settled } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Exposures } from '../../../src/agent/reconcile/exposures.ts';
import { Slots } from '../../../src/agent/reconcile/slots.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import { CodedError } from '../../../src/base/index.ts';
import type { DataUpload } from '../../../src/kube/index.ts';
import { anUpload } from '../../support/builders.ts';

const up = anUpload({
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
  spec: {},
  status: { phase: 'Accepted' },
});
const passing = new CodedError('KUBE_UNAVAILABLE', 'failed calling webhook', { retry: 'backoff' });

describe('a volume that is tried to be made available again and again', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }));
  afterEach(() => void vi.useRealTimers());

  const start = (): { exposures: Exposures<DataUpload>; fail: () => Promise<void> } => {
    const options = {
      slots: new Slots(1),
      memory: new Memory<DataUpload>([]),
      enqueue: () => undefined,
    };
    const exposures = new Exposures<DataUpload>(options);
    const fail = async (): Promise<void> => {
      exposures.start(up, () => Promise.reject(passing));
      await settled();
      exposures.drop('u-1');
    };
    return { exposures, fail };
  };

  it('fails since the first time, once that has been so often', async () => {
    const { exposures, fail } = start();
    for (let times = 1; times <= 9; times++) {
      await fail();
      vi.advanceTimersByTime(60_000);
      expect(exposures.failingMs('u-1')).toBe(0);
    }
    await fail();
    expect(exposures.failingMs('u-1')).toBe(540_000);
    expect(exposures.failingMs('another')).toBe(0);
  });

  it('counts anew once it was made', async () => {
    const { exposures, fail } = start();
    for (let times = 1; times <= 10; times++) await fail();
    exposures.start(up, () => Promise.resolve());
    await settled();
    vi.advanceTimersByTime(3_600_000);
    await fail();
    expect(exposures.failingMs('u-1')).toBe(0);
  });

  it('was away with the API server: what failed before that and after it is not enough', async () => {
    const { exposures, fail } = start();
    await fail();
    vi.advanceTimersByTime(3_600_000);
    await fail();
    expect(exposures.failingMs('u-1')).toBe(0);
  });

  it('waits anew once the last part of it was made; one that never failed tells nothing', async () => {
    const { exposures, fail } = start();
    exposures.start(up, () => Promise.resolve());
    await settled();
    expect(exposures.madeMs('u-1')).toBe(Infinity);
    await fail();
    exposures.start(up, () => Promise.resolve());
    await settled();
    vi.advanceTimersByTime(60_000);
    expect(exposures.madeMs('u-1')).toBe(60_000);
    expect(exposures.madeMs('another')).toBe(Infinity);
  });
});

describe('pods that stand on this node for volumes of its pods', () => {
  const fresh = (uid: string): DataUpload =>
    ({ metadata: { name: uid, namespace: 'velero', uid }, spec: {}, status: {} }) as never;
  const start = (): { exposures: Exposures<DataUpload>; hosted: Slots; called: string[] } => {
    const called: string[] = [];
    const hosted = new Slots(2);
    const exposures = new Exposures<DataUpload>({
      slots: new Slots(1),
      hosted,
      memory: new Memory<DataUpload>([hosted]),
      enqueue: (key) => called.push(key),
    });
    return { exposures, hosted, called };
  };

  it('are no more than there are places: one that was made available keeps its place until it has ended', async () => {
    const { exposures, hosted, called } = start();
    for (const uid of ['u-1', 'u-2']) {
      expect(exposures.tryAcquire(fresh(uid))).toBe(true);
      exposures.start(fresh(uid), () => Promise.resolve());
      await settled();
      exposures.drop(uid);
    }
    expect(exposures.hasPlace(fresh('u-3'))).toBe(false);
    expect(exposures.tryAcquire(fresh('u-3'))).toBe(false);
    exposures.park(fresh('u-3'), 1);
    called.length = 0;
    hosted.release('u-1');
    expect(called).toEqual(['velero/u-3']);
    expect(exposures.tryAcquire(fresh('u-3'))).toBe(true);
  });

  it('call the next in line where the one that was called takes none', () => {
    const { exposures, hosted, called } = start();
    for (const uid of ['u-1', 'u-2']) exposures.host(fresh(uid));
    for (const [i, uid] of ['u-3', 'u-4'].entries()) exposures.park(fresh(uid), i);
    hosted.release('u-1');
    expect(called).toEqual(['velero/u-3']);
    // Its pod has gone meanwhile.
    expect(exposures.leave('u-3')).toBe(true);
    exposures.callNext();
    expect(called).toEqual(['velero/u-3', 'velero/u-4']);
    expect(exposures.leave('u-3')).toBe(false);
  });

  it('have their places whatever there are, where they were claimed before', () => {
    const { exposures, hosted } = start();
    for (const uid of ['u-1', 'u-2', 'u-3']) exposures.host(fresh(uid));
    expect(hosted.used).toBe(3);
    // A claimed movement continues.
    expect(exposures.tryAcquire(up)).toBe(true);
  });

  it('give a place back that was not claimed', () => {
    const { exposures } = start();
    exposures.tryAcquire(fresh('u-1'));
    exposures.release('u-1');
    exposures.host(fresh('u-2'));
    expect(exposures.tryAcquire(fresh('u-3'))).toBe(true);
  });
});
