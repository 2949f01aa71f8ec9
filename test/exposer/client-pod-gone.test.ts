import { describe, expect, it } from 'vitest';
import {
  BACKUP_KIND,
  type ExposerOptions,
  PodVolumeExposer,
  RESTORE_KIND,
} from '../../src/exposer/index.ts';
import type { Pod } from '../../src/kube/index.ts';
import { aPod, aPodVolumeRestore } from '../support/builders.ts';

const movement = aPodVolumeRestore({
  metadata: { name: 'm' },
  spec: { pod: { namespace: 'app', name: 'web', uid: 'pod-1' }, volume: 'v' },
});
const pod = (more: object = {}, metadata: object = {}): Pod =>
  aPod({
    metadata: { name: 'web', namespace: 'app', uid: 'pod-1', ...metadata },
    spec: { nodeName: 'node-1', containers: [] },
    status: { phase: 'Running', ...more },
  });
const look = async (
  found: Pod | undefined,
  kind: 'backup' | 'restore',
  isMoving = true,
): Promise<string | undefined> => {
  const options = { client: { find: () => Promise.resolve(found) } } as unknown as ExposerOptions;
  const of = kind === 'backup' ? BACKUP_KIND : RESTORE_KIND;
  const exposer = new PodVolumeExposer(options, of as typeof RESTORE_KIND);
  return (await exposer.lookAtPod(movement, 'node-1', { isMoving })).reason;
};

describe('a pod that waits for its volume', () => {
  const waits = { phase: 'Pending', initContainerStatuses: [{ name: 'restore-wait', state: {} }] };
  const ended = (exitCode: number): object => ({
    ...waits,
    initContainerStatuses: [{ name: 'restore-wait', state: { terminated: { exitCode } } }],
  });
  it.each([
    ['waits', pod(waits), 'waits'],
    ['has found its marks', pod(ended(0)), 'has gone on'],
    [
      'has found its marks and is going',
      pod(ended(0), { deletionTimestamp: 'now' }),
      'has gone on',
    ],
    ['is going, its wait cut short', pod(ended(137), { deletionTimestamp: 'now' }), 'is over'],
    ['was evicted', pod({ ...waits, phase: 'Failed' }), 'is over'],
    ['was replaced', pod(ended(0), { uid: 'pod-2' }), 'is over'],
    ['is gone', undefined, 'is over'],
  ])('that %s', async (_what, found, expected) => {
    const options = { client: { find: () => Promise.resolve(found) } } as unknown as ExposerOptions;
    const exposer = new PodVolumeExposer(options, RESTORE_KIND);
    expect(await exposer.waitingPod(movement, new AbortController().signal)).toBe(expected);
  });
});

describe('the pod whose volume is moved', () => {
  const leaving = pod({}, { deletionTimestamp: 'now' });
  it.each([
    ['runs', pod(), undefined],
    ['is gone', undefined, 'pod app/web does not exist any more'],
    [
      'was replaced',
      pod({}, { uid: 'pod-2' }),
      'pod app/web was replaced by another pod of the same name',
    ],
    [
      'has ended',
      pod({ phase: 'Failed' }),
      'pod app/web has ended (Failed), and its volumes are not mounted any more',
    ],
  ])('that %s', async (_what, found, reason) => {
    expect(await look(found, 'backup')).toBe(reason);
    expect(await look(found, 'restore')).toBe(reason);
  });

  it('that is being deleted is read to the end, and written no more', async () => {
    expect(await look(leaving, 'backup')).toBeUndefined();
    expect(await look(leaving, 'backup', false)).toBe('pod app/web is being deleted');
    expect(await look(leaving, 'restore')).toBe('pod app/web is being deleted');
  });
});
