import { describe, expect, it } from 'vitest';
import { Executor } from '../../../src/agent/reconcile/executor.ts';
import { Exposures } from '../../../src/agent/reconcile/exposures.ts';
import { type NamedMover, moverOf, nameMover } from '../../../src/agent/mover/named-mover.ts';
import { Restarts } from '../../../src/agent/reconcile/restarts.ts';
import { Slots } from '../../../src/agent/reconcile/slots.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import { silentLogger, systemClock } from '../../../src/base/index.ts';
import type { DataDownload, Pod } from '../../../src/kube/index.ts';

const SIGNAL = new AbortController().signal;
const download = (annotations: Record<string, string> = {}, node = 'other'): DataDownload =>
  ({
    metadata: { name: 'down', namespace: 'velero', uid: 'u-1', annotations },
    spec: {},
    status: { phase: 'InProgress', node },
  }) as never;
const pod = (uid: string, phase = 'Running', deletionTimestamp?: string): Pod =>
  ({
    metadata: { name: 'down', namespace: 'velero', uid, deletionTimestamp },
    spec: { containers: [], nodeName: 'me' },
    status: { phase },
  }) as never;

describe('what is done where the watch is behind', () => {
  /** `now`: the pod as the API server has it. */
  const executor = (now: Pod | undefined, written: DataDownload[]): Executor<DataDownload> =>
    new Executor<DataDownload>({
      direction: { name: 'download' },
      node: 'me',
      clock: systemClock,
      client: { find: () => Promise.resolve(now) },
      metrics: { conflict: () => undefined },
      takeover: { watchOver: () => Promise.resolve({ requeueAfterMs: 30_000 }) },
      writer: {
        exclusive: (movement: DataDownload, mutate: (copy: DataDownload) => void) => {
          const copy = structuredClone(movement);
          mutate(copy);
          written.push(copy);
          return Promise.resolve(copy);
        },
      },
    } as never);

  const rows: [when: string, now: Pod | undefined, isDone: boolean][] = [
    ['it runs', pod('p-1'), true],
    ['it is gone', undefined, false],
    ['it has a successor', pod('p-2'), false],
    ['it is being ended', pod('p-1', 'Running', '2026-01-01T00:00:00Z'), false],
    ['it has ended', pod('p-1', 'Failed'), false],
  ];
  it.for(rows)('a mover is named, and its CR taken over, only when %s', async ([, now, isDone]) => {
    const written: DataDownload[] = [];
    const seen = pod('p-1');
    await executor(now, written).carryOut(download(), { do: 'name', pod: seen }, SIGNAL);
    expect(written.map((copy) => moverOf(copy)?.pod)).toEqual(isDone ? ['p-1'] : []);
    const taken: DataDownload[] = [];
    await executor(now, taken).carryOut(download(), { do: 'takeOver', pod: seen }, SIGNAL);
    expect(taken.map(({ status }) => status?.node)).toEqual(isDone ? ['me'] : []);
  });
});

describe('what belongs to the agent of another node', () => {
  it('a mover there is named with its own node: whether that is lost decides when it has a successor', async () => {
    const written: DataDownload[] = [];
    const executor = new Executor<DataDownload>({
      direction: { name: 'download', waitUsable: () => Promise.resolve() },
      node: 'me',
      clock: systemClock,
      logger: silentLogger,
      metrics: { started: () => undefined },
      recorder: { record: () => undefined },
      slots: new Slots(1),
      turns: { sinceMs: () => 0, reset: () => undefined },
      beside: {
        start: (_key: string, task: () => Promise<unknown>) => {
          void task();
          return undefined;
        },
      },
      writer: {
        exclusive: (movement: DataDownload, mutate: (copy: DataDownload) => void) => {
          const copy = structuredClone(movement);
          mutate(copy);
          written.push(copy);
          return Promise.resolve(copy);
        },
      },
    } as never);
    const away = pod('p-1');
    away.spec.nodeName = 'away';
    await executor.carryOut(download({}, 'me'), { do: 'start', pod: away }, SIGNAL);
    await expect.poll(() => written.map(moverOf)).toMatchObject([{ pod: 'p-1', node: 'away' }]);
  });

  it('holds no place here once that one has it back', async () => {
    const slots = new Slots(1);
    const places = new Slots(1);
    const memory = new Memory<DataDownload>([slots, places]);
    const executor = new Executor<DataDownload>({
      exposures: new Exposures({ slots: places, memory, enqueue: () => undefined }),
      dataPaths: { drop: () => undefined },
      takeover: { watchOver: () => Promise.resolve(undefined) },
      slots,
    } as never);
    slots.acquireAnyway('u-1');
    let isFree = false;
    slots.wait('u-2', () => (isFree = true));
    await executor.carryOut(download(), { do: 'watchOver' }, SIGNAL);
    expect({ used: slots.used, isFree }).toEqual({ used: 0, isFree: true });
  });

  it('stands in no line here for what it takes to go on', async () => {
    const places = new Slots(1);
    const executor = new Executor<DataDownload>({
      exposures: new Exposures({
        slots: places,
        memory: new Memory<DataDownload>([]),
        enqueue: () => undefined,
      }),
      takeover: { watchOver: () => Promise.resolve(undefined) },
    } as never);
    places.wait('u-1', () => undefined);
    const taken = download();
    taken.status = { phase: 'Accepted', acceptedByNode: 'other' };
    await executor.carryOut(taken, { do: 'watchOver' }, SIGNAL);
    expect(places.waiting).toBe(0);
  });

  it('is not bare, though this agent claimed it and made nothing', () => {
    const memory = new Memory<DataDownload>([]);
    const exposures = new Exposures<DataDownload>({
      slots: new Slots(1),
      memory,
      enqueue: () => undefined,
    });
    const movement = download({}, 'me');
    exposures.claimed(movement);
    expect(memory.of('u-1').isBare).toBe(true);
    // Its pod runs here: made by an agent that had taken it over.
    exposures.drop('u-1');
    expect(memory.of('u-1').isBare).toBe(false);
  });
});

