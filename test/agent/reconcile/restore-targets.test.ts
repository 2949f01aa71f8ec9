import { expect, it } from 'vitest';
import type { Movement } from '../../../src/agent/movement.ts';
import { RestoreTargets } from '../../../src/agent/reconcile/restore-targets.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import type { AgentTurns } from '../../../src/agent/reconcile/agent-turns.ts';

it('an agent of high rank looks for what a restore waits for seldom, and at once when it has changed', () => {
  const memory = new Memory<Movement>([]);
  const turns = { rank: () => 99, inMs: () => 0 } as unknown as AgentTurns<Movement>;
  const targets = new RestoreTargets(turns, memory);
  const missed = { changes: 0, isOwn: false };
  for (let i = 0; i < 3; i++) targets.missed('u-1', missed);
  expect(targets.pausedMs('u-1')).toBeGreaterThan(100_000);
  targets.changed('u-1');
  expect(targets.pausedMs('u-1')).toBeUndefined();
});

it('the only agent that may claim a restore looks as often whatever its rank is', () => {
  const turns = { rank: () => 99, inMs: () => 0 } as unknown as AgentTurns<Movement>;
  const targets = new RestoreTargets(turns, new Memory<Movement>([]));
  for (let i = 0; i < 30; i++) targets.missed('u-1', { changes: 0, isOwn: true });
  expect(targets.pausedMs('u-1')).toBeLessThanOrEqual(120_000);
});

it('what was not there when an agent looked may have come since: it looks again', () => {
  const turns = { rank: () => 0, inMs: () => 0 } as unknown as AgentTurns<Movement>;
  const targets = new RestoreTargets(turns, new Memory<Movement>([]));
  const changes = targets.changesOf('u-1');
  targets.changed('u-1');
  targets.missed('u-1', { changes, isOwn: false });
  expect(targets.pausedMs('u-1')).toBeUndefined();
});
