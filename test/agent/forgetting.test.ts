import { describe, expect, it } from 'vitest';
import { MovementReconciler } from '../../src/agent/reconcile/reconciler.ts';
import { Slots } from '../../src/agent/reconcile/slots.ts';
import { systemClock } from '../../src/base/index.ts';
import type { DataDownload } from '../../src/kube/index.ts';
import { aDownload } from '../support/builders.ts';

describe('a CR that goes while it is looked at', () => {
  it('holds no place, and nothing of it is watched', async () => {
    const movement = aDownload({
      metadata: { name: 'down', namespace: 'velero', uid: 'u-1', resourceVersion: '1' },
      spec: { datamover: '' },
      status: { phase: 'InProgress', node: 'me' },
    });
    let isGone = false;
    let watches = 0;
    const listeners: ((after?: DataDownload, before?: DataDownload) => void)[] = [];
    const slots = new Slots(1);
    const reconciler = new MovementReconciler<DataDownload>({
      direction: {
        name: 'download',
        isCompleting: () => false,
        cleanUp: () => Promise.resolve(true),
      },
      client: {
        // The finalizer is removed while the pod is read.
        find: () => {
          if (!isGone) {
            isGone = true;
            for (const listener of listeners) listener(undefined, movement);
          }
          return Promise.resolve(undefined);
        },
        listPage: () => Promise.resolve({ items: [], resourceVersion: '1' }),
        watch: async function* (_resource: unknown, { signal }: { signal: AbortSignal }) {
          watches++;
          await new Promise((resolve) => {
            signal.addEventListener('abort', resolve);
          });
          watches--;
          yield* [];
        },
      },
      clock: systemClock,
      logger: { warn: () => undefined, debug: () => undefined },
      cache: {
        resource: {},
        get: () => (isGone ? undefined : movement),
        onChange: (listener: (typeof listeners)[number]) => listeners.push(listener),
      },
      pods: { get: () => undefined },
      roster: { onChange: () => undefined },
      slots,
      exposures: new Slots(1),
      exposingCount: () => 0,
      backlog: { isFull: () => false },
      settings: { node: 'me', namespace: 'velero', dataMovers: new Set(['']) },
      enqueue: () => undefined,
    } as never);
    await reconciler.reconcile('velero/down', new AbortController().signal);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect({ used: slots.used, watches }).toEqual({ used: 0, watches: 0 });
  });
});
