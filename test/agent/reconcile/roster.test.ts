import { describe, expect, it } from 'vitest';
import { Roster } from '../../../src/agent/reconcile/roster.ts';
import { Slots } from '../../../src/agent/reconcile/slots.ts';
import type { Cache, Listener, Pod } from '../../../src/kube/index.ts';
import { aPod } from '../../support/builders.ts';

const pod = (node: string, more: object = {}): Pod =>
  aPod({
    metadata: { name: `agent-${node}` },
    spec: { nodeName: node, containers: [] },
    status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] },
    ...more,
  });
/** A cache that tells of these, and of more later. */
const tell = (pods: readonly Pod[], later: Listener<Pod>[] = []): Pick<Cache<Pod>, 'onChange'> => ({
  onChange: (listener) => {
    for (const each of pods) listener(each, undefined);
    later.push(listener);
  },
});
const rosterOf = (pods: readonly Pod[], self: string): Roster => new Roster(tell(pods), self);

describe('the roster', () => {
  const nodes = Array.from({ length: 20 }, (_, i) => `node-${i}`);
  const pods = nodes.map((node) => pod(node));

  it('gives each agent another rank, the same to all who ask, and every agent its share of first ones', () => {
    const firsts = new Map<string, number>();
    for (let i = 0; i < 500; i++) {
      const ranks = nodes.map((node) => rosterOf(pods, node).rank(`uid-${i}`));
      expect(ranks.toSorted((a, b) => a - b)).toEqual(nodes.map((_, rank) => rank));
      const first = nodes[ranks.indexOf(0)] ?? '';
      firsts.set(first, (firsts.get(first) ?? 0) + 1);
    }
    expect(firsts.size).toBe(20);
    expect(Math.max(...firsts.values())).toBeLessThan(60);
  });

  it('costs no more than 5 seconds when the first one is dead and nobody knows', () => {
    const turns = nodes
      .map((node) => Roster.turnMs(rosterOf(pods, node).rank('uid')))
      .toSorted((a, b) => a - b);
    expect(turns[0]).toBe(0);
    expect(turns[1]).toBeGreaterThan(1000);
    expect(turns[1]).toBeLessThan(5000);
  });

  it('counts those that are ready, and itself', () => {
    const dead = [
      pod('gone', { metadata: { name: 'x', deletionTimestamp: 'now' } }),
      pod('failed', { status: { phase: 'Failed' } }),
      pod('deaf', {
        status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'False' }] },
      }),
    ];
    const roster = rosterOf([pod('alive'), ...dead], 'self');
    expect([...roster.nodes()].sort()).toEqual(['alive', 'self']);
    expect(roster.isAlive('deaf')).toBe(false);
    expect(roster.isAlive('self')).toBe(true);
  });
});

describe('slots', () => {
  it('are given to so many, and the next is told when one is free', () => {
    const slots = new Slots(2);
    let woken = '';
    expect(slots.tryAcquire('a', () => undefined)).toBe(true);
    expect(slots.tryAcquire('a', () => undefined)).toBe(true);
    expect(slots.tryAcquire('b', () => undefined)).toBe(true);
    expect(slots.tryAcquire('c', () => (woken = 'c'))).toBe(false);
    slots.release('a');
    expect(woken).toBe('c');
    expect(slots.tryAcquire('c', () => undefined)).toBe(true);
    slots.acquireAnyway('d');
    expect(slots.used).toBe(3);
    slots.release('b');
    expect(slots.tryAcquire('e', () => undefined)).toBe(false);
  });
});
