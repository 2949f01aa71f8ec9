import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, vi } from 'vitest';
import { PreparedRepository } from '../../../src/agent/mover/prepared-repository.ts';
import { type DataMoverOptions, runDataMover } from '../../../src/agent/mover/data-mover.ts';
import { CodedError, silentLogger, systemClock } from '../../../src/base/index.ts';
import { assertMovable } from '../../../src/agent/mover/moved-volume.ts';
import { type DataUpload, inPlaceConfig, type WatchEvent } from '../../../src/kube/index.ts';

const upload = (cancel: boolean, phase = 'InProgress'): DataUpload =>
  ({
    metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
    spec: { cancel, sourceNamespace: 'app', backupStorageLocation: 'default' },
    status: { phase },
  }) as never;
const location = {
  kind: 'BackupStorageLocation',
  metadata: { name: 'default', namespace: 'velero' },
  spec: { provider: 'aws', objectStorage: { bucket: 'backups' } },
};
const secret = { data: { 'repository-password': Buffer.from('secret').toString('base64') } };
const never = (): Promise<never> => new Promise(() => undefined);

/** Options of a mover with this client, in its own directory. No repository opens. */
const moverOptions = (client: object, directory: string): DataMoverOptions => ({
  kind: 'DataUpload',
  client: client as never,
  logger: silentLogger,
  namespace: 'velero',
  node: 'n',
  name: 'up',
  volumePath: '/v',
  isBlock: false,
  resourceTimeoutMs: 60_000,
  progressIntervalMs: 1000,
  stallMs: 1000,
  fenceMs: 1000,
  settings: {},
  terminationLog: join(directory, 'log'),
  podUid: 'p-1',
  frozenAt: undefined,
  endNow: () => undefined,
  directory,
  defaultCredentials: () => undefined,
  openRepository: never,
  prepareRepository: never,
  signal: new AbortController().signal,
});

it('says how it ended before it waits for the API server to take its Events', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'data-mover-'));
  const terminationLog = join(directory, 'log');
  const aborted = (_resource: unknown, _ref: unknown, options?: { signal?: AbortSignal }) =>
    new Promise<never>((_resolve, reject) => {
      options?.signal?.addEventListener('abort', () => {
        reject(new Error('aborted'));
      });
      setTimeout(() => {
        reject(new Error('away'));
      }, 200);
    });
  const client = {
    clock: systemClock,
    listPage: () => Promise.resolve({ items: [upload(false)], resourceVersion: '1' }),
    async *watch(): AsyncGenerator<WatchEvent<DataUpload>> {
      await sleep(20);
      yield { type: 'MODIFIED', object: upload(true) };
      await never();
    },
    find: aborted,
    get: aborted,
    list: aborted,
    // No Event is ever taken.
    create: never,
    patch: never,
  };
  void runDataMover({ ...moverOptions(client, directory), resourceTimeoutMs: 5000 });
  try {
    await expect.poll(() => readFileSync(terminationLog, 'utf8')).toMatch(/data path is canceled$/);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

it('tries again when a right to read its location or Secret is missing for a moment', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'data-mover-'));
  const terminationLog = join(directory, 'log');
  let asked = 0;
  const client = {
    clock: systemClock,
    listPage: () => Promise.resolve({ items: [upload(false)], resourceVersion: '1' }),
    async *watch(): AsyncGenerator<WatchEvent<DataUpload>> {
      await never();
    },
    get: (_resource: unknown, { name }: { name: string }) =>
      ++asked <= 2
        ? Promise.reject(
            new CodedError('KUBE_FORBIDDEN', 'it is forbidden: User "longshore" cannot do that'),
          )
        : Promise.resolve(name === 'default' ? location : secret),
    list: () => Promise.resolve([{ status: { phase: 'Ready' } }]),
    create: () => Promise.resolve({}),
    patch: () => Promise.resolve({}),
  };
  try {
    await runDataMover({
      ...moverOptions(client, directory),
      openRepository: () => Promise.reject(new Error('opened')),
    });
    expect(readFileSync(terminationLog, 'utf8')).toMatch(
      /error to open backup repository .*opened$/,
    );
  } finally {
    rmSync(directory, { recursive: true });
  }
});

