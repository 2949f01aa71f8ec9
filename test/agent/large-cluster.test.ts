import { afterEach, describe, expect, it, vi } from 'vitest';
import { Backlog } from '../../src/agent/reconcile/node-backlog.ts';
import { PhaseCounts } from '../../src/agent/status/phase-counts.ts';
import { Exposures } from '../../src/agent/reconcile/exposures.ts';
import { MovementWriter } from '../../src/agent/reconcile/movement-writer.ts';
import { Roster, trimmedAgent } from '../../src/agent/reconcile/roster.ts';
import { Slots } from '../../src/agent/reconcile/slots.ts';
import { RestoreTargets } from '../../src/agent/reconcile/restore-targets.ts';
import { Memory } from '../../src/agent/reconcile/tracked-movements.ts';
import { AgentTurns } from '../../src/agent/reconcile/agent-turns.ts';
import { CodedError, systemClock } from '../../src/base/index.ts';
import type { Cache, DataUpload, KubeClient, Listener, Pod } from '../../src/kube/index.ts';

afterEach(() => {
  vi.restoreAllMocks();
});

/** A clock of the process that goes only as far as it is told. */
function stillClock(): { passMs: (ms: number) => void } {
  let nowMs = 1000;
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs);
  return { passMs: (ms) => (nowMs += ms) };
}

const pod = (name: string, node: string, ready = 'True'): Pod =>
  ({
    metadata: { name, uid: name, resourceVersion: '1', labels: { role: 'node-agent' } },
    spec: { nodeName: node, containers: [{ name: 'c', image: 'x' }] },
    status: { phase: 'Running', conditions: [{ type: 'Ready', status: ready, reason: 'x' }] },
  }) as never;

const hearing = { isAway: false, backMs: Infinity };

