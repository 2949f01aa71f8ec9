import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { type Clock, CodedError, silentLogger, systemClock } from '../../src/base/index.ts';
import { type KubeClient, LeaderElection, type Lease } from '../../src/kube/index.ts';

/** Long enough that a machine that is busy for a second changes nothing. */
const TIMING = { leaseMs: 2400, renewMs: 1200, retryMs: 100 };

/** An API server with one Lease. Each client may be cut off, or delayed. */
class LeaseServer {
  lease: Lease | undefined;
  #version = 0;

  client(link: { isCut?: boolean; delayMs?: number } = {}): KubeClient {
    const through = async <T>(effect: () => T, signal?: AbortSignal): Promise<T> => {
      if (link.delayMs !== undefined) await sleep(link.delayMs, undefined, { signal });
      if (link.isCut === true) throw new CodedError('KUBE_UNAVAILABLE', 'cut off');
      return effect();
    };
    const keep = (lease: Lease): Lease => {
      const metadata = { ...lease.metadata, resourceVersion: String(++this.#version) };
      return (this.lease = { ...lease, metadata });
    };
    return {
      clock: systemClock,
      find: (_: unknown, _ref: unknown, { signal }: { signal?: AbortSignal }) =>
        through(() => this.lease, signal),
      create: (_: unknown, lease: Lease) =>
        through(() => {
          if (this.lease) throw new CodedError('KUBE_ALREADY_EXISTS', 'there already');
          return keep(lease);
        }),
      replace: (_: unknown, lease: Lease) =>
        through(() => {
          if (this.lease?.metadata.resourceVersion !== lease.metadata.resourceVersion) {
            throw new CodedError('KUBE_CONFLICT', 'written meanwhile');
          }
          return keep(lease);
        }),
    } as unknown as KubeClient;
  }
}

interface Candidate {
  readonly election: LeaderElection;
  readonly log: string[];
  readonly stop: () => Promise<void>;
}

const candidates: Candidate[] = [];
afterEach(async () => {
  for (const { stop } of candidates.splice(0)) await stop();
});

function candidate(
  client: KubeClient,
  identity: string,
  { clock = systemClock, log = [] }: { clock?: Clock; log?: string[] } = {},
): Candidate {
  const election = new LeaderElection({
    client,
    clock,
    identity,
    namespace: 'velero',
    name: 'server',
    logger: silentLogger,
    timing: TIMING,
  });
  const abort = new AbortController();
  const running = election.run(async (signal) => {
    log.push(`${identity} begins`);
    await new Promise<void>((resolve) => {
      signal.addEventListener('abort', () => resolve());
    });
    log.push(`${identity} ends`);
  }, abort.signal);
  const started = {
    election,
    log,
    stop: async () => {
      abort.abort();
      await running;
    },
  };
  candidates.push(started);
  return started;
}

async function until(condition: () => boolean, ms = 20_000): Promise<void> {
  const endMs = performance.now() + ms;
  while (!condition()) {
    if (performance.now() > endMs) throw new Error('it did not come to that');
    await sleep(5);
  }
}

describe('of several processes', () => {
  it('one leads, and the next one follows at once when it is told to end', async () => {
    const server = new LeaseServer();
    const log: string[] = [];
    const a = candidate(server.client(), 'a', { log });
    await until(() => a.election.isLeading);
    const b = candidate(server.client(), 'b', { log });
    await sleep(1.5 * TIMING.leaseMs);
    expect([a.election.isLeading, b.election.isLeading]).toEqual([true, false]);
    expect(b.election.holder).toBe('a');
    await a.stop();
    // The Lease is released, and does not have to expire.
    expect(['', 'b']).toContain(server.lease?.spec?.holderIdentity);
    await until(() => b.election.isLeading);
    expect(log).toEqual(['a begins', 'a ends', 'b begins']);
    expect(server.lease?.spec).toMatchObject({ holderIdentity: 'b', leaseTransitions: 1 });
    expect(server.lease?.spec?.renewTime).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/);
  });

  it('one that is cut off ends its work before the next one begins', async () => {
    const server = new LeaseServer();
    const log: string[] = [];
    const link = { isCut: false };
    const a = candidate(server.client(link), 'a', { log });
    await until(() => a.election.isLeading);
    const b = candidate(server.client(), 'b', { log });
    await sleep(100);
    link.isCut = true;
    await until(() => !a.election.isLeading);
    const lost = (isVacant: boolean): Error =>
      expect.objectContaining({ code: 'LEADERSHIP_LOST', facts: { isVacant } }) as Error;
    expect(() => a.election.assertLeading()).toThrow(lost(true));
    expect(b.election.isLeading).toBe(false);
    await until(() => b.election.isLeading);
    expect(log).toEqual(['a begins', 'a ends', 'b begins']);
    expect(() => a.election.assertLeading()).toThrow(lost(false));
    // The previous leader waits for the Lease now.
    expect(a.election.failure).toBeDefined();
    link.isCut = false;
    await until(() => a.election.failure === undefined);
    expect([a.election.isLeading, b.election.isLeading]).toEqual([false, true]);
  });

  it('one whose answers hang leads no longer than one that is cut off', async () => {
    const server = new LeaseServer();
    const link: { delayMs?: number } = {};
    const a = candidate(server.client(link), 'a');
    await until(() => a.election.isLeading);
    link.delayMs = 60_000;
    const startMs = performance.now();
    await until(() => a.log.includes('a ends'));
    expect(performance.now() - startMs).toBeLessThan(TIMING.leaseMs);
  });

  it('one that slept knows before its next write, whichever clock tells', async () => {
    for (const which of ['nowNs', 'monotonicNs'] as const) {
      let asleepNs = 0n;
      const clock: Clock = {
        nowNs: () => systemClock.nowNs() + (which === 'nowNs' ? asleepNs : 0n),
        monotonicNs: () =>
          (systemClock.monotonicNs?.() ?? 0n) + (which === 'monotonicNs' ? asleepNs : 0n),
      };
      const { election, stop } = candidate(new LeaseServer().client(), 'a', { clock });
      await until(() => election.isLeading);
      asleepNs = 600_000_000_000n;
      expect(() => election.assertLeading()).toThrow('this one writes nothing more');
      await stop();
    }
  });

  it('none takes the Lease early because its wall clock jumps', async () => {
    const server = new LeaseServer();
    const a = candidate(server.client(), 'a');
    await until(() => a.election.isLeading);
    let jumpNs = 0n;
    const clock: Clock = {
      nowNs: () => systemClock.nowNs() + jumpNs,
      monotonicNs: () => systemClock.monotonicNs?.() ?? 0n,
    };
    const b = candidate(server.client(), 'b', { clock });
    await sleep(100);
    for (let i = 0; i < 10; i++) {
      jumpNs += 3_600_000_000_000n;
      await sleep(20);
      expect([a.election.isLeading, b.election.isLeading]).toEqual([true, false]);
    }
  });

  it('errors of the work end the run; the Lease is given back', async () => {
    const server = new LeaseServer();
    const election = new LeaderElection({
      client: server.client(),
      clock: systemClock,
      identity: 'a',
      namespace: 'velero',
      name: 'server',
      logger: silentLogger,
      timing: TIMING,
    });
    const run = election.run(
      () => Promise.reject(new Error('broken')),
      new AbortController().signal,
    );
    await expect(run).rejects.toThrow('broken');
    expect(server.lease?.spec?.holderIdentity).toBe('');
  });
});
