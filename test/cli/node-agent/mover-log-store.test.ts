import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { EndedMoverLog } from '../../../src/agent/index.ts';
import { silentLogger } from '../../../src/base/index.ts';
import { moverLogStore } from '../../../src/cli/node-agent/mover-log-store.ts';
import { tempDirectory } from '../../support/kopia.ts';

const directory = tempDirectory('mover-log-store');
const bucket = join(directory, 'bucket');
const SIGNAL = new AbortController().signal;
const LOG: EndedMoverLog = {
  owner: { kind: 'Backup', name: 'b1', uid: 'u1' },
  volume: 'app.data',
  title: 'DataUpload up',
  node: 'node-1',
  pod: 'p-1',
  time: '2026-11-25T21:00:00Z',
  text: Buffer.from('text'),
};

const told: unknown[] = [];
/** Requests to the API server, except for the location. */
const asked: string[] = [];

/** A store for a cluster with only this location. */
const storeOf = (
  spec: object | undefined,
  { allowed = true } = {},
): ReturnType<typeof moverLogStore> =>
  moverLogStore({
    logger: { ...silentLogger, info: (fields) => told.push(fields) },
    client: {
      raw: ({ body }: { body: { spec: { resourceAttributes: object } } }) => {
        asked.push(JSON.stringify(body.spec.resourceAttributes));
        return Promise.resolve({ status: { allowed } });
      },
      find: () =>
        Promise.resolve(
          spec && {
            metadata: { name: 'default' },
            spec: { provider: 'velero.io/fs', config: { fspath: bucket }, ...spec },
          },
        ),
    } as never,
    namespace: 'velero',
    directory,
  });

describe('the bucket of a location, for logs', () => {
  it('has them below the prefix of the location, and keeps no file of its credentials', async () => {
    const config = { fspath: bucket, prefix: 'some/place' };
    fs.mkdirSync(join(bucket, 'some/place'), { recursive: true });
    const opened = await storeOf({ config }).open('default', SIGNAL);
    await opened?.add(LOG, { signal: SIGNAL });
    const path = join(bucket, 'some/place/backups/b1/longshore-logs/app.data.gz');
    expect(fs.existsSync(path)).toBe(true);
    await opened?.remove(LOG, { signal: SIGNAL });
    expect(fs.existsSync(path)).toBe(false);
    await opened?.[Symbol.asyncDispose]();
    expect(fs.readdirSync(directory)).toEqual(['bucket']);
  });

  it('is not opened where it is read-only', async () => {
    const store = storeOf({ accessMode: 'ReadOnly' });
    expect(await store.open('default', SIGNAL)).toBeUndefined();
  });

  it('is not opened, and no Secret is asked for, where the agent may not read it, which is told once', async () => {
    const store = storeOf({ credential: { name: 'keys', key: 'cloud' } }, { allowed: false });
    expect(await store.open('default', SIGNAL)).toBeUndefined();
    expect(await store.open('default', SIGNAL)).toBeUndefined();
    const may = { namespace: 'velero', verb: 'get', group: '', resource: 'secrets', name: 'keys' };
    expect(asked).toEqual([JSON.stringify(may), JSON.stringify(may)]);
    expect(told).toEqual([{ location: 'default', secret: 'keys' }]);
  });

  it('that is not there is named', async () => {
    await expect(storeOf(undefined).open('gone', SIGNAL)).rejects.toThrow(
      'BackupStorageLocation.velero.io "gone" not found',
    );
  });
});
