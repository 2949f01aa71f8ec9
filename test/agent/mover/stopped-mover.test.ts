import { describe, expect, it } from 'vitest';
import { downloads } from '../../../src/agent/directions/downloads.ts';
import { stopMover } from '../../../src/agent/mover/stopped-mover.ts';
import { moverOf } from '../../../src/agent/mover/named-mover.ts';
import { CodedError, silentLogger, systemClock } from '../../../src/base/index.ts';
import { type DataDownload, inPlaceConfig, type Pod } from '../../../src/kube/index.ts';
import { aDownload } from '../../support/builders.ts';

const FENCE_MS = 60_000;
const MARGIN_MS = 15_000;

/**
 * A restore in place that has failed, with `mover` named, on an API server that has these objects.
 */
function failedOne({
  mover = { pod: 'p-1', lastPod: 'p-1' },
  pods = [] as object[],
  hasNode = true,
  conflicts = 0,
}) {
  const named = { generation: 3, node: 'n', namedAt: '2026-01-01T00:00:00Z', fenceMs: FENCE_MS };
  const download = aDownload({
    metadata: {
      name: 'd',
      namespace: 'velero',
      uid: 'u',
      resourceVersion: '1',
      annotations: { 'longshore.io/mover': JSON.stringify({ ...named, ...mover }) },
    },
    spec: {
      targetVolume: { namespace: 'shop', pvc: 'data', pv: '' },
      datamover: 'longshore',
      dataMoverConfig: inPlaceConfig({ dryRun: false, keepExtra: false }),
    },
    status: { phase: 'Canceling' },
  });
  const calls: string[] = [];
  // Before and after it is deleted.
  const [first, ...later] = pods as Pod[];
  const client = {
    find: ({ plural }: { plural: string }) =>
      Promise.resolve(
        plural === 'nodes'
          ? hasNode
            ? {}
            : undefined
          : plural === 'pods'
            ? first
            : structuredClone(download),
      ),
    listPage: () => Promise.resolve({ items: later, resourceVersion: '1' }),
    watch: async function* () {
      await Promise.resolve();
      yield* [];
    },
    delete: (_: unknown, __: unknown, { gracePeriodSeconds }: { gracePeriodSeconds: number }) => {
      calls.push(`delete ${gracePeriodSeconds}`);
      return Promise.resolve(true);
    },
    replace: (_: unknown, copy: DataDownload) => {
      if (conflicts-- > 0) return Promise.reject(new CodedError('KUBE_CONFLICT', 'newer'));
      const stopped = copy.metadata.annotations?.['longshore.io/data-mover-stopped'];
      calls.push(
        stopped === undefined ? `named ${moverOf(copy)?.pod ?? ''}` : `stopped ${stopped}`,
      );
      download.metadata = copy.metadata;
      return Promise.resolve(copy);
    },
  } as never;
  const pause = (ms: number): Promise<void> => {
    calls.push(`pause ${ms}`);
    return Promise.resolve();
  };
  const options = { client, clock: systemClock, logger: silentLogger, pause, endMs: 1 };
  return { download, calls, options };
}

const pod = (uid: string, phase: string, state?: object): object => ({
  metadata: { uid },
  status: { phase, ...(state && { containerStatuses: [{ state }] }) },
});