describe('while the API server took no writes', () => {
  it.each([
    { do: 'fail', message: 'late' } as const,
    { do: 'failDiagnosed', message: 'late' } as const,
  ])('the first write that it takes decides nothing: $do', async (action) => {
    const touched = download({}, 'me');
    const executor = new Executor<DataDownload>({
      writer: { isRefusing: true, touch: () => Promise.resolve(touched) },
      beside: { start: () => expect.unreachable('it failed') },
    } as never);
    expect(await executor.carryOut(download({}, 'me'), action, SIGNAL)).toEqual({ again: touched });
  });
});

describe('annotations that somebody edited', () => {
  it('a count that is no number ends no counting', async () => {
    const counts: (string | undefined)[] = [];
    const restarts = new Restarts<DataDownload>({
      direction: { name: 'download' },
      node: 'me',
      restartsMax: 3,
      clock: systemClock,
      logger: { warn: () => undefined },
      recorder: { record: () => undefined },
      metrics: { restarted: () => undefined },
      writer: {
        update: (movement: DataDownload, mutate: (copy: DataDownload) => void) => {
          mutate(movement);
          counts.push(movement.metadata.annotations?.['longshore.io/data-mover-restarts']);
          return Promise.resolve(movement);
        },
      },
    } as never);
    for (const text of ['many', '-7', 'Infinity', '2']) {
      const edited = download({ 'longshore.io/data-mover-restarts': text }, 'me');
      await restarts.count(edited, undefined, 'it died');
    }
    expect(counts).toEqual(['1', '1', '1', '3']);
  });

  it('a time that is none counts as no mover named, and the next one is', () => {
    const edited: NamedMover = {
      generation: 3,
      pod: '',
      lastPod: 'p-1',
      node: 'n',
      namedAt: 'long ago',
    };
    const movement = download({ 'longshore.io/mover': JSON.stringify(edited) });
    expect(moverOf(movement)).toBeUndefined();
    nameMover(movement, { pod: 'p-2', node: 'n' }, systemClock);
    expect(moverOf(movement)).toMatchObject({ generation: 1, pod: 'p-2' });
  });
});

it.each([
  [true, ['end Canceled']],
  [false, ['delete 0', 'end Canceled']],
])(
  'a pod whose mover does not stop is deleted by force, unless its end is awaited: %s',
  async (isEndAwaited, wanted) => {
    const calls: string[] = [];
    const executor = new Executor<DataDownload>({
      direction: { name: 'download', isEndAwaited: () => isEndAwaited },
      client: {
        delete: (_: unknown, __: unknown, given: { gracePeriodSeconds: number }) => {
          calls.push(`delete ${given.gracePeriodSeconds}`);
          return Promise.resolve(true);
        },
      },
      ending: {
        end: (_: unknown, phase: string) => {
          calls.push(`end ${phase}`);
          return Promise.resolve(undefined);
        },
      },
      beside: { start: (_: string, task: () => Promise<unknown>) => void task() },
    } as never);
    await executor.carryOut(download(), { do: 'killPod', pod: pod('p-1') }, SIGNAL);
    expect(calls).toEqual(wanted);
  },
);
