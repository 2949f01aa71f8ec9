import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import type { BackupRepository, KubeClient } from '../../../../src/kube/index.ts';
import { type MaintenanceRunOptions, runMaintenanceJob } from '../../../../src/server/index.ts';

let directory: string;
beforeEach(() => {
  directory = fs.mkdtempSync(join(tmpdir(), 'longshore-test-'));
});
afterEach(() => {
  fs.rmSync(directory, { recursive: true });
});

const named = (claim: string, uid = 'r1'): BackupRepository =>
  ({
    metadata: {
      name: 'app-default-kopia',
      namespace: 'velero',
      uid,
      annotations: { 'longshore.io/maintenance-job': claim },
    },
    spec: { volumeNamespace: 'app', backupStorageLocation: 'default', repositoryType: 'kopia' },
  }) as never;

/** Runs a Job. `repository`: the API server's answer, which may change. */
async function run(
  repository: () => BackupRepository | undefined,
  more: Partial<MaintenanceRunOptions> = {},
): Promise<{ code: number; message: string; printed: string; worked: boolean }> {
  const terminationLog = join(directory, 'termination');
  let [printed, worked] = ['', false];
  // Turns a thrown error into a rejection.
  const answer = async (): Promise<BackupRepository | undefined> => Promise.resolve(repository());
  const location = {
    kind: 'BackupStorageLocation',
    metadata: { name: 'default', namespace: 'velero' },
    spec: { provider: 'velero.io/fs', config: { fspath: directory } },
  };
  const data = { 'repository-password': Buffer.from('secret').toString('base64') };
  const client = {
    list: async () => [await answer()].filter(Boolean),
    find: answer,
    get: (_: unknown, { name }: { name: string }) =>
      Promise.resolve(name === 'default' ? location : { data }),
  } as unknown as KubeClient;
  const code = await runMaintenanceJob({
    client,
    logger: silentLogger,
    namespace: 'velero',
    volumeNamespace: 'app',
    storageLocation: 'default',
    directory,
    terminationLog,
    job: { name: 'job-1', uid: 'j1' },
    printText: (text) => (printed += text),
    defaultCredentials: () => undefined,
    openRepository: () =>
      Promise.resolve({
        repository: undefined as never,
        [Symbol.asyncDispose]: () => Promise.resolve(),
      }),
    maintain: () => {
      worked = true;
      return Promise.resolve({ mode: 'quick', dryRun: false, tasks: [] });
    },
    signal: new AbortController().signal,
    timing: { retryMs: 1, followMs: 5, fenceMs: 60 },
    ...more,
  });
  return { code, message: fs.readFileSync(terminationLog, 'utf8'), printed, worked };
}

/** Works until it is stopped. */
const untilStopped: MaintenanceRunOptions['maintain'] = (_, signal) =>
  new Promise((_resolve, reject) => {
    signal.addEventListener('abort', () => reject(new Error('stopped in the middle')));
  });

describe('a maintenance Job', () => {
  it('does what is due, and says so', async () => {
    const { code, message, worked } = await run(() => named('job-1/j1'));
    expect([code, message, worked]).toEqual([0, 'quick maintenance', true]);
  });
  it('begins before its server has noted its UID, and without knowing it', async () => {
    expect((await run(() => named('job-1'))).code).toBe(0);
    const job = { name: 'job-1', uid: undefined };
    expect((await run(() => named('job-1/j1'), { job })).code).toBe(0);
  });
  it.each([['job-2'], ['job-1/j2'], ['']])(
    'does nothing where its repository names another one: "%s"',
    async (claim) => {
      const { code, message, worked } = await run(() => named(claim));
      expect([code, worked]).toEqual([1, false]);
      expect(message).toBe(
        'Repo maintenance error: BackupRepository app-default-kopia does not name this Job: another one maintains it, or has; nothing was done',
      );
    },
  );
  it("asks nobody where Velero's server has made it", async () => {
    expect((await run(() => named('job-2'), { job: undefined })).code).toBe(0);
  });
  it('stops when another one is named', async () => {
    let claim = 'job-1/j1';
    setTimeout(() => (claim = 'job-2'), 20);
    const { code, message } = await run(() => named(claim), { maintain: untilStopped });
    expect(code).toBe(1);
    expect(message).toContain('does not name this Job');
  });
  it('stops when its repository is deleted, or is another one of the same name', async () => {
    let uid = 'r1';
    setTimeout(() => (uid = 'r2'), 20);
    const { message } = await run(() => named('job-1/j1', uid), { maintain: untilStopped });
    expect(message).toContain('BackupRepository app-default-kopia was deleted');
  });
  it('stops when it could not ask for too long', async () => {
    let isAway = false;
    setTimeout(() => (isAway = true), 10);
    const { message } = await run(
      () => {
        if (isAway) throw new CodedError('KUBE_UNAVAILABLE', 'away');
        return named('job-1/j1');
      },
      { maintain: untilStopped },
    );
    expect(message).toContain('the API server was out of reach for');
  });
  it('looks for its repository ten times, and says in both places what went wrong', async () => {
    let asked = 0;
    const { code, message, printed } = await run(() => {
      asked++;
      return undefined;
    });
    expect([code, asked]).toEqual([1, 10]);
    expect(message).toBe(
      'Repo maintenance error: failed to get backup repository: there is none of namespace app in location default',
    );
    expect(printed).toBe(message);
  });
});