describe('while it waits to be named', () => {
  /** Steps of a mover that is `Prepared` at first, in their order. */
  async function run(
    get: (name: string) => Promise<object>,
    prepare: () => Promise<void> = () => Promise.resolve(),
    opened: Error = new Error('opened'),
  ): Promise<string[]> {
    const directory = mkdtempSync(join(tmpdir(), 'data-mover-'));
    const done: string[] = [];
    const client = {
      clock: systemClock,
      listPage: () => Promise.resolve({ items: [upload(false, 'Prepared')], resourceVersion: '1' }),
      async *watch(): AsyncGenerator<WatchEvent<DataUpload>> {
        await sleep(100);
        done.push('named');
        yield { type: 'MODIFIED', object: upload(false) };
        await never();
      },
      get: (_resource: unknown, { name }: { name: string }) => {
        done.push(`get ${name}`);
        return get(name);
      },
      list: () => Promise.resolve([{ status: { phase: 'Ready' } }]),
      create: () => Promise.resolve({}),
      patch: () => Promise.resolve({}),
    };
    try {
      await runDataMover({
        ...moverOptions(client, directory),
        fenceMs: Infinity,
        openRepository: ({ password }) => {
          done.push(`open with ${password.reveal()}`);
          return Promise.reject(opened);
        },
        prepareRepository: ({ password }) => {
          done.push(`prepare with ${password.reveal()}`);
          return prepare();
        },
      });
    } finally {
      rmSync(directory, { recursive: true });
    }
    return done;
  }
  const answer = (name: string): Promise<object> =>
    Promise.resolve(name === 'default' ? location : secret);
  const gets = ['get default', 'get velero-repo-credentials'];

  it('the repository is looked up and its key derived, and nobody is asked twice', async () => {
    const done = await run(answer, () => Promise.reject(new Error('no matter')));
    expect(done).toEqual([...gets, 'prepare with secret', 'named', 'open with secret']);
  });

  it('what cannot be looked up yet is looked up when it counts', async () => {
    let failures = 1;
    const done = await run((name) =>
      failures-- > 0 ? Promise.reject(new Error('not yet')) : answer(name),
    );
    expect(done).toEqual(['get default', 'named', ...gets, 'open with secret']);
  });

  it('a password that was changed since is read once more, and one that was not is not tried again', async () => {
    const wrong = new CodedError('WRONG_PASSWORD', 'wrong password');
    const done = await run(answer, undefined, wrong);
    expect(done.slice(3)).toEqual(['named', 'open with secret', ...gets]);
    let reads = 0;
    const changed = { data: { 'repository-password': Buffer.from('next').toString('base64') } };
    const after = await run(
      (name) => (name === 'default' || ++reads === 1 ? answer(name) : Promise.resolve(changed)),
      undefined,
      wrong,
    );
    expect(after.slice(3)).toEqual(['named', 'open with secret', ...gets, 'open with next']);
  });

  it('another one that has taken its name meanwhile is looked up by itself', async () => {
    const query = { volumeNamespace: 'app', storageLocation: 'default' };
    let loads = 0;
    const load = (): Promise<never> => Promise.resolve({ loads: ++loads } as never);
    const ahead = (): PreparedRepository => {
      const made = new PreparedRepository({
        query,
        load,
        prepare: () => Promise.resolve(),
        logger: silentLogger,
      });
      made.start();
      return made;
    };
    expect(await ahead().take(query)).toEqual({ loads: 1 });
    expect(await ahead().take({ ...query, volumeNamespace: 'other' })).toBeUndefined();
    expect(await ahead().take({ ...query, storageLocation: 'other' })).toBeUndefined();
  });

  it('what was looked up long ago is looked up anew', async () => {
    const query = { volumeNamespace: 'app', storageLocation: 'default' };
    const load = (): Promise<never> => Promise.resolve({} as never);
    const options = { query, load, prepare: () => Promise.resolve(), logger: silentLogger };
    const ahead = new PreparedRepository(options);
    ahead.start();
    await sleep(10);
    const now = vi.spyOn(performance, 'now').mockReturnValue(performance.now() + 10_001);
    try {
      expect(await ahead.take(query)).toBeUndefined();
    } finally {
      now.mockRestore();
    }
  });

  it('an answer that does not come is not waited for', async () => {
    let isFirst = true;
    const done = await run((name) => {
      if (!isFirst) return answer(name);
      isFirst = false;
      return never();
    });
    expect(done).toEqual(['get default', 'named', ...gets, 'open with secret']);
  });
});

it.each([
  [
    'asks for, and its agent knows nothing of',
    inPlaceConfig({ dryRun: false, keepExtra: false }),
    false,
  ],
  ['does not ask for, and its agent does', {}, true],
] as const)('a restore in place that its CR %s is not begun', (_, dataMoverConfig, isInPlace) => {
  const movement = { metadata: {}, spec: { datamover: 'longshore', dataMoverConfig } };
  expect(() => assertMovable('DataDownload', movement as never, isInPlace)).toThrow(
    'its agent and its CR do not agree whether the volume is to be restored in place',
  );
});
