import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { MovementWriter } from '../../../src/agent/reconcile/movement-writer.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import { CodedError, systemClock } from '../../../src/base/index.ts';
import type { DataUpload, KubeClient } from '../../../src/kube/index.ts';
import { anUpload } from '../../support/builders.ts';

const up = anUpload({
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1', resourceVersion: '1' },
  spec: {},
  status: { phase: 'Accepted' },
});

describe('an API server that takes no writes', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }));
  afterEach(() => void vi.useRealTimers());

  const start = (): {
    writer: MovementWriter<DataUpload>;
    write: (code?: string) => Promise<unknown>;
    touch: (code?: string) => Promise<DataUpload | undefined>;
  } => {
    let refusal: string | undefined;
    const replace = (_resource: unknown, copy: DataUpload): Promise<DataUpload> =>
      refusal === undefined
        ? Promise.resolve(copy)
        : Promise.reject(new CodedError(refusal, 'database space exceeded', { retry: 'backoff' }));
    const writer = new MovementWriter<DataUpload>(
      { replace } as never as KubeClient,
      { get: () => up, onChange: () => undefined } as never,
      systemClock,
      new Memory([]),
    );
    const write = (code?: string): Promise<unknown> => {
      refusal = code;
      return writer.exclusive(up, () => undefined).catch(() => undefined);
    };
    const touch = (code?: string): Promise<DataUpload | undefined> => {
      refusal = code;
      return writer.touch(up);
    };
    return { writer, write, touch };
  };

  it.each(['KUBE_UNAVAILABLE', 'KUBE_THROTTLED'])('is seen by %s, and by its end', async (code) => {
    const { writer, write } = start();
    expect(writer.takenMs).toBe(Infinity);
    await write(code);
    vi.advanceTimersByTime(16_000);
    await write(code);
    expect(writer.takenMs).toBe(0);
    vi.advanceTimersByTime(400_000);
    expect(writer.takenMs, 'nobody has tried since').toBe(400_000);
    await write(code);
    expect(writer.takenMs).toBe(0);
    await write();
    vi.advanceTimersByTime(5000);
    expect(writer.takenMs).toBe(5000);
  });

  it('is asked by a write that decides nothing, and has to take it', async () => {
    const { writer, write, touch } = start();
    await write('KUBE_UNAVAILABLE');
    expect(writer.isRefusing).toBe(true);
    vi.advanceTimersByTime(1000);
    await expect(touch('KUBE_UNAVAILABLE')).rejects.toThrow();
    expect(writer.isRefusing).toBe(true);
    // However short it seemed: nobody knows for how long nobody had tried.
    const touched = await touch();
    expect(touched?.status).toMatchObject({ phase: 'Accepted' });
    expect(touched?.status?.message).toMatch(/^the API server took no writes until 20/);
    expect(writer).toMatchObject({ isRefusing: false, takenMs: 0 });
  });

  it('is none that only refuses one write among others, or what others wrote first', async () => {
    const { writer, write } = start();
    await write('KUBE_UNAVAILABLE');
    vi.advanceTimersByTime(10_000);
    await write();
    expect(writer.takenMs).toBe(Infinity);
    await write('KUBE_CONFLICT');
    expect(writer.takenMs).toBe(Infinity);
    await write('KUBE_UNAVAILABLE');
    vi.advanceTimersByTime(16_000);
    await write('KUBE_CONFLICT');
    vi.advanceTimersByTime(5000);
    expect(writer.takenMs).toBe(5000);
  });
});
