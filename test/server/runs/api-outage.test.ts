import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { kubeError, unreachable } from '../../../src/kube/client/errors.ts';
import { type KubeClient, PODS } from '../../../src/kube/index.ts';
import { patientClient } from '../../../src/server/runs/api-outage.ts';

const ownServer = () => kubeError('list', 503, undefined);
const away = () => new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' });
const signal = new AbortController().signal;

/**
 * An API server that fails this many calls; `isOnlyKind`: only the kind's extension server does.
 */
function clusterOf(fails: number, isOnlyKind = false) {
  const asked: string[] = [];
  const answer = (what: string): Promise<never> => {
    asked.push(what);
    if (isOnlyKind && what === 'version') return Promise.resolve({} as never);
    return fails-- > 0
      ? Promise.reject(isOnlyKind ? ownServer() : away())
      : Promise.resolve({ items: [] } as never);
  };
  const client = {
    raw: () => answer('version'),
    listPage: () => answer('list'),
    find: () => answer('find'),
    exec: () => answer('exec'),
    server: 'here',
  } as unknown as KubeClient;
  const waiting = patientClient(client, { logger: silentLogger, signal, patienceMs: 2000 });
  return { waiting, asked };
}

describe('the requests of backups', () => {
  it('are so few at once that other controllers of the process have theirs', async () => {
    let [underWay, most] = [0, 0];
    const ends: (() => void)[] = [];
    const answer = (): Promise<never> => {
      most = Math.max(most, ++underWay);
      return new Promise((resolve) => {
        ends.push(() => {
          underWay--;
          resolve({} as never);
        });
      });
    };
    const client = { raw: answer, find: answer, patch: answer, exec: answer };
    const both = [1, 2].map(() =>
      patientClient(client as unknown as KubeClient, { logger: silentLogger, signal }),
    );
    const asked = both.flatMap((each) => [
      ...Array.from({ length: 20 }, () => each.find(PODS, { name: 'p' })),
      ...Array.from({ length: 20 }, () => each.patch(PODS, { name: 'p' }, {})),
    ]);
    await new Promise(setImmediate);
    expect(most).toBe(16);
    // Commands do not wait for them.
    const command = both[0]?.exec({} as never);
    await new Promise(setImmediate);
    expect(most).toBe(17);
    ends.pop()?.();
    await command;
    let isOver = false;
    const all = Promise.all(asked).then(() => (isOver = true));
    while (!isOver) {
      for (const end of ends.splice(0)) end();
      await new Promise(setImmediate);
    }
    await all;
    expect(most).toBe(17);
  });
});

