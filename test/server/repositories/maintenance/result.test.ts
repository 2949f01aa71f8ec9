import { describe, expect, it } from 'vitest';
import type { Pod } from '../../../../src/kube/index.ts';
import {
  addToHistory,
  failureOf,
  type HistoryEntry,
} from '../../../../src/server/repositories/maintenance/result.ts';

const ended = (terminated: object, status: object = {}): Pod =>
  ({ status: { ...status, containerStatuses: [{ name: 'c', state: { terminated } }] } }) as never;

describe('why a maintenance Job failed', () => {
  const rows: [string, readonly Pod[], string][] = [
    [
      'is what the process says, after whatever it has logged',
      [
        ended({
          exitCode: 1,
          message: 'level=error\nRepo maintenance error: the bucket is gone\n',
        }),
      ],
      'the bucket is gone',
    ],
    [
      'is the memory that it had too little of',
      [ended({ exitCode: 137, reason: 'OOMKilled' })],
      'the maintenance process was killed because it ran out of memory (OOMKilled): raise podResources.memoryLimit in the ConfigMap of --repo-maintenance-job-configmap',
    ],
    [
      'is what Kubernetes knows of a process that said nothing',
      [ended({ exitCode: 137, reason: 'Error' })],
      'Repo maintenance failed but result is not retrieveable: exit code 137, Error',
    ],
    [
      'is why its pod was evicted',
      [{ status: { reason: 'Evicted', message: 'The node was low on memory' } } as never],
      'Repo maintenance failed but result is not retrieveable: Evicted; The node was low on memory',
    ],
    [
      'is not known where the pod is gone',
      [],
      'Repo maintenance failed but result is not retrieveable: its pod is gone',
    ],
  ];
  it.each(rows)('%s', (_, pods, text) => {
    expect(failureOf(pods)).toBe(text);
  });
});

describe('the history', () => {
  const entry = (hour: number, message = ''): HistoryEntry => ({
    startTimestamp: new Date(Date.UTC(2026, 4, 1, hour)).toISOString(),
    message,
  });
  it('keeps the newest 25, in their order, each once', () => {
    const before = Array.from({ length: 25 }, (_, i) => entry(i));
    const after = addToHistory(before, [entry(30), entry(24, 'again'), entry(26)]);
    expect(after.length).toBe(25);
    expect(after.slice(0, 1)).toEqual([entry(2)]);
    expect(after.slice(-3)).toEqual([entry(24, 'again'), entry(26), entry(30)]);
  });
});
