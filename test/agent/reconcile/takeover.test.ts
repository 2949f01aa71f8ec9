import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { Takeover } from '../../../src/agent/reconcile/takeover.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import { AgentTurns } from '../../../src/agent/reconcile/agent-turns.ts';
import { silentLogger } from '../../../src/base/index.ts';
import type { DataUpload } from '../../../src/kube/index.ts';
import { anUpload } from '../../support/builders.ts';

const TAKEOVER_MS = 400;

it('what an agent takes back that is not ready, and yet at work, is left with it for as long again', async () => {
  const memory = new Memory<DataUpload>([]);
  const roster = { version: 1, rank: () => 0, isAlive: (node: string) => node === 'me' };
  const hearing = { isAway: false, backMs: Infinity };
  const movement = anUpload({
    metadata: { name: 'up', uid: 'u-1' },
    spec: {},
    status: { phase: 'InProgress', node: 'other' },
  });
  let takeovers = 0;
  const takeover = new Takeover<DataUpload>({
    direction: { name: 'upload', noun: 'data upload' },
    node: 'me',
    takeoverMs: TAKEOVER_MS,
    roster,
    turns: new AgentTurns<DataUpload>(roster as never, memory, hearing),
    memory,
    logger: silentLogger,
    writer: {
      exclusive: (seen: DataUpload) => {
        takeovers++;
        // Its own agent sees the pod run, and writes at once.
        return Promise.resolve(seen);
      },
    },
  } as never);
  const startMs = performance.now();
  while (performance.now() - startMs < 2.5 * TAKEOVER_MS) {
    await takeover.watchOver(movement);
    await sleep(10);
  }
  expect(takeovers).toBe(2);
});
