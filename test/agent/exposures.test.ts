import { setImmediate as settled } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Exposures } from '../../src/agent/exposures.ts';
import { Slots } from '../../src/agent/slots.ts';
import { Memory } from '../../src/agent/tracked.ts';
import { CodedError } from '../../src/base/index.ts';
import type { DataUpload } from '../../src/kube/index.ts';

const up = {
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
  spec: {},
  status: { phase: 'Accepted' },
} as never as DataUpload;
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
