import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { runDataMover } from '../../src/agent/data-mover.ts';
import { CodedError, systemClock } from '../../src/base/index.ts';
import type { DataUpload, WatchEvent } from '../../src/kube/index.ts';

const upload = (cancel: boolean): DataUpload =>
  ({
    metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
    spec: { cancel, sourceNamespace: 'app', backupStorageLocation: 'default' },
    status: { phase: 'InProgress' },
  }) as never;
const never = (): Promise<never> => new Promise(() => undefined);

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
    ...{ find: aborted, get: aborted, list: aborted },
    // No Event is ever taken.
    ...{ create: never, patch: never },
  };
  void runDataMover({
    kind: 'DataUpload',
    client: client as never,
    logger: { info: () => undefined, error: () => undefined } as never,
    ...{ namespace: 'velero', node: 'n', name: 'up', volumePath: '/v', isBlock: false },
    ...{ resourceTimeoutMs: 5000, progressIntervalMs: 1000, stallMs: 1000, fenceMs: 1000 },
    settings: {},
    terminationLog,
    podUid: 'p-1',
    frozenAt: undefined,
    endNow: () => undefined,
    directory,
    defaultCredentials: () => undefined,
    openRepository: never,
    signal: new AbortController().signal,
  });
  try {
    await expect
      .poll(() => readFileSync(terminationLog, 'utf8'), { timeout: 3000 })
      .toMatch(/data path is canceled$/);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

it('tries again when a right to read its location or Secret is missing for a moment', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'data-mover-'));
  const terminationLog = join(directory, 'log');
  let asked = 0;
  const location = {
    kind: 'BackupStorageLocation',
    metadata: { name: 'default', namespace: 'velero' },
    spec: { provider: 'aws', objectStorage: { bucket: 'backups' } },
  };
  const secret = { data: { 'repository-password': Buffer.from('secret').toString('base64') } };
  const client = {
    clock: systemClock,
    listPage: () => Promise.resolve({ items: [upload(false)], resourceVersion: '1' }),
    async *watch(): AsyncGenerator<WatchEvent<DataUpload>> {
      await never();
    },
    get: (_resource: unknown, { name }: { name: string }) =>
      ++asked <= 2
        ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'not now'))
        : Promise.resolve(name === 'default' ? location : secret),
    list: () => Promise.resolve([{ status: { phase: 'Ready' } }]),
    ...{ create: () => Promise.resolve({}), patch: () => Promise.resolve({}) },
  };
  try {
    await runDataMover({
      kind: 'DataUpload',
      client: client as never,
      logger: { info: () => undefined, error: () => undefined } as never,
      ...{ namespace: 'velero', node: 'n', name: 'up', volumePath: '/v', isBlock: false },
      ...{ resourceTimeoutMs: 60_000, progressIntervalMs: 1000, stallMs: 1000, fenceMs: 1000 },
      settings: {},
      terminationLog,
      podUid: 'p-1',
      frozenAt: undefined,
      endNow: () => undefined,
      directory,
      defaultCredentials: () => undefined,
      openRepository: () => Promise.reject(new Error('opened')),
      signal: new AbortController().signal,
    });
    expect(readFileSync(terminationLog, 'utf8')).toMatch(
      /error to open backup repository .*opened$/,
    );
  } finally {
    rmSync(directory, { recursive: true });
  }
});
