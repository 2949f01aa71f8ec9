import { describe, expect, it } from 'vitest';
import type { Backup } from '../../../src/kube/index.ts';
import { planQueue } from '../../../src/server/backups/queue.ts';
import { cpuMsOf } from '../../support/cpu-time.ts';
import { aBackup } from '../../support/builders.ts';

const NAMESPACES = ['a', 'b', 'c'];

function backup(
  name: string,
  {
    phase = '',
    spaces = [name],
    position,
    age = 0,
  }: { phase?: string; spaces?: string[]; position?: number; age?: number } = {},
): Backup {
  return aBackup({
    metadata: {
      name,
      uid: name,
      creationTimestamp: `2026-11-25T00:00:${String(60 - age).padStart(2, '0')}Z`,
    },
    spec: { includedNamespaces: spaces },
    status: { phase, ...(position !== undefined && { queuePosition: position }) },
  });
}

const plan = (backups: Backup[], runningMax = 1): string[] =>
  planQueue(backups, { namespaces: NAMESPACES, runningMax }).map(
    ({ backup: { metadata }, phase, position }) => `${metadata.name} ${phase} ${position ?? '-'}`,
  );

describe('the queue of backups', () => {
  it('gives new ones the places behind those that wait, the oldest first', () => {
    const all = [
      backup('c', { age: 1 }),
      backup('b', { age: 9 }),
      backup('a', { phase: 'InProgress' }),
      backup('d', { phase: 'Queued', position: 1, spaces: ['a'] }),
    ];
    expect(plan(all)).toEqual(['b Queued 2', 'c Queued 3']);
  });
  it('lets so many run at once, the first ones first, and closes the gaps', () => {
    const all = ['a', 'b', 'c'].map((name, i) =>
      backup(name, { phase: 'Queued', position: i + 1 }),
    );
    expect(plan(all)).toEqual(['a ReadyToStart -', 'b Queued 1', 'c Queued 2']);
    expect(plan(all, 2)).toEqual(['a ReadyToStart -', 'b ReadyToStart -', 'c Queued 1']);
    expect(plan([backup('x', { phase: 'ReadyToStart' }), ...all])).toEqual([]);
  });
  it('runs no two that take one namespace, and lets none overtake what it would keep waiting', () => {
    const all = [
      backup('r', { phase: 'InProgress', spaces: ['a'] }),
      backup('both', { phase: 'Queued', position: 1, spaces: ['a', 'b'] }),
      backup('b', { phase: 'Queued', position: 2 }),
      backup('c', { phase: 'Queued', position: 3 }),
    ];
    expect(plan(all, 3)).toEqual(['c ReadyToStart -']);
  });
  it('knows patterns, and all', () => {
    const all = [
      backup('r', { phase: 'InProgress', spaces: ['a'] }),
      backup('all', { phase: 'Queued', position: 1, spaces: ['*'] }),
    ];
    expect(plan(all, 3)).toEqual([]);
    // Invalid patterns do not block the queue: validation refuses them.
    expect(
      plan([...all, backup('w', { phase: 'Queued', position: 2, spaces: ['a**', 'x['] })], 3),
    ).toEqual(['w ReadyToStart -']);
  });
  it('leaves alone what waits for operations, or is over', () => {
    const over = ['WaitingForPluginOperations', 'Finalizing', 'Completed', 'Failed'];
    expect(
      plan([
        ...over.map((phase, i) => backup(`o${i}`, { phase, spaces: ['a'] })),
        backup('a', { phase: 'Queued', position: 1 }),
      ]),
    ).toEqual(['a ReadyToStart -']);
  });
  it('lets nobody wait for one that is held, which keeps its place', () => {
    const all = ['a', 'b'].map((name, i) =>
      backup(name, { phase: 'Queued', position: i + 1, spaces: ['*'] }),
    );
    const steps = planQueue(all, {
      namespaces: NAMESPACES,
      runningMax: 1,
      isHeld: ({ metadata }) => metadata.name === 'a',
    });
    expect(steps.map(({ backup: { metadata }, phase }) => [metadata.name, phase])).toEqual([
      ['b', 'ReadyToStart'],
    ]);
  });
  it('is planned in a moment where thousands wait in a cluster of thousands of namespaces', async () => {
    const namespaces = Array.from({ length: 5000 }, (_, i) => `ns-${i}`);
    const all = Array.from({ length: 4000 }, (_, i) =>
      backup(`b${i}`, { phase: 'Queued', position: i + 1, spaces: ['*'] }),
    );
    let steps: ReturnType<typeof planQueue> = [];
    const before = process.memoryUsage().heapUsed;
    const cpuMs = await cpuMsOf(() => (steps = planQueue(all, { namespaces, runningMax: 2 })));
    expect(steps.filter(({ phase }) => phase === 'ReadyToStart')).toHaveLength(1);
    expect(cpuMs).toBeLessThan(1000);
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(100 << 20);
  });
});