class Told<T> {
  readonly #listeners: Listener<T>[] = [];
  onChange(listener: Listener<T>): void {
    this.#listeners.push(listener);
  }
  tell(after: T | undefined, before?: T): void {
    for (const listener of this.#listeners) listener(after, before);
  }
}

describe('the roster as agents come and go', () => {
  it('has a new version when a node wins or loses its agent, and only then', () => {
    const pods = new Told<Pod>();
    const roster = new Roster(pods, 'self');
    const told: string[] = [];
    roster.onChange((node) => told.push(`${node} ${roster.isAlive(node)}`));
    const first = pod('a-1', 'a');
    pods.tell(first);
    const { version } = roster;
    pods.tell(pod('a-1', 'a'), first);
    expect(roster.version).toBe(version);
    // Its successor is ready before it is gone.
    pods.tell(pod('a-2', 'a'));
    pods.tell(undefined, first);
    expect([roster.version, roster.isAlive('a')]).toEqual([version, true]);
    pods.tell(pod('a-2', 'a', 'False'), pod('a-2', 'a'));
    expect(roster.version).not.toBe(version);
    expect(told).toEqual(['a true', 'a false']);
  });

  it('keeps of a pod what it asks for', () => {
    const kept = trimmedAgent(pod('a-1', 'a', 'False'));
    expect(JSON.stringify(kept)).not.toContain('role');
    const pods = new Told<Pod>();
    const roster = new Roster(pods, 'self');
    pods.tell(kept);
    pods.tell(trimmedAgent(pod('b-1', 'b')));
    expect([...roster.nodes()]).toEqual(['self', 'b']);
  });

  it('is asked for a rank once, until it changes', () => {
    const pods = new Told<Pod>();
    const roster = new Roster(pods, 'self');
    const rank = vi.spyOn(roster, 'rank');
    const turns = new AgentTurns<DataUpload>(roster, new Memory([]), hearing);
    for (let i = 0; i < 10; i++) turns.inMs('uid', 'new');
    expect(rank).toHaveBeenCalledTimes(1);
    pods.tell(pod('a-1', 'a'));
    turns.inMs('uid', 'new');
    expect(rank).toHaveBeenCalledTimes(2);
  });

  it('reckons a rank among a thousand in less than a tenth of a millisecond', () => {
    const pods = new Told<Pod>();
    const roster = new Roster(pods, 'self');
    for (let i = 0; i < 1000; i++) pods.tell(pod(`a-${i}`, `node-${i}`));
    roster.rank('warm');
    const before = process.cpuUsage();
    for (let i = 0; i < 1000; i++) roster.rank(`uid-${i}`);
    expect(process.cpuUsage(before).user / 1e6).toBeLessThan(0.1);
  });
});

describe('turns where others may have known before', () => {
  const at = (rank: number, backMs: number, ageMs = 0, isAway = false): number => {
    const roster = { version: 1, rank: () => rank } as unknown as Roster;
    return new AgentTurns<DataUpload>(roster, new Memory([]), { isAway, backMs }).inMs(
      'uid',
      'new',
      {
        ageMs,
      },
    );
  };

  it('are left to the first agent for as long as others may take to be back', () => {
    stillClock();
    expect(at(0, 500)).toBe(0);
    expect(at(1, 60_000)).toBe(3500);
    expect(at(1, 500)).toBe(12_000);
    expect(at(1, 60_000, 0, true)).toBe(12_500);
  });

  it('begin anew when the server was away in between, but for the first agent', () => {
    const clock = stillClock();
    const hearing = { isAway: false, backMs: 60_000 };
    const left = [0, 1].map((rank) => {
      const roster = { version: 1, rank: () => rank } as unknown as Roster;
      const turns = new AgentTurns<DataUpload>(roster, new Memory([]), hearing);
      turns.inMs('uid', 'away', { afterMs: 300_000 });
      return () => turns.inMs('uid', 'away', { afterMs: 300_000 });
    });
    clock.passMs(400_000);
    expect(left.map((inMs) => inMs())).toEqual([-100_000, -47_500]);
    hearing.backMs = 1000;
    expect(left.map((inMs) => inMs())).toEqual([-100_000, 11_500]);
  });

  it('are later by as much as the server is behind', () => {
    stillClock();
    expect([at(0, 60_000, 6000), at(1, 60_000, 1400)]).toEqual([0, 3500]);
    expect([at(1, 60_000, 6000), at(1, 60_000, 3_600_000)]).toEqual([9500, 18_500]);
  });
});

describe('those that wait for a place', () => {
  it('are called as many as there are places, in their order, until they have one or leave', () => {
    const slots = new Slots(2);
    const called: string[] = [];
    for (const name of ['x', 'y']) slots.tryAcquire(name, () => undefined);
    const stand = (name: string, order: number): void => {
      slots.wait(name, () => called.push(name), order);
    };
    stand('late', 9);
    stand('first', 1);
    stand('second', 2);
    slots.release('x');
    expect(called).toEqual(['first']);
    // The waiter did not take the slot: it is called again, and stays in the queue.
    slots.wake();
    expect(called).toEqual(['first', 'first']);
    slots.leave('first');
    slots.release('y');
    expect(called.slice(2)).toEqual(['second', 'late']);
    expect(slots.tryAcquire('second', () => undefined)).toBe(true);
    expect(slots.waiting).toBe(1);
  });

  it('of two lines with one limit: each has some places that the other one cannot take', () => {
    const called: string[] = [];
    const usedByAll = (): number => backups.used + restores.used;
    const backups = new Slots(8, { usedByAll, least: 2 });
    const restores = new Slots(8, { usedByAll, least: 2 });
    const take = (slots: Slots, count: number): number =>
      Array.from({ length: count }, (_, i) =>
        slots.tryAcquire(`${i}`, () => called.push(`${i}`)),
      ).filter(Boolean).length;
    expect([take(restores, 20), take(backups, 20)]).toEqual([8, 2]);
    backups.release('0');
    expect(called).toEqual(['2']);
    restores.release('0');
    // Nine slots were held. The free slot is within the share of the backups.
    expect(called).toEqual(['2']);
    backups.wake();
    expect(called).toEqual(['2', '2']);
  });

  it('let what is under way go on before anything is begun', () => {
    const slots = new Slots(1);
    const called: string[] = [];
    const exposures = new Exposures<DataUpload>({
      slots,
      memory: new Memory([slots]),
      enqueue: (key) => called.push(key),
    });
    const upload = (name: string, phase: string): DataUpload =>
      ({
        metadata: { name, namespace: 'velero', uid: name },
        spec: {},
        status: { phase },
      }) as never;
    slots.tryAcquire('x', () => undefined);
    for (let i = 0; i < 100; i++) exposures.park(upload(`new-${i}`, 'New'), i);
    for (const phase of ['InProgress', 'Accepted']) {
      const died = upload(`died-${phase}`, phase);
      // The agent asks repeatedly.
      for (let i = 0; i < 2; i++) expect(exposures.tryAcquire(died)).toBe(false);
    }
    expect(exposures.tryAcquire(upload('newest', 'New'))).toBe(false);
    slots.release('x');
    expect(called).toEqual(['velero/died-InProgress']);
    slots.release('died-InProgress');
    expect(called).toEqual(['velero/died-InProgress', 'velero/died-Accepted']);
    slots.release('died-Accepted');
    expect(called[2]).toBe('velero/new-0');
  });
});

describe('a PVC that never comes', () => {
  const looksIn = (rank: number, hours: number): number => {
    const clock = stillClock();
    const memory = new Memory<DataUpload>([]);
    const roster = { version: 1, rank: () => rank } as unknown as Roster;
    const turns = new AgentTurns<DataUpload>(roster, memory, hearing);
    const targets = new RestoreTargets(turns, memory);
    let looks = 0;
    for (let second = 0; second < hours * 3600; second++) {
      if (targets.inMs('uid') <= 0) {
        looks++;
        targets.missed('uid', { changes: 0, isOwn: false });
      }
      clock.passMs(1000);
    }
    vi.restoreAllMocks();
    return looks;
  };

  it('is looked for often at first, then every few minutes, and less by agents that come later', () => {
    expect(looksIn(0, 1)).toBeGreaterThan(30);
    expect(looksIn(0, 1)).toBeLessThan(60);
    expect(looksIn(9, 1)).toBeLessThan(14);
    expect(looksIn(999, 1)).toBeLessThan(4);
  });

  it('costs a thousand agents fewer than three requests per second in the first hour', () => {
    let looks = 0;
    for (let rank = 0; rank < 1000; rank += 20) looks += looksIn(rank, 1) * 20;
    expect(looks / 3600).toBeLessThan(3);
  });
});

const upload = (phase: string, resourceVersion = '5', metadata: object = {}): DataUpload =>
  ({
    metadata: { name: 'up', namespace: 'velero', uid: 'u-1', resourceVersion, ...metadata },
    spec: {},
    status: { phase },
  }) as never;

describe('counts', () => {
  it('are kept with every change', () => {
    const cache = new Told<DataUpload>();
    const counts = new PhaseCounts(cache);
    const exposing = upload('Accepted', '6', { labels: { 'velero.io/expose-on-going': 'true' } });
    cache.tell(upload('New'));
    cache.tell(exposing, upload('New'));
    expect([[...counts.phases], counts.exposing]).toEqual([[['Accepted', 1]], 1]);
    cache.tell(upload('InProgress'), exposing);
    cache.tell(undefined, upload('InProgress'));
    expect([[...counts.phases], counts.exposing]).toEqual([[], 0]);
  });
});

describe('the backlog of all nodes', () => {
  const on = (node: string, phase = 'Prepared', datamover?: string): DataUpload =>
    ({ ...upload(phase), spec: { datamover }, status: { phase, node } }) as never;
  const setUp = (): { cache: Told<DataUpload>; backlog: Backlog; nodes: Set<string> } => {
    const cache = new Told<DataUpload>();
    const nodes = new Set(['a', 'b']);
    const backlog = new Backlog([cache], {
      roster: { nodes: () => nodes },
      concurrency: 1,
      dataMovers: new Set(['']),
    });
    return { cache, backlog, nodes };
  };

  it('is full when no node is idle and each has enough, or will have', () => {
    const { cache, backlog, nodes } = setUp();
    for (let i = 0; i < 20; i++) cache.tell(on('a'));
    expect(backlog.isFull(), 'the other one is idle').toBe(false);
    cache.tell(on('b', 'InProgress'));
    expect(backlog.isFull()).toBe(false);
    for (let i = 0; i < 7; i++) cache.tell(upload('Accepted'));
    expect(backlog.isFull(), 'seven are on their way').toBe(true);
    cache.tell(on('b', 'Completed'), on('b', 'InProgress'));
    expect(backlog.isFull(), 'it is idle again').toBe(false);
    nodes.delete('b');
    expect(backlog.isFull(), 'its agent is gone').toBe(true);
    for (let i = 0; i < 20; i++) cache.tell(undefined, on('a'));
    expect(backlog.isFull()).toBe(false);
  });

  it("does not count others' volumes", () => {
    const { cache, backlog } = setUp();
    for (const node of ['a', 'b']) {
      for (let i = 0; i < 20; i++) cache.tell(on(node, 'InProgress', 'acme'));
    }
    expect(backlog.isFull()).toBe(false);
  });
});

describe('a CR that is written on what is known of it', () => {
  /** `now`: as the API server has it. */
  const setUp = (
    known: DataUpload,
    now: DataUpload,
  ): { writer: MovementWriter<DataUpload>; asked: string[] } => {
    const asked: string[] = [];
    const client = {
      find: () => {
        asked.push('get');
        return Promise.resolve(structuredClone(now));
      },
      replace: (_: unknown, copy: DataUpload) => {
        asked.push(`put ${copy.metadata.resourceVersion}`);
        if (copy.metadata.resourceVersion === now.metadata.resourceVersion) {
          return Promise.resolve({
            ...copy,
            metadata: {
              ...copy.metadata,
              resourceVersion: String(Number(now.metadata.resourceVersion) + 1),
            },
          });
        }
        return Promise.reject(new CodedError('KUBE_CONFLICT', 'conflict'));
      },
    } as unknown as KubeClient;
    const cache = { resource: {}, get: () => known, onChange: () => undefined };
    const writer = new MovementWriter<DataUpload>(
      client,
      cache as unknown as Cache<DataUpload>,
      systemClock,
      new Memory([]),
    );
    return { writer, asked };
  };
  const toFailed = { phase: 'Failed', status: {} } as const;
  const keep = { isClean: false };
  const finalizers = ['velero.io/data-upload-download-finalizer'];

  it('costs one request while nobody else writes', async () => {
    const { writer, asked } = setUp(upload('InProgress'), upload('InProgress'));
    await writer.finish(upload('InProgress'), toFailed, keep);
    expect(asked).toEqual(['put 5']);
  });

  it('is looked at again where that is old: what somebody else wrote stays', async () => {
    const { writer, asked } = setUp(upload('InProgress'), upload('Completed', '7'));
    expect(await writer.finish(upload('InProgress'), toFailed, keep)).toBeUndefined();
    expect(asked).toEqual(['put 5', 'get']);
  });

  it('is looked at before a change is thought to be needless', async () => {
    const { writer, asked } = setUp(upload('Completed'), upload('InProgress', '7'));
    const ended = await writer.finish(upload('InProgress'), toFailed, keep);
    expect(ended?.status?.phase).toBe('Failed');
    expect(asked).toEqual(['get', 'put 7']);
  });

  it('is never written back in part', async () => {
    const { writer, asked } = setUp(upload('Completed'), upload('Completed'));
    await writer.update(upload('Completed'), () => undefined);
    expect(asked).toEqual(['get', 'put 5']);
  });

  it('loses its finalizer with its final phase when nothing is left; not while it is being deleted', async () => {
    const clean = { isClean: true };
    const of = async (metadata: object, how: { isClean: boolean }): Promise<unknown> => {
      const movement = upload('InProgress', '5', { finalizers, ...metadata });
      const ended = await setUp(movement, movement).writer.finish(movement, toFailed, how);
      return ended?.metadata.finalizers;
    };
    expect(await of({}, clean)).toEqual([]);
    expect(await of({}, keep)).toEqual(finalizers);
    expect(await of({ deletionTimestamp: '2026-01-01T00:00:00Z' }, clean)).toEqual(finalizers);
  });
});
