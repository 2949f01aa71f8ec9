import { setImmediate as settled } from 'node:timers/promises';
import { describe, expect, it, vi } from 'vitest';
import { MovementEnd } from '../../src/agent/reconcile/movement-end.ts';
import { Executor } from '../../src/agent/reconcile/executor.ts';
import { Exposures } from '../../src/agent/reconcile/exposures.ts';
import { BackgroundTasks } from '../../src/agent/reconcile/background-tasks.ts';
import { Slots } from '../../src/agent/reconcile/slots.ts';
import { Memory } from '../../src/agent/reconcile/tracked-movements.ts';
import { CodedError, silentLogger, systemClock } from '../../src/base/index.ts';
import type { DataDownload } from '../../src/kube/index.ts';
import { aPod } from '../support/builders.ts';

const SIGNAL = new AbortController().signal;
const down = (phase: string): DataDownload =>
  ({
    metadata: { name: 'down', namespace: 'velero', uid: 'u-1', resourceVersion: '1' },
    spec: {},
    status: { phase, node: 'me' },
  }) as never;
const pod = aPod({ metadata: { name: 'down', uid: 'p-1' }, spec: {}, status: {} });
/** As RBAC refuses. */
const NO_RIGHT = 'it is forbidden: User "longshore" cannot do that';
const denied = 'admission webhook "v.example.com" denied the request: forbidden';
const noAccount = 'pods "down" is forbidden: serviceaccount "no-such" not found';

/** A server that refuses, and the final phases that were written. */
function refused(code: string, sinceMs: number, message = NO_RIGHT) {
  const error = new CodedError(code, message);
  const failed: string[] = [];
  const common = {
    memory: new Memory<DataDownload>([]),
    clock: systemClock,
    logger: silentLogger,
    node: 'me',
    turns: { sinceMs: () => sinceMs },
    exposures: { abort: () => undefined, withdraw: () => undefined },
    dataPaths: { drop: () => undefined },
    writer: {
      latest: (movement: DataDownload) => Promise.resolve(movement),
      // A different process has written the end by now: only the attempt counts here.
      update: () => {
        failed.push('Failed');
        return Promise.resolve(undefined);
      },
    },
  };
  return { error, failed, common };
}

describe('a right that is missing', () => {
  const rows: [code: string, sinceMs: number, message: string | undefined, fails: boolean][] = [
    ['KUBE_FORBIDDEN', 0, undefined, false],
    ['KUBE_UNAUTHORIZED', 299_000, undefined, false],
    ['KUBE_FORBIDDEN', 300_000, undefined, true],
    ['KUBE_FORBIDDEN', 0, noAccount, true],
    ['KUBE_FORBIDDEN', 0, denied, true],
    ['KUBE_INVALID', 0, undefined, true],
  ];

  it.each(rows)(
    'at the last step of a restore (%s, for %i ms): the volume is kept for some minutes',
    async (code, sinceMs, message, fails) => {
      const { error, failed, common } = refused(code, sinceMs, message);
      const ending = new MovementEnd<DataDownload>({
        ...common,
        direction: {
          name: 'download',
          complete: () => Promise.reject(error),
          volumesOf: () => Promise.resolve([]),
        },
      } as never);
      const ended = ending.complete(down('InProgress'), {}, SIGNAL);
      if (fails) await ended;
      else await expect(ended).rejects.toBe(error);
      expect(failed).toEqual(fails ? ['Failed'] : []);
    },
  );

  it.each(rows)(
    'before a volume is moved (%s, for %i ms): it is tried again for some minutes',
    async (code, sinceMs, message, fails) => {
      const { error, common } = refused(code, sinceMs, message);
      const failed: string[] = [];
      const slots = new Slots(1);
      const beside = new BackgroundTasks({ enqueue: () => undefined });
      const executor = new Executor<DataDownload>({
        ...common,
        slots,
        beside,
        direction: { name: 'download', waitUsable: () => Promise.reject(error) },
        ending: {
          fail: (_: DataDownload, text: string) => {
            failed.push(text);
            return Promise.resolve();
          },
        },
      } as never);
      await executor.carryOut(down('Prepared'), { do: 'start', pod }, SIGNAL);
      await beside.drain();
      expect(beside.take('velero/down')).toEqual(fails ? { result: undefined } : { error });
      expect(failed).toHaveLength(fails ? 1 : 0);
      expect(slots.used).toBe(0);
    },
  );

  const waits: [ranMs: number, error: Error | undefined, isKept: boolean][] = [
    [1000, new CodedError('KUBE_FORBIDDEN', NO_RIGHT), true],
    [61_000, new CodedError('KUBE_FORBIDDEN', NO_RIGHT), false],
    [1000, undefined, false],
  ];
  it.each(waits)(
    'while a volume is made available (after %i ms: %s): what worked meanwhile begins the time anew',
    async (ranMs, error, isKept) => {
      vi.useFakeTimers({ toFake: ['performance'] });
      try {
        const memory = new Memory<DataDownload>([]);
        const exposures = new Exposures<DataDownload>({
          slots: new Slots(1),
          memory,
          enqueue: () => undefined,
        });
        memory.of('u-1').since.refused = performance.now();
        const ended = Promise.withResolvers<undefined>();
        exposures.start(down('Accepted'), () => ended.promise);
        vi.advanceTimersByTime(ranMs);
        if (error) ended.reject(error);
        else ended.resolve(undefined);
        await settled();
        expect(exposures.stateOf('u-1')).toEqual(error ? { error } : 'done');
        expect(memory.of('u-1').since.refused !== undefined).toBe(isKept);
      } finally {
        vi.useRealTimers();
      }
    },
  );
});
