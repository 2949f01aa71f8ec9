import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { silentLogger } from '../../../../src/base/index.ts';
import type { KubeClient, KubeObject, Resource } from '../../../../src/kube/index.ts';
import { openActions } from '../../../../src/plugin/index.ts';
import { SharedLook } from '../../../../src/plugin/actions/movements/shared-reads.ts';
import { aBackup } from '../../../support/builders.ts';

const OWNER = { namespace: 'velero', uid: 'u' };
const never = new AbortController().signal;
const ids = (count: number): string[] => Array.from({ length: count }, (_, i) => `id-${i}`);

/** Counts requests, for the list and for single objects. */
class Asked {
  lists = 0;
  singles = 0;
  size: number;
  readonly look: SharedLook<number>;

  constructor(size: number, list?: () => Promise<Map<string, number>>) {
    this.size = size;
    this.look = new SharedLook(() => {
      this.lists++;
      return list?.() ?? Promise.resolve(new Map(ids(this.size).map((id) => [id, this.lists])));
    });
  }

  /** As a server polls: each of them, so many at a time. */
  async poll(count: number, atOnce = 1): Promise<void> {
    const left = ids(count);
    const work = async (): Promise<void> => {
      for (let id = left.shift(); id !== undefined; id = left.shift()) {
        if ((await this.look.answer(OWNER, id, never)) === undefined) this.singles++;
      }
    };
    await Promise.all(Array.from({ length: atOnce }, work));
  }
}

describe('a look at many operations of one backup', () => {
  it.each([1, 8])('is two requests for 200 of them, asked for %i at a time', async (atOnce) => {
    const asked = new Asked(200);
    await asked.poll(200, atOnce);
    expect(asked).toMatchObject({ lists: 1, singles: 1 });
  });

  it('is one request where one is left, and none that costs more than those it saves', async () => {
    const one = new Asked(200);
    await one.poll(1);
    await one.poll(1);
    expect(one).toMatchObject({ lists: 0, singles: 2 });
    // At the last poll ten thousand operations ran, and now a few still run.
    const many = new Asked(10_000);
    await many.poll(10_000);
    expect(many).toMatchObject({ lists: 1, singles: 1 });
    await sleep(2100);
    await many.poll(150);
    expect(many).toMatchObject({ lists: 1, singles: 151 });
  });

  it('gives each answer once: whoever asks again has a new one', async () => {
    const asked = new Asked(3);
    await asked.poll(3);
    expect(await asked.look.answer(OWNER, 'id-2', never)).toBeUndefined();
    expect(await asked.look.answer(OWNER, 'unknown', never)).toBeUndefined();
    expect(await asked.look.answer({ ...OWNER, uid: 'other' }, 'id-2', never)).toBeUndefined();
    await sleep(2100);
    await asked.poll(3);
    expect(asked.lists).toBe(2);
  });

  it('leaves each to look by itself where the list fails, and asks for no second one at once', async () => {
    const asked = new Asked(9, () => Promise.reject(new Error('away')));
    await asked.poll(9, 4);
    expect(asked).toMatchObject({ lists: 1, singles: 9 });
  });

  it('is left by whoever is told to stop', async () => {
    const asked = new Asked(9, () => new Promise(() => undefined));
    await asked.poll(1);
    const abort = new AbortController();
    const waiting = asked.look.answer(OWNER, 'id-1', abort.signal);
    abort.abort(new Error('stopped'));
    await expect(waiting).rejects.toThrow('stopped');
  });
});

describe('actions that are asked for 200 operations', () => {
  const BACKUP = aBackup({ metadata: { name: 'b', ...OWNER }, spec: {} });
  const requests: string[] = [];
  const named = (name: string): KubeObject =>
    ({
      metadata: { name, labels: { 'velero.io/async-operation-id': name } },
      spec: { pod: {} },
      status: { phase: 'InProgress', progress: { bytesDone: Number(name.slice(3)) } },
    }) as unknown as KubeObject;
  const client = {
    find: (_: Resource<KubeObject>, { name }: { name: string }) => {
      requests.push(name);
      return Promise.resolve(named(name));
    },
    list: (_: Resource<KubeObject>, { labelSelector = '' }) => {
      requests.push(labelSelector);
      return Promise.resolve([named(labelSelector.split('=')[1] ?? '')]);
    },
    collect: (
      _: Resource<KubeObject>,
      { labelSelector = '' },
      take: (item: KubeObject) => unknown[],
    ) => {
      requests.push(labelSelector);
      return Promise.resolve(
        ids(200).flatMap((id) => [...take(named(id)), ...take(named(id.replace('id', 'du')))]),
      );
    },
    listPage: () => Promise.resolve({ items: [], resourceVersion: '1' }),
  } as unknown as KubeClient;
  const actions = openActions({ client, logger: silentLogger });

  it.each([
    ['uploads', actions.pvcBackup(), 'du', ['velero.io/async-operation-id=du-0']],
    ['pod volumes', actions.podVolumeOperation(), 'id', ['id-0']],
  ])('%s: need two requests, and have the right answers', async (_, action, prefix, first) => {
    requests.length = 0;
    for (let i = 0; i < 200; i++) {
      const progress = await action.progress(`${prefix}-${i}`, BACKUP, { signal: never });
      expect(progress).toMatchObject({ completed: false, nCompleted: i });
    }
    // Beside what looks once for each backup whether something was left over.
    const asked = requests.filter((request) => !request.startsWith('longshore.io/'));
    expect(asked).toEqual([...first, 'velero.io/backup-uid=u']);
  });
});