describe('an API server that is too busy', () => {
  const busy = () => kubeError('list pods', 429, { message: 'too many requests' });
  /** Refuses each request this many times without an effect. */
  function busyCluster(times: number, more: { assertLeading?: () => void } = {}) {
    const asked: string[] = [];
    const answer = (what: string) => (): Promise<never> => {
      asked.push(what);
      const isRefused = asked.filter((each) => each === what).length <= times;
      return isRefused ? Promise.reject(busy()) : Promise.resolve({ items: [] } as never);
    };
    const client = {
      listPage: answer('list'),
      patch: answer('patch'),
      create: answer('create'),
      exec: answer('exec'),
      raw: answer('version'),
    } as unknown as KubeClient;
    const options = { logger: silentLogger, signal, patienceMs: 2000, ...more };
    return { waiting: patientClient(client, options), asked };
  }

  it('is asked for everything again, since nothing was done', async () => {
    const { waiting, asked } = busyCluster(2);
    const answers = await Promise.all([
      waiting.listPage(PODS, {}),
      waiting.patch(PODS, { name: 'p' }, {}),
      waiting.create(PODS, { metadata: { generateName: 'p-' } } as never),
      waiting.exec({ isOnce: true } as never),
    ]);
    expect(answers).toEqual(Array.from({ length: 4 }, () => ({ items: [] })));
    const times = Map.groupBy(asked, (each) => each);
    expect([...times].map(([what, { length }]) => [what, length])).toEqual(
      ['list', 'patch', 'create', 'exec'].map((what) => [what, 3]),
    );
  });
  it('is told where it stays so', async () => {
    await expect(busyCluster(Infinity).waiting.listPage(PODS, {})).rejects.toMatchObject({
      code: 'KUBE_THROTTLED',
      message: expect.stringMatching(/^list pods: too many requests \(tried \d+ times/) as string,
    });
  });
  it('is not asked again by a server that does not lead any more', async () => {
    const lost = new CodedError('LEADERSHIP_LOST', 'another one leads');
    const assertLeading = (): void => {
      throw lost;
    };
    const { waiting, asked } = busyCluster(1, { assertLeading });
    await expect(waiting.patch(PODS, { name: 'p' }, {})).rejects.toBe(lost);
    expect(asked).toEqual(['patch']);
  });
});

describe('an API server that is away', () => {
  it('is waited for', async () => {
    const { waiting, asked } = clusterOf(3);
    expect(await waiting.listPage(PODS, {})).toEqual({ items: [] });
    expect(asked).toEqual(['list', 'version', 'version', 'version', 'list']);
    expect(await clusterOf(2).waiting.find(PODS, { name: 'p' })).toEqual({ items: [] });
  });
  it('is not where only one kind does not answer', async () => {
    const { waiting, asked } = clusterOf(5, true);
    await expect(waiting.listPage(PODS, {})).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    expect(asked).toEqual(['list', 'version']);
  });
  it('is asked again where a connection broke, though it answers', async () => {
    let breaks = 2;
    const client = {
      raw: () => Promise.resolve({}),
      find: () => (breaks-- > 0 ? Promise.reject(away()) : Promise.resolve({ metadata: {} })),
    } as unknown as KubeClient;
    const waiting = patientClient(client, { logger: silentLogger, signal });
    expect(await waiting.find(PODS, { name: 'p' })).toEqual({ metadata: {} });
    breaks = Infinity;
    await expect(waiting.find(PODS, { name: 'p' })).rejects.toMatchObject({
      code: 'KUBE_UNAVAILABLE',
    });
  });
  it('is waited for again where it goes away before the question is answered', async () => {
    // The order of calls: a request, then polls until the server is back; and again.
    const answers = [false, false, true, false, false, true, true];
    const next = (): Promise<never> =>
      answers.shift() === true ? Promise.resolve({} as never) : Promise.reject(away());
    const client = { raw: next, find: next } as unknown as KubeClient;
    const waiting = patientClient(client, { logger: silentLogger, signal, patienceMs: 2000 });
    expect(await waiting.find(PODS, { name: 'p' })).toEqual({});
    expect(answers).toEqual([]);
  });
  it('is waited for by reads of the whole client, and where something with a name is made', async () => {
    let fails = 0;
    const asked: string[] = [];
    const answer = (what: string) => (): Promise<never> => {
      asked.push(what);
      return fails-- > 0 ? Promise.reject(away()) : Promise.resolve([] as never);
    };
    const methods = ['get', 'find', 'list', 'collect', 'create', 'patch', 'raw'] as const;
    const client = Object.fromEntries(
      methods.map((what) => [what, answer(what)]),
    ) as unknown as KubeClient;
    const patient = patientClient(client, { logger: silentLogger, signal, patienceMs: 2000 });
    const calls = [
      () => patient.get(PODS, { name: 'p' }),
      () => patient.find(PODS, { name: 'p' }),
      () => patient.list(PODS),
      () => patient.collect(PODS, {}, () => []),
      () => patient.create(PODS, { metadata: { name: 'p' } } as never),
    ];
    for (const call of calls) {
      fails = 2;
      expect(await call()).toEqual([]);
    }
    fails = 1;
    await expect(
      patient.create(PODS, { metadata: { generateName: 'p' } } as never),
    ).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    fails = 1;
    await expect(patient.patch(PODS, { name: 'p' }, {})).rejects.toMatchObject({
      code: 'KUBE_UNAVAILABLE',
    });
  });
  it('whose connection broke is asked again at once, also to run a command', async () => {
    const asked: string[] = [];
    let breaks = 2;
    const client = {
      raw: () => Promise.resolve({}),
      exec: () => {
        asked.push('exec');
        return breaks-- > 0
          ? Promise.reject(unreachable('exec', new Error('reset')))
          : Promise.resolve({ stdout: '', stderr: '' });
      },
    } as unknown as KubeClient;
    let looks = 0;
    const assertLeading = (): void => {
      looks++;
    };
    const waiting = patientClient(client, { logger: silentLogger, signal, assertLeading });
    const command = { namespace: 'a', pod: 'p', container: 'c', command: ['thaw'] };
    expect(await waiting.exec(command)).toEqual({ stdout: '', stderr: '' });
    expect([asked.length, looks]).toEqual([3, 3]);
    breaks = Infinity;
    await expect(waiting.exec(command)).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    expect(asked.length).toBe(7);
  });
  it('is not asked again to run what may have run and must not run twice', async () => {
    let times = 0;
    const client = {
      raw: () => Promise.resolve({}),
      exec: () => {
        times++;
        return Promise.reject(unreachable('exec', new Error('reset'), times > 1));
      },
    } as unknown as KubeClient;
    const waiting = patientClient(client, { logger: silentLogger, signal });
    const command = { namespace: 'a', pod: 'p', container: 'c', command: ['freeze'], isOnce: true };
    await expect(waiting.exec(command)).rejects.toMatchObject({ facts: { isSent: true } });
    expect(times).toBe(2);
  });
  it('is asked nothing more where another one leads when it is back', async () => {
    let times = 0;
    const client = {
      raw: () => Promise.resolve({}),
      find: () => {
        times++;
        return Promise.reject(unreachable('find', new Error('reset')));
      },
    } as unknown as KubeClient;
    const assertLeading = (): void => {
      throw new CodedError('LEADERSHIP_LOST', 'another one leads');
    };
    const waiting = patientClient(client, { logger: silentLogger, signal, assertLeading });
    await expect(waiting.find(PODS, { name: 'p' })).rejects.toMatchObject({
      code: 'LEADERSHIP_LOST',
    });
    expect(times).toBe(1);
  });
  it('has all else that the client has', () => {
    expect(clusterOf(0).waiting.server).toBe('here');
  });
  it('that stays away is an error, and so is what it refuses', async () => {
    await expect(clusterOf(Infinity).waiting.listPage(PODS, {})).rejects.toMatchObject({
      code: 'STILL_AWAY',
    });
    const client = {
      listPage: () => Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no')),
    } as unknown as KubeClient;
    const waiting = patientClient(client, { logger: silentLogger, signal });
    await expect(waiting.listPage(PODS, {})).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
  });
});