describe('before the volume of a restore in place is given back, its data mover', () => {
  it('is waited for while its node does not say that it has ended', async () => {
    const { download, calls, options } = failedOne({ conflicts: 2, pods: [pod('p-1', 'Running'), pod('p-1', 'Running')] }); // prettier-ignore
    await stopMover(download, options);
    const waited = ['named ', `pause ${FENCE_MS + MARGIN_MS}`, 'stopped p-1'];
    expect(calls).toEqual(['delete 1', ...waited]);
  });

  it('is waited for where its pod has failed, as one that is evicted, and its process still runs', async () => {
    const evicted = pod('p-1', 'Failed', { running: {} });
    const { download, calls, options } = failedOne({ pods: [evicted, evicted] });
    await stopMover(download, options);
    const waited = ['named ', `pause ${FENCE_MS + MARGIN_MS}`, 'stopped p-1'];
    expect(calls).toEqual(['delete 1', ...waited]);
    const stopped = pod('p-1', 'Failed', { terminated: {} });
    const quick = failedOne({ pods: [evicted, stopped] });
    await stopMover(quick.download, quick.options);
    expect(quick.calls).toEqual(['delete 1', 'stopped p-1']);
  });

  it.each([
    ['its pod is gone, and nobody saw it end', { pods: [] }],
    ['the pod is the one of a successor', { pods: [pod('p-2', 'Failed')] }],
    ['it was counted as dead while its node was cut off', { mover: { pod: '', lastPod: 'p-1' } }],
  ])('is waited for where %s', async (_, given) => {
    const { download, calls, options } = failedOne(given);
    await stopMover(download, options);
    expect(calls).toEqual(['named ', `pause ${FENCE_MS + MARGIN_MS}`, 'stopped p-1']);
  });

  it.each([
    ['it has ended', { pods: [pod('p-1', 'Failed')] }, ['stopped p-1']],
    [
      'its node ends it',
      { pods: [pod('p-1', 'Running'), pod('p-1', 'Failed')] },
      ['delete 1', 'stopped p-1'],
    ],
    ['its node is gone', { hasNode: false }, []],
  ])('is not waited for where %s', async (_, given, wanted) => {
    const { download, calls, options } = failedOne(given);
    await stopMover(download, options);
    expect(calls).toEqual(wanted);
  });

  it('is not waited for by the agent that goes on after a kill, once it was seen to end and its pod is gone', async () => {
    const pods = [pod('p-1', 'Failed')];
    const { download, calls, options } = failedOne({ pods });
    await stopMover(download, options);
    // The first agent has removed the pod, and was killed before the final phase.
    const without = { ...(options.client as object), find: () => Promise.resolve(undefined) };
    const next = { ...options, client: without as never };
    await stopMover(download, next);
    expect(calls).toEqual(['stopped p-1']);
    // The note about a pod does not apply to its successor.
    const named = { generation: 4, node: 'n', namedAt: '2026-01-01T00:00:00Z', fenceMs: FENCE_MS };
    const mover = JSON.stringify({ ...named, pod: 'p-2', lastPod: 'p-2' });
    Object.assign(download.metadata.annotations ?? {}, { 'longshore.io/mover': mover });
    await stopMover(download, options);
    expect(calls).toContain(`pause ${FENCE_MS + MARGIN_MS}`);
  });

  it('is waited for when the agent was killed before that was noted', async () => {
    const { download, calls, options } = failedOne({ pods: [pod('p-1', 'Failed')] });
    const killed = { ...(options.client as object), replace: () => Promise.reject(new Error('killed')) }; // prettier-ignore
    await expect(stopMover(download, { ...options, client: killed as never })).rejects.toThrow();
    // Its pod is still there: it is removed only after the note.
    await stopMover(download, options);
    expect(calls).toEqual(['stopped p-1']);
  });

  it('has stopped before anything else is cleaned up', async () => {
    const { download, calls, options } = failedOne({});
    const refused = new CodedError('KUBE_UNAVAILABLE', 'away');
    const client = { ...(options.client as object), replace: () => Promise.reject(refused) };
    const direction = downloads({ ...options, client } as never);
    await expect(direction.cleanUp(download)).rejects.toBe(refused);
    expect(calls).toEqual([]);
  });
});

it('the message of a failed restore in place says that the volume may be a mixture, unless its only mover told', () => {
  const direction = downloads({} as never);
  const note = (message: string, { generation = 1, dryRun = false, isNamed = true }): string => {
    const mover = {
      generation,
      pod: 'p',
      lastPod: 'p',
      node: 'n',
      namedAt: '2026-01-01T00:00:00Z',
    };
    const dataMoverConfig = inPlaceConfig({ dryRun, keepExtra: false });
    const annotations = isNamed ? { 'longshore.io/mover': JSON.stringify(mover) } : {};
    return (
      direction.failNote?.(
        { metadata: { annotations }, spec: { dataMoverConfig } } as never,
        message,
      ) ?? ''
    );
  };
  const told = 'data path restore failed: snapshot a does not exist';
  const mixture = expect.stringContaining('may hold files or blocks of before and of') as string;
  expect(note(told, { generation: 3 })).toEqual(mixture);
  expect(note('no progress for 10 min', {})).toEqual(mixture);
  expect(note(told, {})).toBe('');
  expect(note('no progress for 10 min', { dryRun: true })).toBe('');
  expect(note('error to create restore pod', { isNamed: false })).toBe('');
  expect(note('pod uses it: the volume may hold files or blocks', { generation: 3 })).toBe('');
});
