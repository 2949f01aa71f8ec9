import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import type { Backup, KubeClient, PodVolumeBackup } from '../../../../src/kube/index.ts';
import { openActions } from '../../../../src/plugin/index.ts';

const BACKUP = {
  metadata: { name: 'b1', namespace: 'velero', uid: 'u' },
  spec: {},
} as unknown as Backup;
const context = { signal: new AbortController().signal };

const backupOf = (status: object): PodVolumeBackup =>
  ({
    metadata: { name: 'pvb-1', namespace: 'velero' },
    spec: { pod: { namespace: 'a', name: 'p' }, volume: 'data', node: 'n' },
    status,
  }) as unknown as PodVolumeBackup;

/** `found`: answers of the API server, in order. */
function opened(...found: (PodVolumeBackup | undefined | Error)[]) {
  const patches: unknown[] = [];
  const next = (): Promise<PodVolumeBackup | undefined> => {
    const answer = found.length > 1 ? found.shift() : found[0];
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  };
  const client = {
    find: next,
    patch: (_resource: unknown, _ref: unknown, patch: unknown) => {
      patches.push(patch);
      return Promise.resolve({});
    },
    listPage: async () => {
      const object = await next();
      return { items: object ? [object] : [], resourceVersion: '1', continue: undefined };
    },
  } as unknown as KubeClient;
  const action = openActions({ client, logger: silentLogger }).podVolumeOperation();
  return { action, patches };
}

const done = {
  phase: 'Completed',
  progress: { bytesDone: 5, totalBytes: 9 },
  startTimestamp: 'T1',
  completionTimestamp: 'T2',
};

describe('the operation of a PodVolumeBackup', () => {
  it.each([
    [{}, { completed: false, err: '', nCompleted: 0, nTotal: 0 }],
    [
      { phase: 'InProgress', progress: { bytesDone: 5, totalBytes: 9 }, startTimestamp: 'T1' },
      { completed: false, nCompleted: 5, nTotal: 9, started: 'T1', operationUnits: 'Bytes' },
    ],
    [done, { completed: true, err: '', nCompleted: 9, nTotal: 9, started: 'T1', updated: 'T2' }],
    [
      { phase: 'Failed', message: 'no space' },
      { completed: true, err: 'pod volume backup failed: no space (volume data of pod a/p)' },
    ],
    [
      { phase: 'Canceled', message: 'm' },
      { completed: true, err: 'pod volume backup canceled: m (volume data of pod a/p)' },
    ],
  ])('%j is %j', async (status, expected) => {
    const { action } = opened(backupOf(status));
    expect(await action.progress('pvb-1', BACKUP, context)).toMatchObject(expected);
  });
  it('has ended with an error when somebody has deleted it, and is not known while the API server is away', async () => {
    expect(await opened(undefined).action.progress('pvb-1', BACKUP, context)).toMatchObject({
      completed: true,
      err: 'the PodVolumeBackup of this operation was deleted',
    });
    const away = new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' });
    expect(await opened(away).action.progress('pvb-1', BACKUP, context)).toMatchObject({
      completed: false,
    });
    const refused = new CodedError('KUBE_FORBIDDEN', 'no');
    await expect(opened(refused).action.progress('pvb-1', BACKUP, context)).rejects.toBe(refused);
  });
  it('is told to stop, and waited for; one that is over is left alone', async () => {
    const running = opened(backupOf({ phase: 'InProgress' }), backupOf({ phase: 'Canceled' }));
    await running.action.cancel('pvb-1', BACKUP, context);
    expect(running.patches).toEqual([{ spec: { cancel: true } }]);
    for (const over of [backupOf(done), undefined]) {
      const { action, patches } = opened(over);
      await action.cancel('pvb-1', BACKUP, context);
      expect(patches).toEqual([]);
    }
  });
  it('begins none', async () => {
    expect(await opened(undefined).action.execute()).toEqual({});
  });
});
