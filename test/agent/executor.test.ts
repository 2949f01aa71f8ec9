import { describe, expect, it } from 'vitest';
import { Executor } from '../../src/agent/executor.ts';
import { type NamedMover, moverOf, nameMover } from '../../src/agent/named-mover.ts';
import { Restarts } from '../../src/agent/restarts.ts';
import { systemClock } from '../../src/base/index.ts';
import type { DataDownload, Pod } from '../../src/kube/index.ts';

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
      ...{ generation: 3, pod: '', lastPod: 'p-1', node: 'n', namedAt: 'long ago' },
    };
    const movement = download({ 'longshore.io/mover': JSON.stringify(edited) });
    expect(moverOf(movement)).toBeUndefined();
    nameMover(movement, { pod: 'p-2', node: 'n' }, systemClock);
    expect(moverOf(movement)).toMatchObject({ generation: 1, pod: 'p-2' });
  });
});
