import { afterEach, expect, it, vi } from 'vitest';
import { MovementReconciler } from '../../src/agent/reconcile/reconciler.ts';
import { fenceMsOf, moverOf, nameMover, revokeMover } from '../../src/agent/mover/named-mover.ts';
import { Slots } from '../../src/agent/reconcile/slots.ts';
import { systemClock } from '../../src/base/index.ts';
import { type DataDownload, NODES } from '../../src/kube/index.ts';
import { aPod } from '../support/builders.ts';

const FENCE_MS = 60_000;

/** A restore whose pod is deleted, and whose death is counted. `restarting`: the pod that died. */
const download = (restarting: string, generation = 2, fenceMs?: number): DataDownload =>
  ({
    metadata: {
      name: 'down',
      namespace: 'velero',
      uid: 'u-1',
      resourceVersion: '1',
      annotations: {
        'longshore.io/data-mover-restarting': restarting,
        'longshore.io/mover': JSON.stringify({
          generation,
          pod: '',
          lastPod: 'p-1',
          node: 'n',
          // The API server's clock was set since, by hours.
          namedAt: '2020-01-01T00:00:00Z',
          fenceMs,
        }),
      },
    },
    spec: { datamover: '' },
    status: { phase: 'InProgress', node: 'me' },
  }) as never;

function reconcilerOf(
  current: () => DataDownload,
  startAgain: () => void,
): MovementReconciler<DataDownload> {
  return new MovementReconciler<DataDownload>({
    direction: {
      name: 'download',
      isCompleting: () => false,
      startAgain: () => {
        startAgain();
        return Promise.resolve();
      },
    },
    client: {
      find: ({ plural }: { plural: string }) =>
        Promise.resolve(
          plural === NODES.plural ? {} : plural === 'pods' ? undefined : structuredClone(current()),
        ),
      replace: (_resource: unknown, copy: DataDownload) => Promise.resolve(copy),
      listPage: () => new Promise(() => undefined),
    },
    clock: systemClock,
    logger: { warn: () => undefined },
    recorder: { record: () => undefined },
    cache: { resource: { plural: 'datadownloads' }, get: current, onChange: () => undefined },
    pods: { get: () => undefined },
    roster: { onChange: () => undefined },
    slots: new Slots(1),
    exposures: new Slots(1),
    exposingCount: () => 0,
    backlog: { isFull: () => false },
    settings: {
      node: 'me',
      namespace: 'velero',
      dataMovers: new Set(['']),
      fenceMs: FENCE_MS,
    },
    enqueue: () => undefined,
  } as never);
}

const { signal } = new AbortController();
afterEach(() => {
  vi.restoreAllMocks();
});

it("waits for a mover that is cut off by the agent's own clock, anew for each", async () => {
  const now = vi.spyOn(performance, 'now').mockReturnValue(1000);
  let movement = download('gone');
  let starts = 0;
  const reconciler = reconcilerOf(
    () => movement,
    () => starts++,
  );
  await reconciler.reconcile('velero/down', signal);
  now.mockReturnValue(1000 + FENCE_MS + 14_999);
  await reconciler.reconcile('velero/down', signal);
  expect(starts).toBe(0);
  movement = download('gone', 4);
  now.mockReturnValue(1000 + FENCE_MS + 15_000);
  await reconciler.reconcile('velero/down', signal);
  expect(starts).toBe(0);
  now.mockReturnValue(1000 + 2 * (FENCE_MS + 15_000));
  await reconciler.reconcile('velero/down', signal);
  expect(starts).toBe(1);
});

it('waits for none whose pod was seen to have ended, also by an agent before', async () => {
  let starts = 0;
  await reconcilerOf(
    () => download('p-1'),
    () => starts++,
  ).reconcile('velero/down', signal);
  expect(starts).toBe(1);
});

it('waits as long as that mover was told, whatever this agent tells its own', async () => {
  const now = vi.spyOn(performance, 'now').mockReturnValue(1000);
  let starts = 0;
  const reconciler = reconcilerOf(
    () => download('gone', 2, 10 * FENCE_MS),
    () => starts++,
  );
  await reconciler.reconcile('velero/down', signal);
  now.mockReturnValue(1000 + 10 * FENCE_MS + 14_999);
  await reconciler.reconcile('velero/down', signal);
  expect(starts).toBe(0);
  now.mockReturnValue(1000 + 10 * FENCE_MS + 15_000);
  await reconciler.reconcile('velero/down', signal);
  expect(starts).toBe(1);
});

it("a mover's name goes with the time that its pod was told, and so does its end", () => {
  const movement = download('gone');
  const env = [{ name: 'LONGSHORE_FENCE_TIMEOUT', value: '7m30s' }];
  const pod = aPod({ spec: { containers: [{ name: 'mover', env }] } });
  expect(fenceMsOf(pod)).toBe(450_000);
  expect(fenceMsOf({ spec: { containers: [{ name: 'velero' }] } } as never)).toBeUndefined();
  nameMover(movement, { pod: 'p-3', node: 'n', fenceMs: fenceMsOf(pod) }, systemClock);
  revokeMover(movement, systemClock);
  expect(moverOf(movement)).toMatchObject({ pod: '', lastPod: 'p-3', fenceMs: 450_000 });
});
